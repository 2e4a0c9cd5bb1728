//! From a document to a typed configuration.
//!
//! Each value is made to fit what the schema says of its key, wherever that loses nothing: `'64'`, `64` and `64.0` are
//! the same to a key that takes a whole number, `1e5` is a name to a key that takes text. Every problem of a document
//! is reported, not just the first one.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::error::Problem;
use super::keys::{Class, join, keys};
use super::nearest::nearest;
use super::node::{Node, Scalar};
use super::shape::{Choice, Kind, Schema, Section, Shape};

/// What says how Python reads the document or loads its own engine. It is never reported as being without effect, since
/// every document has it.
const PYTHONS_OWN: [&str; 4] = ["hydra", "defaults", "ajet.lora.load_format", "ajet.lora.layered_summon"];

/// Maximum number of unknown keys that are named, and of keys without effect: finding what was meant is slow.
pub(super) const NAMED: usize = 20;

/// How an unknown key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// The document is the user's own job file: an unknown key is an error.
    Job,
    /// Another client's program made it: an unknown key is a warning, since its user cannot be asked.
    Synced,
}

/// Text of a format that the schema names, such as a template.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The schema's `format`.
    pub name: &'static str,
    /// Says what is wrong with a text that stands at a dotted path.
    pub check: fn(path: &str, text: &str) -> Result<(), String>,
}

/// What a reading found besides the values.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Sentences for the log, such as unknown keys.
    pub warnings: Vec<String>,
    /// Known keys that have no effect and were set to something other than their default, as `key = value`.
    pub ignored: Vec<String>,
}

/// Makes a `T` of the node at the dotted `path`.
///
/// # Errors
/// Fails with all problems.
pub fn fit<T: DeserializeOwned>(
    schema: &Schema,
    path: &str,
    node: &Node,
    formats: &[Format],
) -> Result<T, Vec<Problem>> {
    let mut fitter = Fitter::new(schema, Strictness::Job, formats);
    let value = fitter.section_or_default(path, node);
    let findings = fitter.finish();
    match findings.problems.is_empty() {
        true => typed(path, value),
        false => Err(findings.problems),
    }
}

/// Whether a node has the form that a shape wants, so that what is wrong is within it.
fn is_of_kind(shape: &Shape, node: &Node) -> bool {
    match node {
        Node::Section(_) => matches!(shape, Shape::Section(_) | Shape::Kinds { .. } | Shape::Map(_)),
        Node::List(_) => matches!(shape, Shape::List { .. }),
        Node::Scalar(_) => matches!(shape, Shape::Text(Some(_))),
    }
}

/// The value that fits the schema as the type that the schema was made of.
pub(super) fn typed<T: DeserializeOwned>(path: &str, value: Json) -> Result<T, Vec<Problem>> {
    serde_json::from_value(value).map_err(|error| vec![Problem::new(path, error.to_string())])
}

/// Fits values to a schema and gathers what it finds.
pub(super) struct Fitter<'a> {
    schema: &'a Schema,
    strictness: Strictness,
    formats: &'a [Format],
    findings: Findings,
    /// Number of unknown keys.
    unknown: usize,
    /// The part of the document that is read.
    part: String,
    /// Number of keys without effect.
    without_effect: usize,
}

impl<'a> Fitter<'a> {
    pub fn new(schema: &'a Schema, strictness: Strictness, formats: &'a [Format]) -> Self {
        Self {
            schema,
            strictness,
            formats,
            findings: Findings::default(),
            unknown: 0,
            part: String::new(),
            without_effect: 0,
        }
    }

    /// What was found, with the number of keys that were not named.
    pub fn finish(mut self) -> Findings {
        let unnamed = self.unknown.saturating_sub(NAMED);
        if unnamed > 0 {
            let message = format!("{unnamed} more unknown keys");
            match self.strictness {
                Strictness::Job => self.findings.problems.push(Problem::new(self.part, message)),
                Strictness::Synced => self.findings.warnings.push(message),
            }
        }
        let unnamed = self.without_effect.saturating_sub(NAMED);
        if unnamed > 0 {
            self.findings.ignored.push(format!("{unnamed} more"));
        }
        self.findings
    }

