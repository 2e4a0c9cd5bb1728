//! Which configuration keys exist: those that have an effect, from the schema, and those that AgentJet and verl know
//! and that have none here, from an embedded table with their defaults.

use std::sync::LazyLock;

use indexmap::IndexMap;
use schemars::generate::SchemaSettings;
use serde_json::Value as Json;
use serde_yaml::Value;

use super::schema::Ajet;

/// Keys without effect, with AgentJet's swarm defaults.
const AGENTJET_DEFAULTS: &str = include_str!("../../config/agentjet_defaults.yaml");

/// What values a key takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these names.
    Choice(Vec<Choice>),
    /// True or false.
    Flag,
    /// A whole number.
    Whole {
        /// Smallest value, where there is one.
        min: Option<i64>,
        /// Largest value, where there is one.
        max: Option<i64>,
    },
    /// A finite number.
    Number {
        /// Smallest value, where there is one.
        min: Option<f64>,
        /// Largest value, where there is one.
        max: Option<f64>,
    },
    /// Values of one kind.
    List {
        /// Of each element.
        of: Box<Kind>,
        /// How many elements, where that is fixed.
        len: Option<usize>,
    },
    /// One name or a list of names.
    TextOrList,
}

/// A name that a key takes as its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// As written in the configuration.
    pub name: String,
    /// What it means.
    pub doc: String,
}

impl Kind {
    /// What is allowed, as an error says it after "is not".
    pub fn expected(&self) -> String {
        match self {
            Self::Text => "text".into(),
            Self::Choice(choices) => {
                let names: Vec<_> = choices.iter().map(|choice| choice.name.as_str()).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Flag => "true or false".into(),
            Self::Whole { min, max } => format!("a whole number{}", range(*min, *max)),
            Self::Number { min, max } => format!("a number{}", range(*min, *max)),
            Self::List { of, len } => {
                let each = of.expected();
                match len {
                    Some(len) => format!("a list of {len}, each {each}"),
                    None => format!("a list, each element {each}"),
                }
            }
            Self::TextOrList => "a name or a list of names".into(),
        }
    }
}

fn range(min: Option<impl std::fmt::Debug>, max: Option<impl std::fmt::Debug>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!(" from {min:?} to {max:?}"),
        (Some(min), None) => format!(" of {min:?} or more"),
        (None, Some(max)) => format!(" of {max:?} or less"),
        (None, None) => String::new(),
    }
}

/// A key that has an effect.
#[derive(Clone, Debug)]
pub struct UsedKey {
    /// What it takes.
    pub kind: Kind,
    /// Its value where none is given; null where it follows from others.
    pub default: Value,
    /// What it does.
    pub doc: String,
}

/// What a path of the configuration is.
#[derive(Clone, Copy, Debug)]
pub enum Class<'a> {
    /// Holds other keys.
    Section,
    /// Has an effect.
    Used(&'a UsedKey),
    /// Is accepted without effect; its default.
    Accepted(&'a Value),
    /// Is not known.
    Unknown,
}

/// Every known key by its dotted path, such as `ajet.rollout.num_repeat`.
#[derive(Debug)]
pub struct Keys {
    /// Those that have an effect, in the schema's order.
    pub used: IndexMap<String, UsedKey>,
    /// Those that have none, with their defaults.
    pub accepted: IndexMap<String, Value>,
    /// What the sections hold, in the schema's order; nothing for those that have no effect.
    pub sections: IndexMap<String, String>,
}

/// The table of keys, made once.
pub fn keys() -> &'static Keys {
    static KEYS: LazyLock<Keys> = LazyLock::new(Keys::new);
    &KEYS
}

impl Keys {
    fn new() -> Self {
        let schema = SchemaSettings::default()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator()
            .into_root_schema_for::<Ajet>();
        let mut keys = Self {
            used: IndexMap::new(),
            accepted: IndexMap::new(),
            sections: IndexMap::new(),
        };
        keys.add_used("ajet", schema.as_value());
        // A test loads the table, so it parses.
        let accepted: Value = serde_yaml::from_str(AGENTJET_DEFAULTS).unwrap_or_default();
        keys.add_accepted("", &accepted);
        keys
    }

    fn add_used(&mut self, path: &str, schema: &Json) {
        if let Some(properties) = schema["properties"].as_object() {
            self.sections.insert(path.to_owned(), text(schema, "description"));
            for (name, schema) in properties {
                self.add_used(&join(path, name), schema);
            }
            return;
        }
        let key = UsedKey {
            kind: kind(schema),
            // JSON is YAML.
            default: serde_yaml::from_str(&schema["default"].to_string()).unwrap_or_default(),
            doc: text(schema, "description"),
        };
        self.used.insert(path.to_owned(), key);
    }

    fn add_accepted(&mut self, path: &str, value: &Value) {
        match value {
            Value::Mapping(map) if !map.is_empty() => {
                self.sections.entry(path.to_owned()).or_default();
                for (name, value) in map {
                    self.add_accepted(&join(path, name.as_str().unwrap_or_default()), value);
                }
            }
            leaf => {
                self.accepted.insert(path.to_owned(), leaf.clone());
            }
        }
    }

