//! `docs/configuration.md`, made from the keys' own documentation.

use indexmap::IndexMap;
use serde_json::Value;

use super::keys::keys;
use super::shape::{Key, Shape};

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from src/config/schema.rs: run `UPDATE_DOCS=1 cargo test configuration_md` after a change there. -->

The `ajet:` section of a job, or of the YAML that a client sends to the server. The names are AgentJet's. Everything has
a default but `ajet.model.path`:

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
- `yes`, `no`, `on` and `off` are true and false where a flag is wanted.

A wrong value is an error that names the key, the value and what is allowed. An unknown key is an error in a job, with the
key that was probably meant; in a document that a client's program sent it is a warning.
";

/// The whole page.
pub fn configuration_md() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut sections: IndexMap<&str, Vec<(&str, &Key)>> = IndexMap::new();
    for (path, key) in &keys().used {
        let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
        sections.entry(section).or_default().push((name, key));
    }
    for (section, keys_of_section) in sections {
        page.push_str(&format!("\n## `{section}`\n\n"));
        if let Some(doc) = keys().sections.get(section).filter(|doc| !doc.is_empty()) {
            page.push_str(&format!("{doc}\n\n"));
        }
        page.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
        for (name, key) in keys_of_section {
            page.push_str(&row(name, key));
        }
    }
    page.push_str(&without_effect());
    page
}

fn row(name: &str, key: &Key) -> String {
    let default = match &key.default {
        Value::Null => "—".into(),
        Value::String(text) if text.is_empty() => "none".into(),
        Value::String(text) => format!("`{text}`"),
        Value::Array(items) => format!("`[{}]`", items.iter().map(bare).collect::<Vec<_>>().join(", ")),
        value => format!("`{}`", bare(value)),
    };
    let mut meaning = key.doc.clone();
    if let Shape::Choice(choices) = &key.shape {
        for choice in choices {
            meaning.push_str(&format!("<br>`{}`: {}", choice.name, choice.doc));
        }
    }
    let meaning = meaning.replace('|', "\\|");
    format!("| `{name}` | {} | {default} | {meaning} |\n", takes(&key.shape))
}

/// A value of a list, text without quotes.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn takes(shape: &Shape) -> String {
    let fixed = match shape {
        Shape::Text(_) => "text",
        Shape::Choice(_) => "name",
        Shape::Flag => "true, false",
        Shape::List { max: Some(2), .. } => "two numbers",
        Shape::List { .. } => "list",
        Shape::Either(_) => "text or list",
        shape => return shape.expected().trim_start_matches("a ").to_owned(),
    };
    fixed.to_owned()
}

fn without_effect() -> String {
    let mut text = "\n## Accepted, without effect\n\n\
        These keys of AgentJet are known, so that its documents load, but do nothing here. Those that are set to something\n\
        other than their default are named in the log when training starts.\n\n"
        .to_owned();
    let mut others: IndexMap<&str, usize> = IndexMap::new();
    let mut of_ajet: IndexMap<&str, Vec<&str>> = IndexMap::new();
    for path in keys().accepted.keys() {
        match path.split_once('.') {
            Some(("ajet", rest)) => {
                let (section, name) = rest.split_once('.').unwrap_or(("", rest));
                of_ajet.entry(section).or_default().push(name);
            }
            Some((section, _)) => *others.entry(section).or_default() += 1,
            None => *others.entry(path).or_default() += 1,
        }
    }
    for (section, names) in of_ajet {
        let section = if section.is_empty() {
            "ajet".into()
        } else {
            format!("ajet.{section}")
        };
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        text.push_str(&format!("- `{section}`: {}\n", names.join(", ")));
    }
    text.push_str("\nSo are all other sections, which are verl's, ray's and hydra's (number of known keys):\n");
    let others: Vec<_> = others
        .iter()
        .map(|(section, count)| format!("`{section}` ({count})"))
        .collect();
    text.push_str(&format!("{}.\n", others.join(", ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