    /// The whole document's root as the schema wants it; an empty section where the node is null.
    pub fn section_or_default(&mut self, path: &str, node: &Node) -> Json {
        let empty = Node::Section(Default::default());
        let node = if node.is_null() { &empty } else { node };
        let schema = self.schema;
        path.clone_into(&mut self.part);
        self.value(&schema.root, path, node).unwrap_or_default()
    }

    /// A value as `shape` wants it; `None` where it is null or does not fit, which is then noted.
    fn value(&mut self, shape: &Shape, path: &str, node: &Node) -> Option<Json> {
        if node.is_null() {
            return None;
        }
        let schema = self.schema;
        let shape = schema.resolve(shape);
        match (shape, node) {
            (Shape::Section(section), Node::Section(_)) => Some(self.section(section, path, node, None)),
            (Shape::Kinds { tag, kinds }, Node::Section(_)) => self.kind(tag, kinds, path, node),
            (Shape::Map(of), Node::Section(entries)) => {
                let mut values = Map::new();
                for (name, node) in entries {
                    let value = match **of {
                        // Its null is a value of its own, as no key has a default here.
                        Shape::Any => Some(node.to_json()),
                        _ => self.value(of, &join(path, name), node),
                    };
                    values.extend(value.map(|value| (name.clone(), value)));
                }
                Some(Json::Object(values))
            }
            (Shape::List { of, .. }, node) => self.list(shape, of, path, node),
            (Shape::Either(shapes), node) => self.either(shape, shapes, path, node),
            (Shape::Any, node) => Some(node.to_json()),
            (shape, Node::Scalar(scalar)) => {
                let value = scalar_value(shape, scalar);
                if value.is_none() {
                    self.does_not_fit(shape, path, node);
                }
                match shape {
                    Shape::Text(Some(format)) => self.formatted(format, path, value?),
                    _ => value,
                }
            }
            _ => self.does_not_fit(shape, path, node),
        }
    }

    fn does_not_fit(&mut self, shape: &Shape, path: &str, node: &Node) -> Option<Json> {
        self.problem(path, format!("{} is not {}", node.show_quoted(), shape.expected()));
        None
    }

    fn problem(&mut self, path: &str, message: String) {
        self.findings.problems.push(Problem::new(path, message));
    }

    /// A list; a single value is a list of one, unless the number of elements is fixed.
    fn list(&mut self, list: &Shape, of: &Shape, path: &str, node: &Node) -> Option<Json> {
        let Shape::List { min, max, .. } = list else {
            return None;
        };
        let items = match node {
            Node::List(items) => items.as_slice(),
            _ if *max == Some(*min) => return self.does_not_fit(list, path, node),
            single => std::slice::from_ref(single),
        };
        if items.len() < *min || max.is_some_and(|max| items.len() > max) {
            return self.does_not_fit(list, path, node);
        }
        let mut values = vec![];
        for (index, item) in items.iter().enumerate() {
            let path = match node {
                Node::List(_) => format!("{path}[{index}]"),
                _ => path.to_owned(),
            };
            match item.is_null() {
                true => self.problem(&path, format!("null is not {}", of.expected())),
                false => values.extend(self.value(of, &path, item)),
            }
        }
        Some(Json::Array(values))
    }

    fn either(&mut self, either: &Shape, shapes: &[Shape], path: &str, node: &Node) -> Option<Json> {
        let before = self.findings.problems.len();
        let mut of_its_kind = None;
        for shape in shapes {
            let value = self.value(shape, path, node);
            if self.findings.problems.len() == before {
                return value;
            }
            let problems = self.findings.problems.split_off(before);
            if is_of_kind(shape, node) {
                of_its_kind = Some(problems);
            }
        }
        // What is wrong within a section or a list, or with a text, says more than what is allowed there.
        match of_its_kind {
            Some(problems) => {
                self.findings.problems.extend(problems);
                None
            }
            None => self.does_not_fit(either, path, node),
        }
    }