    /// What `path` is.
    pub fn class(&self, path: &str) -> Class<'_> {
        if self.sections.contains_key(path) {
            Class::Section
        } else if let Some(key) = self.used.get(path) {
            Class::Used(key)
        } else if let Some(default) = self.accepted.get(path) {
            Class::Accepted(default)
        } else {
            Class::Unknown
        }
    }

    /// Whether a key of this section has an effect.
    pub fn has_used(&self, section: &str) -> bool {
        self.children(section).any(|path| self.used.contains_key(path))
    }

    /// Names of the used keys and sections right below a section.
    pub fn names_in<'a>(&'a self, section: &'a str) -> Vec<&'a str> {
        let mut names: Vec<_> = self
            .children(section)
            .filter(|path| self.used.contains_key(*path))
            .filter_map(|path| path[section.len() + 1..].split('.').next())
            .collect();
        names.dedup();
        names
    }

    fn children<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a str> {
        let below = move |path: &&str| path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        self.used
            .keys()
            .chain(self.accepted.keys())
            .map(String::as_str)
            .filter(below)
    }

    /// The known key or section that an unknown path was most likely meant to be.
    pub fn nearest(&self, path: &str) -> Option<&str> {
        let used = self.used.keys().map(String::as_str);
        let sections = self.sections.keys().map(String::as_str);
        let accepted = self.accepted.keys().map(String::as_str);
        let known = used.chain(sections).chain(accepted);
        nearest(path, known.filter(|known| known.starts_with("ajet")))
    }
}

/// The candidate that a misspelt dotted path was most likely meant to be: the same name in another section, or else
/// the most similar path, if any is similar.
pub fn nearest<'a>(path: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |candidate: &str| {
        let names = strsim::normalized_damerau_levenshtein(leaf(path), leaf(candidate));
        let paths = strsim::normalized_damerau_levenshtein(path, candidate);
        if names < 0.6 { 0.0 } else { names + paths }
    };
    candidates
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.0)
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, candidate)| candidate)
}

fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// `section.name`; just `name` at the top.
pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() {
        name.to_owned()
    } else {
        format!("{section}.{name}")
    }
}

fn kind(schema: &Json) -> Kind {
    if let Some(choices) = schema["oneOf"].as_array() {
        return Kind::Choice(choices.iter().map(choice).collect());
    }
    if schema["anyOf"].is_array() {
        return Kind::TextOrList;
    }
    // An optional key has the types `[T, "null"]`.
    let name = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match name {
        Some("boolean") => Kind::Flag,
        Some("integer") => Kind::Whole {
            min: schema["minimum"].as_i64(),
            max: schema["maximum"].as_i64(),
        },
        Some("number") => Kind::Number {
            min: schema["minimum"].as_f64(),
            max: schema["maximum"].as_f64(),
        },
        Some("array") => Kind::List {
            of: Box::new(kind(&schema["items"])),
            len: schema["maxItems"].as_u64().map(|len| len as usize),
        },
        _ => Kind::Text,
    }
}

fn choice(schema: &Json) -> Choice {
    Choice {
        name: text(schema, "const"),
        doc: text(schema, "description"),
    }
}

/// A field's text on one line.
fn text(schema: &Json, field: &str) -> String {
    schema[field].as_str().unwrap_or_default().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_and_accepted_keys_do_not_overlap() {
        let keys = keys();
        assert!(keys.accepted.len() > 500, "{}", keys.accepted.len());
        for path in keys.accepted.keys() {
            assert!(!keys.used.contains_key(path), "{path} has an effect");
            assert!(!keys.sections.contains_key(path), "{path} is a section");
        }
    }

    #[test]
    fn kinds_come_from_the_schema() {
        let kind = |path: &str| keys().used[path].kind.clone();
        let whole = |min, max| Kind::Whole { min, max };
        assert_eq!(kind("ajet.experiment_name"), Kind::Text);
        assert_eq!(kind("ajet.rollout.num_repeat"), whole(Some(1), Some(100_000)));
        assert_eq!(kind("ajet.rollout.max_model_len"), whole(Some(1), Some(20_000_000)));
        assert_eq!(kind("ajet.trainer_common.save_freq"), whole(None, None));
        let lr = Kind::Number {
            min: Some(0.0),
            max: Some(1000.0),
        };
        assert_eq!(kind("ajet.trainer_common.optim.lr"), lr);
        assert_eq!(kind("ajet.trainer_common.use_kl_loss"), Kind::Flag);
        assert_eq!(kind("ajet.lora.target_modules"), Kind::TextOrList);
        let betas = Kind::List {
            of: Box::new(Kind::Number { min: None, max: None }),
            len: Some(2),
        };
        assert_eq!(kind("ajet.trainer_common.optim.betas"), betas);
        assert!(matches!(kind("ajet.trainer_common.loss_agg_mode"), Kind::Choice(c) if c.len() == 3));
    }

    #[test]
    fn every_used_key_is_documented() {
        for (path, key) in &keys().used {
            assert!(!key.doc.is_empty(), "{path}");
        }
    }

    #[test]
    fn misspelt_keys_find_the_one_that_was_meant() {
        let cases = [
            ("ajet.rollout.num_repeats", Some("ajet.rollout.num_repeat")),
            ("ajet.rollout.train_batch_size", Some("ajet.data.train_batch_size")),
            ("ajet.trainer_common.lr", Some("ajet.trainer_common.optim.lr")),
            ("ajet.train_common", Some("ajet.trainer_common")),
            ("ajet.modle", Some("ajet.model")),
            (
                "ajet.swarm_mode_sample_colection_method",
                Some("ajet.swarm_mode_sample_collection_method"),
            ),
            ("ajet.zzz", None),
        ];
        for (given, meant) in cases {
            assert_eq!(keys().nearest(given), meant, "{given}");
        }
    }
}
