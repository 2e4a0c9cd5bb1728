//! A configuration as the YAML document that is sent to a server.
//!
//! A Python AgentJet server reads the same document, so it holds what that one insists on, and is written such that a
//! reader of YAML 1.1 takes every value for what it is: `1.0e-6`, since `1e-6` is text to it.

use serde_json::{Map, Value};

use super::keys::keys;
use super::node::Node;
use super::schema::Ajet;

/// The complete document: the `ajet` section and what a Python server wants besides. Tasks are the client's own matter,
/// so the task reader is not part of it; lengths that follow from others are written out.
///
/// Loading it gives the same configuration again, the task reader aside.
pub fn dump_yaml(ajet: &Ajet) -> String {
    let mut document = Map::new();
    document.insert("ajet".into(), ajet_section(ajet));
    let mut hydra = Value::Object(Map::new());
    let searchpath = ["pkg://ajet/default_config", "pkg://ajet/default_config/verl"];
    set(&mut hydra, "searchpath", searchpath.map(Value::from).to_vec());
    document.insert("hydra".into(), hydra);
    let defaults = ["verl_default", "ajet_default", "_self_"].map(Value::from).to_vec();
    document.insert("defaults".into(), defaults.into());

    let mut text = String::new();
    write_section(&mut text, &document, 0);
    text
}

fn ajet_section(ajet: &Ajet) -> Value {
    let mut lengths_set = ajet.clone();
    lengths_set.rollout.max_model_len = Some(ajet.max_model_len());
    lengths_set.rollout.max_response_length_in_one_turn = Some(ajet.max_response_length_in_one_turn());
    // Plain data with text keys always has a JSON value.
    let mut section = serde_json::to_value(lengths_set).unwrap_or_default();
    drop_nulls(&mut section);

    let mut reader = Value::Object(Map::new());
    set(&mut reader, "type", "random_dummy");
    set(&mut section, "task_reader", reader);
    for path in [
        "backbone",
        "enable_swarm_mode",
        "enable_interchange_server",
        "interchange_server.interchange_method",
        "interchange_server.interchange_server_port",
        "interchange_server.num_fastapi_process",
        "interchange_server.max_fastapi_threads",
        "interchange_server.max_inference_tracker_threads",
        "interchange_server.already_started",
        "rollout.user_workflow",
        "task_judge.judge_type",
        "task_judge.judge_protocol",
    ] {
        let default = keys().accepted.get(&format!("ajet.{path}")).map(Node::to_json);
        set(&mut section, path, default.unwrap_or_default());
    }
    // Python has a whole number here.
    if ajet.lora.lora_alpha.fract() == 0.0 {
        set(&mut section, "lora.lora_alpha", ajet.lora.lora_alpha as i64);
    }
    if ajet.lora.is_on() {
        set(&mut section, "lora.load_format", "safetensors");
        set(&mut section, "lora.layered_summon", true);
    }
    section
}

/// Sets the value at a dotted path, making the sections on the way.
fn set(section: &mut Value, path: &str, value: impl Into<Value>) {
    let mut place = section;
    for name in path.split('.') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[name];
    }
    *place = value.into();
}

/// Takes out what is not set: Python has its own defaults, and a null would stand in their place.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(section) = value {
        section.retain(|_, value| !value.is_null());
        section.values_mut().for_each(drop_nulls);
    }
}

fn write_section(out: &mut String, section: &Map<String, Value>, depth: usize) {
    for (name, value) in section {
        out.push_str(&"  ".repeat(depth));
        out.push_str(&text(name));
        out.push(':');
        match value {
            Value::Object(below) if !below.is_empty() => {
                out.push('\n');
                write_section(out, below, depth + 1);
            }
            Value::Object(_) => out.push_str(" {}\n"),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(scalar).collect();
                out.push_str(&format!(" [{}]\n", items.join(", ")));
            }
            _ => out.push_str(&format!(" {}\n", scalar(value))),
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(value) => text(value),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => "null".into(),
    }
}

fn text(text: &str) -> String {
    match is_plain(text) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// Whether text needs no quotes in any YAML.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || "_/".contains(c))
        && text.chars().all(plain)
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// Text in double quotes. YAML reads JSON's escapes; it wants them for more characters than JSON does.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{2028}' | '\u{2029}' => format!("\\u{:04x}", u32::from(c)),
        _ => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// A float with a point and a signed exponent.
fn float(number: f64) -> String {
    let shortest = format!("{number:?}");
    let Some((mantissa, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fit::Strictness;
    use super::super::load::{Loaded, load, parse};
    use super::*;

    fn reload(ajet: &Ajet) -> Loaded {
        load(&dump_yaml(ajet), Strictness::Job).unwrap()
    }

    fn configured(yaml: &str) -> Ajet {
        load(yaml, Strictness::Job).unwrap().ajet
    }

    #[test]
    fn loading_a_dump_gives_the_same_configuration() {
        let mut want = configured(
            "ajet:\n  model: {path: 'Qwen/Qwen2.5-0.5B-Instruct'}\n  experiment_name: 1e5\n  project_name: 'off'\n  \
             rollout: {default_system_prompt: \"be: brief\\n# 1e-6\\t😀\", max_model_len: 20000, \
             compute_madness_checklist: [nonsense, non_ascii]}\n  \
             trainer_common: {optim: {lr: 3.0e-7}, importance_sampling: {mode: 'off'}, save_freq: -1}\n  \
             lora: {lora_rank: 8, target_modules: [q_proj]}\n  engine: {device: 'cuda:0', threads: 2}",
        );
        want.rollout.max_response_length_in_one_turn = Some(4096);
        want.task_reader.kind = "random_dummy".into();
        let loaded = reload(&want);
        assert_eq!(loaded.ajet, want);
        assert_eq!(
            loaded.ignored, [""; 0],
            "our own document sets nothing that has no effect"
        );
    }

    #[test]
    fn a_python_server_finds_what_it_insists_on() {
        let yaml = dump_yaml(&configured(
            "ajet: {model: {path: m}, lora: {lora_rank: 8}, trainer_common: {importance_sampling: {mode: 'off'}}}",
        ));
        for line in [
            "defaults: [verl_default, ajet_default, _self_]",
            "  searchpath: [\"pkg://ajet/default_config\", \"pkg://ajet/default_config/verl\"]",
            "    interchange_server_port: 10086",
            "    lora_alpha: 16",
            "    load_format: safetensors",
            "    layered_summon: true",
            "    judge_protocol: null",
            "    user_workflow: null",
            "    max_model_len: 18000",
            "    max_response_length_in_one_turn: 4096",
            "      lr: 1.0e-6",
            "      mode: \"off\"",
        ] {
            assert!(yaml.lines().any(|have| have == line), "{line:?} is not in\n{yaml}");
        }
        let nulls = yaml.lines().filter(|line| line.ends_with("null")).count();
        assert_eq!(nulls, 2, "only those that undo a default of Python's\n{yaml}");
    }

    #[test]
    fn floats_are_floats_in_every_yaml() {
        let cases = [
            (1e-6, "1.0e-6"),
            (1.5e-7, "1.5e-7"),
            (1e300, "1.0e+300"),
            (0.002, "0.002"),
            (1.0, "1.0"),
            (-1.0, "-1.0"),
        ];
        for (number, want) in cases {
            assert_eq!(float(number), want);
        }
    }

    proptest! {
        #[test]
        fn any_text_survives(text in any::<String>()) {
            let written = scalar(&Value::from(text.as_str()));
            prop_assert_eq!(parse(&written).unwrap().to_json(), Value::from(text), "{}", written);
        }
    }
}