    /// Text whose format the program knows is handed on with its path, so that later errors can name it.
    fn formatted(&mut self, format: &str, path: &str, text: Json) -> Option<Json> {
        let Some(format) = self.formats.iter().find(|known| known.name == format) else {
            return Some(text);
        };
        match (format.check)(path, text.as_str().unwrap_or_default()) {
            Ok(()) => Some(serde_json::json!({ "path": path, "text": text })),
            Err(message) => {
                self.problem(path, message);
                None
            }
        }
    }

    fn kind(&mut self, tag: &str, kinds: &[Kind], path: &str, node: &Node) -> Option<Json> {
        let names: Vec<_> = kinds.iter().map(|kind| kind.name.as_str()).collect();
        let names = names.join(", ");
        let given = node.get(tag).filter(|given| !given.is_null());
        let Some(given) = given else {
            self.problem(&join(path, tag), format!("is missing; it is one of {names}"));
            return None;
        };
        let kind = kinds
            .iter()
            .find(|kind| matches!(given, Node::Scalar(scalar) if scalar.text == kind.name));
        let Some(kind) = kind else {
            // Without a kind, nothing can be said of the other keys.
            self.problem(
                &join(path, tag),
                format!("{} is not one of {names}", given.show_quoted()),
            );
            return None;
        };
        let mut value = self.section(&kind.section, path, node, Some(tag));
        value[tag] = Json::from(kind.name.as_str());
        Some(value)
    }

    /// The entries of a section, those aside that no key of the schema is for.
    fn section(&mut self, section: &Section, path: &str, node: &Node, tag: Option<&str>) -> Json {
        let Node::Section(entries) = node else {
            return Json::Null;
        };
        let mut values = Map::new();
        for (name, node) in entries.iter().filter(|(name, _)| Some(name.as_str()) != tag) {
            let path = join(path, name);
            match section.keys.get(name) {
                Some(key) => {
                    let value = self.value(&key.shape, &path, node);
                    values.extend(value.map(|value| (name.clone(), value)));
                }
                None => match keys().class(&path) {
                    Class::Unknown => self.unknown(&path, section),
                    _ => self.without_effect(&path, node),
                },
            }
        }
        for (name, key) in section.keys.iter().filter(|(_, key)| key.required) {
            if entries.get(name).is_none_or(Node::is_null) {
                let message = format!("is missing; it is {}{}", key.shape.expected(), in_brackets(&key.doc));
                self.problem(&join(path, name), message);
            }
        }
        Json::Object(values)
    }

    /// Notes what is set to other than its default at and below a path that has no effect.
    pub fn without_effect(&mut self, path: &str, node: &Node) {
        if node.is_null() || PYTHONS_OWN.contains(&path) {
            return;
        }
        match (keys().class(path), node) {
            (Class::Accepted(default), node) if default.means_the_same(node) => {}
            (Class::Section | Class::Unknown, Node::Section(entries)) => {
                for (name, node) in entries {
                    self.without_effect(&join(path, name), node);
                }
            }
            (Class::Unknown, _) if path.starts_with("ajet.") => self.unknown(path, &Section::default()),
            _ => {
                self.without_effect += 1;
                if self.without_effect <= NAMED {
                    self.findings.ignored.push(format!("{path} = {}", node.show()));
                }
            }
        }
    }

    fn unknown(&mut self, path: &str, section: &Section) {
        self.unknown += 1;
        if self.unknown > NAMED {
            return;
        }
        let (above, _) = path.rsplit_once('.').unwrap_or_default();
        let siblings: Vec<_> = section.keys.keys().map(|name| join(above, name)).collect();
        let others = keys()
            .paths()
            .filter(|known| path.starts_with("ajet.") && known.starts_with("ajet"));
        let meant = match nearest(path, siblings.iter().map(String::as_str).chain(others)) {
            Some(meant) => format!("; did you mean `{meant}`?"),
            None => String::new(),
        };
        match self.strictness {
            Strictness::Job => self.problem(path, format!("unknown key{meant}")),
            Strictness::Synced => {
                let warning = format!("{path}: unknown key, without effect{meant}");
                self.findings.warnings.push(warning);
            }
        }
    }

