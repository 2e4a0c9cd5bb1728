//! The JSON Schema of job files and, in its test, `docs/configuration.md`: both from the types that a job is read to.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::job::Roll;
use crate::config::Ajet;
use crate::config::keys::keys;

/// The JSON Schema of job files.
pub fn job_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut generator = settings.into_generator();
    let mut ajet = generator.subschema_for::<Ajet>().to_value();
    for path in keys().accepted.keys() {
        if let Some(path) = path.strip_prefix("ajet.") {
            accept(&mut ajet, path);
        }
    }
    let roll = generator.subschema_for::<Roll>().to_value();
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job of ajet-swarm",
        "type": "object",
        "properties": { "ajet": ajet, "roll": roll },
        "required": ["ajet", "roll"],
        "$defs": generator.take_definitions(true),
    });
    allow_variables(&mut schema);
    schema
}

/// Adds a key that is accepted without effect.
fn accept(section: &mut Value, path: &str) {
    let Some(section) = section.as_object_mut() else {
        return;
    };
    let properties = section.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object_mut() else {
        return;
    };
    match path.split_once('.') {
        Some((name, below)) => accept(
            properties.entry(name).or_insert_with(|| json!({ "type": "object" })),
            below,
        ),
        None => {
            let key = || json!({ "description": "Accepted, without effect." });
            properties.entry(path).or_insert_with(key);
        }
    }
}

/// Lets numbers and flags be given by a variable.
fn allow_variables(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            allow_variable(fields);
            fields.values_mut().for_each(allow_variables);
        }
        Value::Array(items) => items.iter_mut().for_each(allow_variables),
        _ => {}
    }
}

