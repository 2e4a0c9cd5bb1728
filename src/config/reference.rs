//! Reference pages made from the documentation of keys.

use indexmap::IndexMap;
use serde_json::Value;

use super::keys::{join, keys};
use super::shape::{Key, Kind, Schema, Section, Shape};

/// The keys of `ajet:` by section, and those that are accepted without effect.
pub fn ajet_reference() -> String {
    reference("ajet", &keys().schema) + &without_effect()
}

/// The keys of a part of a job by section: what each takes, its default, and what it does.
pub fn reference(root: &str, schema: &Schema) -> String {
    let mut page = Page::default();
    page.add_shape(root, &schema.root, "");
    page.text
}

/// A page as it grows.
#[derive(Default)]
struct Page<'a> {
    text: String,
    /// Kinds of sections that are on it, and their paths.
    kinds: Vec<(&'a [Kind], String)>,
}

impl<'a> Page<'a> {
    /// Adds the sections that values of this shape are made of.
    fn add_shape(&mut self, path: &str, shape: &'a Shape, doc: &str) {
        match shape {
            Shape::Section(section) => {
                self.text.push_str(&format!("\n## `{path}`\n"));
                self.add_section(path, section, &section.doc);
            }
            Shape::Kinds { tag, kinds } => {
                self.text.push_str(&format!("\n## `{path}`\n\n"));
                if !doc.is_empty() {
                    self.text.push_str(&format!("{doc}\n\n"));
                }
                match self.kinds.iter().find(|(known, _)| known[..] == kinds[..]) {
                    Some((_, known)) => self.text.push_str(&format!("Its keys are those of `{known}`.\n")),
                    None => self.add_kinds(path, tag, kinds),
                }
            }
            Shape::List { of, .. } => self.add_shape(&format!("{path}[]"), of, doc),
            Shape::Map(of) => self.add_shape(&join(path, "NAME"), of, doc),
            Shape::Either(shapes) => {
                for section in shapes.iter().filter(|shape| matches!(shape, Shape::Section(_))) {
                    self.add_shape(path, section, doc);
                }
            }
            _ => {}
        }
    }

    /// Adds sections whose keys depend on a tag.
    fn add_kinds(&mut self, path: &str, tag: &str, kinds: &'a [Kind]) {
        self.kinds.push((kinds, path.to_owned()));
        self.text.push_str(&format!("Its keys depend on `{tag}`:\n\n"));
        for Kind { name, section } in kinds {
            self.text.push_str(&format!("- `{name}`: {}\n", section.doc));
        }
        for Kind { name, section } in kinds.iter().filter(|kind| !kind.section.keys.is_empty()) {
            self.text.push_str(&format!("\n### `{path}` with `{tag}: {name}`\n"));
            self.add_section(path, section, "");
        }
    }

    /// Adds what a section is about, the table of its keys, and the sections in it.
    fn add_section(&mut self, path: &str, section: &'a Section, doc: &str) {
        if !doc.is_empty() {
            self.text.push_str(&format!("\n{doc}\n"));
        }
        let rows = section
            .keys
            .iter()
            .filter(|(_, key)| !matches!(key.shape, Shape::Section(_)));
        let rows: String = rows.map(|(name, key)| row(name, key)).collect();
        if !rows.is_empty() {
            self.text
                .push_str("\n| key | takes | default | meaning |\n|---|---|---|---|\n");
            self.text.push_str(&rows);
        }
        for (name, key) in &section.keys {
            self.add_shape(&join(path, name), &key.shape, &key.doc);
        }
    }
}

fn row(name: &str, key: &Key) -> String {
    let default = match &key.default {
        _ if key.required => "required".into(),
        Value::Null => "—".into(),
        Value::String(text) if text.is_empty() => "none".into(),
        Value::String(text) => format!("`{text}`"),
        Value::Array(items) => format!("`[{}]`", items.iter().map(bare).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) if entries.is_empty() => "none".into(),
        value => format!("`{}`", bare(value)),
    };
    let mut meaning = key.doc.clone();
    if let Shape::Choice(choices) = &key.shape {
        for choice in choices {
            let doc = if choice.doc.is_empty() {
                String::new()
            } else {
                format!(": {}", choice.doc)
            };
            meaning.push_str(&format!("<br>`{}`{doc}", choice.name));
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
        Shape::Text(Some(format)) if format == "template" => "template",
        Shape::Text(_) => "text",
        Shape::Choice(_) => "name",
        Shape::Flag => "true, false",
        Shape::List { max: Some(2), .. } => "two numbers",
        Shape::List { of, .. } => return format!("list of {}", plural(of)),
        Shape::Map(of) => return format!("{} by name", plural(of)),
        Shape::Either(shapes) if shapes.iter().any(|shape| matches!(shape, Shape::Section(_))) => "text or section",
        Shape::Either(_) => "text or list",
        Shape::Section(_) | Shape::Kinds { .. } => "section",
        Shape::Any => "any value",
        Shape::Ref(name) => return format!("{}, as above", name.to_lowercase()),
        shape => return shape.expected().trim_start_matches("a ").to_owned(),
    };
    fixed.to_owned()
}

/// What the elements of a list or the values of a map are.
fn plural(shape: &Shape) -> String {
    let fixed = match shape {
        Shape::Text(Some(format)) if format == "template" => "templates",
        Shape::Text(_) => "texts",
        Shape::Choice(_) => "names",
        Shape::Whole { .. } | Shape::Number { .. } => "numbers",
        Shape::Section(_) | Shape::Kinds { .. } | Shape::Map(_) => "sections",
        Shape::Either(shapes) if shapes.iter().any(|shape| matches!(shape, Shape::Section(_))) => "texts or sections",
        Shape::Ref(name) => return format!("{}s, as above", name.to_lowercase()),
        _ => "values",
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