    /// Refuses a section beside `ajet` that is probably a misspelt one.
    pub fn misspelt_section(&mut self, name: &str, meant: &str) {
        if self.findings.problems.len() < NAMED {
            self.problem(name, format!("unknown section; did you mean `{meant}`?"));
        }
    }
}

/// A scalar as `shape` wants it.
fn scalar_value(shape: &Shape, scalar: &Scalar) -> Option<Json> {
    match shape {
        Shape::Text(_) => Some(scalar.text.as_str().into()),
        Shape::Choice(choices) => choice(choices, scalar).map(Json::from),
        Shape::Flag => scalar.flag().map(Json::from),
        Shape::Whole { min, max } => {
            let whole = scalar.whole().filter(|whole| within(whole, min, max));
            whole.map(Json::from)
        }
        Shape::Number { min, max } => {
            let number = scalar.number().filter(|number| within(number, min, max));
            number.map(Json::from)
        }
        _ => None,
    }
}

/// The name of a list that a scalar has. Python writes `on` and `off` as true and false.
fn choice<'a>(choices: &'a [Choice], scalar: &Scalar) -> Option<&'a str> {
    let on_or_off = match scalar.flag() {
        Some(true) => "on",
        Some(false) => "off",
        None => "",
    };
    let has_name =
        |choice: &&Choice, name: &str| choice.name == name || choice.aliases.iter().any(|alias| alias == name);
    let exactly = choices.iter().find(|choice| has_name(choice, &scalar.text));
    let choice = exactly.or_else(|| choices.iter().find(|choice| has_name(choice, on_or_off)));
    choice.map(|choice| choice.name.as_str())
}

fn within<T: PartialOrd>(n: &T, min: &Option<T>, max: &Option<T>) -> bool {
    min.as_ref().is_none_or(|min| n >= min) && max.as_ref().is_none_or(|max| n <= max)
}

/// A key's documentation as a remark.
fn in_brackets(doc: &str) -> String {
    match doc.trim_end_matches('.') {
        "" => String::new(),
        doc => format!(" ({doc})"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    use super::super::yaml::parse;
    use super::*;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Rule {
        Fixed { value: f64 },
        Sum(Sum),
    }

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Sum {
        parts: BTreeMap<String, Rule>,
        #[serde(default)]
        #[schemars(range(min = 1, max = 9))]
        times: Option<u64>,
        #[serde(default)]
        free: Map<String, Json>,
    }

    fn rule(yaml: &str) -> Result<Rule, Vec<String>> {
        let fitted = fit(&Schema::of::<Rule>(), "roll.rule", &parse(yaml).unwrap(), &[]);
        fitted.map_err(|problems| problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn kinds_maps_and_recursion_are_read() {
        let yaml = "{type: sum, times: '3', free: {a: null, b: yes, c: 1}, parts: {x: {type: fixed, value: 1e-7}, \
                    y: {type: sum, parts: {}}}}";
        let free = [("a", Json::Null), ("b", json!("yes")), ("c", json!(1))];
        let inner = Sum {
            parts: BTreeMap::new(),
            times: None,
            free: Map::new(),
        };
        let want = Rule::Sum(Sum {
            parts: [
                ("x".into(), Rule::Fixed { value: 1e-7 }),
                ("y".into(), Rule::Sum(inner)),
            ]
            .into(),
            times: Some(3),
            free: free.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        });
        assert_eq!(rule(yaml).unwrap(), want);
    }

    #[test]
    fn problems_below_kinds_and_maps_have_their_paths() {
        let problems =
            rule("{type: sum, times: 10, parts: {x: {type: fixd}, y: {type: fixed}, z: 1}, tims: 1}").unwrap_err();
        assert_eq!(
            problems,
            [
                "roll.rule.times: 10 is not a whole number from 1 to 9",
                "roll.rule.parts.x.type: \"fixd\" is not one of fixed, sum",
                "roll.rule.parts.y.value: is missing; it is a number",
                "roll.rule.parts.z: 1 is not a section whose `type` is one of fixed, sum",
                "roll.rule.tims: unknown key; did you mean `roll.rule.times`?",
            ]
        );
    }
}