fn allow_variable(schema: &mut Map<String, Value>) {
    let types = match schema.get("type") {
        Some(Value::String(name)) => vec![json!(name)],
        Some(Value::Array(names)) => names.clone(),
        _ => return,
    };
    if types
        .iter()
        .any(|name| ["integer", "number", "boolean"].iter().any(|scalar| name == scalar))
    {
        schema.insert("type".into(), types.into_iter().chain([json!("string")]).collect());
        schema.insert("pattern".into(), json!(r"\$\{.+\}"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{ajet_reference, parse, reference};
    use crate::roll::job;

    const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the types in src/config and src/roll: run `UPDATE_DOCS=1 cargo test configuration_md` after a change there. -->

A job has two parts: [`ajet:`](#ajet) is the training configuration, which the server gets, and [`roll:`](#roll) is what
the client does. A client of one's own sends a document with the first part only. Its names are AgentJet's. Everything in
it has a default but `ajet.model.path`:

```yaml
ajet:
  experiment_name: math_grpo
  model: { path: Qwen/Qwen2.5-0.5B-Instruct }
  data: { train_batch_size: 8, max_prompt_length: 512, max_response_length: 512 }
  rollout: { num_repeat: 8 }
```

How a value is read:

- null is the default;
- a number is taken as text where text is wanted, `8.0` as a whole number, `1e-6` in quotes as a number;
- `yes`, `no`, `on` and `off` are true and false where a flag is wanted;
- a single value is taken as a list of one;
- `${VAR}` in a job is the environment variable, `${VAR:-default}` has a default, and `$${` stands for `${`.

A wrong value is an error that names the key, the value and what is allowed. An unknown key is an error in a job, with the
key that was probably meant; in a document that a client's program sent it is a warning.

`--set KEY=VALUE` of `roll`, `job check` and `job show` sets any key: `--set ajet.trainer_common.optim.lr=1e-4`.

Editors complete and check a job by its JSON Schema. Write it with `ajet-swarm job schema > job.schema.json`, and begin the
job with the line `# yaml-language-server: $schema=job.schema.json`.
";

    /// The page `docs/configuration.md`.
    fn configuration_md() -> String {
        INTRODUCTION.to_owned() + &reference("roll", job::schema()) + &ajet_reference()
    }

    #[test]
    fn configuration_md_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, configuration_md()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == configuration_md(),
            "docs/configuration.md is out of date; run `UPDATE_DOCS=1 cargo test configuration_md`"
        );
    }

    /// Says where a value differs from its schema. It knows the keywords that our schema has, and refuses others.
    fn mismatch(root: &Value, schema: &Value, value: &Value, path: &str) -> Option<String> {
        let is_of_type = |name: &str| match name {
            "integer" => value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            other => panic!("unknown type {other}"),
        };
        let fails = |schema: &Value| mismatch(root, schema, value, path);
        let Value::Object(keywords) = schema else {
            return (schema == &Value::Bool(false)).then(|| format!("{path}: not allowed"));
        };
        for (keyword, rule) in keywords {
            let number = |name: &str| schema[name].as_f64();
            let wrong = match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" | "default" | "format" | "x-aliases" => None,
                "$ref" => fails(&root["$defs"][rule.as_str()?.trim_start_matches("#/$defs/")]),
                "type" => {
                    let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                    let fits = names.iter().any(|name| is_of_type(name.as_str().unwrap_or_default()));
                    (!fits).then(|| format!("{path}: {value} is not {rule}"))
                }
                "const" => (value != rule).then(|| format!("{path}: {value} is not {rule}")),
                "enum" => (!rule.as_array()?.contains(value)).then(|| format!("{path}: {value} is not in {rule}")),
                "minimum" | "maximum" => {
                    let given = value.as_f64();
                    let outside = given.is_some_and(|given| {
                        number("minimum").is_some_and(|min| given < min)
                            || number("maximum").is_some_and(|max| given > max)
                    });
                    outside.then(|| format!("{path}: {value} is outside its range"))
                }
                "minItems" | "maxItems" => {
                    let given = value.as_array().map(|items| items.len() as f64);
                    let outside = given.is_some_and(|given| {
                        number("minItems").is_some_and(|min| given < min)
                            || number("maxItems").is_some_and(|max| given > max)
                    });
                    outside.then(|| format!("{path}: the number of elements is outside its range"))
                }
                "pattern" => {
                    assert_eq!(rule, r"\$\{.+\}");
                    let text = value
                        .as_str()
                        .filter(|text| !(text.contains("${") && text.contains('}')));
                    text.map(|text| format!("{path}: {text:?} is no variable"))
                }
                "required" => {
                    let mut names = rule.as_array()?.iter().filter_map(Value::as_str);
                    let missing = names.find(|name| value.is_object() && value.get(name).is_none());
                    missing.map(|name| format!("{path}.{name}: is missing"))
                }
                "properties" => rule.as_object()?.iter().find_map(|(name, schema)| {
                    value
                        .get(name)
                        .and_then(|value| mismatch(root, schema, value, &format!("{path}.{name}")))
                }),
                "additionalProperties" => value.as_object().and_then(|entries| {
                    let mut others = entries
                        .iter()
                        .filter(|(name, _)| schema["properties"].get(name).is_none());
                    others.find_map(|(name, value)| mismatch(root, rule, value, &format!("{path}.{name}")))
                }),
                "items" => value.as_array().and_then(|items| {
                    items
                        .iter()
                        .find_map(|item| mismatch(root, rule, item, &format!("{path}[]")))
                }),
                "anyOf" | "oneOf" => {
                    let failures: Vec<_> = rule.as_array()?.iter().filter_map(fails).collect();
                    let all_fail = failures.len() == rule.as_array()?.len();
                    all_fail.then(|| failures.join("; "))
                }
                other => panic!("unknown keyword {other} at {path}"),
            };
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    fn mismatch_of_job(yaml: &str) -> Option<String> {
        let schema = job_schema();
        mismatch(&schema, &schema, &parse(yaml).unwrap().to_json(), "")
    }

    /// The YAML blocks of a Markdown file that are whole jobs.
    fn jobs_in(page: &str) -> Vec<&str> {
        let blocks = page
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next());
        blocks
            .filter(|block| block.contains("ajet:\n") && block.contains("\nroll:\n"))
            .collect()
    }

    #[test]
    fn every_example_is_valid_by_the_schema() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = |folder: &str, extension: &str| {
            let entries = std::fs::read_dir(root.join(folder))
                .unwrap()
                .map(|entry| entry.unwrap().path());
            entries
                .filter(|path| path.extension().is_some_and(|have| have == extension))
                .collect::<Vec<_>>()
        };
        let mut checked = 0;
        for path in files("config/jobs", "yaml") {
            let job = std::fs::read_to_string(&path).unwrap();
            assert_eq!(mismatch_of_job(&job), None, "{}", path.display());
            checked += 1;
        }
        for path in files("docs", "md").into_iter().chain([root.join("README.md")]) {
            let page = std::fs::read_to_string(&path).unwrap();
            for job in jobs_in(&page) {
                assert_eq!(mismatch_of_job(job), None, "{}:\n{job}", path.display());
                checked += 1;
            }
        }
        assert!(checked >= 4, "{checked}");
    }

    #[test]
    fn the_schema_finds_what_the_reader_refuses() {
        let job = |ajet: &str, roll: &str| {
            let agent = "agent: {type: chat}, reward: {type: exact_match, answer: x}";
            format!("ajet: {{model: {{path: m}}, {ajet}}}\nroll: {{{agent}, {roll}}}")
        };
        for fine in [
            job(
                "data: {train_batch_size: 8}, lora: {target_modules: [q_proj]}",
                "steps: 3",
            ),
            job(
                "trainer_common: {optim: {lr: '${LR:-1e-4}'}}, backbone: verl",
                "force_restart: '${FORCE}'",
            ),
            job(
                "rollout: {tool_parser: null}, task_judge: {judge_type: x}",
                "eval: {every: 5}",
            ),
        ] {
            assert_eq!(mismatch_of_job(&fine), None, "{fine}");
        }
        for (wrong, told) in [
            (job("data: {train_batch_size: 0}", ""), "outside its range"),
            (
                job("data: {train_batch_sise: 8}", ""),
                ".ajet.data.train_batch_sise: not allowed",
            ),
            (job("trainer_common: {loss_agg_mode: mean}", ""), "\"mean\" is not"),
            (job("", "max_parallel: many"), "is no variable"),
            (job("", "stepps: 3"), ".roll.stepps: not allowed"),
            ("ajet: {}\nroll: {}".into(), ".roll.agent: is missing"),
        ] {
            let mismatch = mismatch_of_job(&wrong).unwrap_or_default();
            assert!(mismatch.contains(told), "{mismatch}");
        }
    }
}
