//! One value of a YAML document, made to fit what its key takes.
//!
//! Documents come from people and from Python's YAML writer, which disagree with YAML 1.2 on what is a number or a
//! boolean: `1e-6` is text in Python, `on` is a boolean. A value is taken as what its key wants wherever that loses nothing.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_yaml::Value;

use super::keys::{Choice, Kind};

/// Largest magnitude below which every whole number has an `f64`.
const EXACT_WHOLE: f64 = 9_007_199_254_740_992.0;

/// The value as `kind` wants it; `None` where it does not fit. `as_written` gives a scalar's text in the document.
pub(super) fn fit(kind: &Kind, value: &Value, as_written: &dyn Fn() -> Option<String>) -> Option<Value> {
    match kind {
        Kind::Text => text(value, as_written),
        Kind::Choice(choices) => choice(choices, value),
        Kind::Flag => flag(value).map(Value::from),
        Kind::Whole { min, max } => whole(value).filter(|n| within(n, min, max)).map(Value::from),
        Kind::Number { min, max } => number(value).filter(|n| within(n, min, max)).map(Value::from),
        Kind::List { of, len } => {
            let items = match value {
                Value::Sequence(items) => items.iter().map(|item| fit(of, item, &|| None)).collect(),
                _ if len.is_none() => fit(of, value, as_written).map(|item| vec![item]),
                _ => None,
            };
            items
                .filter(|items: &Vec<_>| len.is_none_or(|len| items.len() == len))
                .map(Value::from)
        }
        Kind::TextOrList => match value {
            Value::Sequence(items) => {
                let names: Option<Vec<_>> = items.iter().map(|item| text(item, &|| None)).collect();
                names.map(Value::from)
            }
            _ => text(value, as_written),
        },
    }
}

fn within<T: PartialOrd>(n: &T, min: &Option<T>, max: &Option<T>) -> bool {
    min.as_ref().is_none_or(|min| n >= min) && max.as_ref().is_none_or(|max| n <= max)
}

fn text(value: &Value, as_written: &dyn Fn() -> Option<String>) -> Option<Value> {
    match value {
        Value::String(_) => Some(value.clone()),
        Value::Number(_) | Value::Bool(_) => {
            let written = as_written().filter(|text| serde_yaml::from_str::<Value>(text).is_ok_and(|v| v == *value));
            Some(Value::from(written.unwrap_or_else(|| show(value))))
        }
        _ => None,
    }
}

/// A name of the list. `on` and `off` arrive as booleans from Python.
fn choice(choices: &[Choice], value: &Value) -> Option<Value> {
    let name = match value {
        Value::String(name) => name,
        Value::Bool(true) => "on",
        Value::Bool(false) => "off",
        _ => return None,
    };
    choices
        .iter()
        .find(|choice| choice.name == name)
        .map(|choice| Value::from(choice.name.as_str()))
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            (float.fract() == 0.0 && float.abs() < EXACT_WHOLE).then_some(float as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// Whether two values mean the same: numbers by value, `1e-6` as text or number.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Sequence(a), Value::Sequence(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b || number(a).is_some_and(|number_a| number(b) == Some(number_a)),
    }
}

/// A value as an error shows it: text in quotes, long ones cut.
pub(super) fn show_quoted(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", cut(text)),
        _ => show(value),
    }
}

/// A value on one line.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::String(text) => cut(text),
        Value::Mapping(_) => "a section".into(),
        Value::Sequence(items) => cut(&format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))),
        Value::Tagged(tagged) => show(&tagged.value),
        _ => serde_yaml::to_string(value).unwrap_or_default().trim_end().to_owned(),
    }
}

fn cut(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text of the scalar at a path of a document, before YAML makes a number of it: `1e5` and not `100000.0`.
pub(super) fn as_written(document: &str, path: &str) -> Option<String> {
    let names: Vec<_> = path.split('.').collect();
    At(&names)
        .deserialize(serde_yaml::Deserializer::from_str(document))
        .ok()?
}

/// What is left of the path.
struct At<'p>(&'p [&'p str]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            serde::Deserialize::deserialize(deserializer).map(Some)
        } else {
            deserializer.deserialize_map(self)
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == self.0[0] {
                found = map.next_value_seed(At(&self.0[1..]))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
