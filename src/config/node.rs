//! A YAML document before its keys' types are known.
//!
//! A scalar keeps its text as written. What it means is decided by the key that it is given to ([`super::fit()`]), since
//! people, YAML 1.2 and Python's YAML 1.1 disagree on what `1e-6`, `yes`, `on` and `007` are.

use indexmap::IndexMap;
use serde_json::Value as Json;

/// Largest magnitude below which every whole number has an `f64`.
const EXACT_WHOLE: f64 = 9_007_199_254_740_992.0;

/// A value of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Text, a number, a boolean or null.
    Scalar(Scalar),
    /// A list.
    List(Vec<Node>),
    /// Values by their keys, in the document's order.
    Section(IndexMap<String, Node>),
}

/// A scalar as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its text, without quotes and escapes.
    pub text: String,
    /// Whether it stands in quotes or in a block, or is tagged `!!str`, so that it is text and nothing else.
    pub quoted: bool,
}

impl Default for Node {
    fn default() -> Self {
        Self::null()
    }
}

impl Node {
    /// Null.
    pub fn null() -> Self {
        Self::plain("")
    }

    /// A scalar without quotes.
    pub fn plain(text: impl Into<String>) -> Self {
        let (text, quoted) = (text.into(), false);
        Self::Scalar(Scalar { text, quoted })
    }

    /// Whether it is null, which stands for a key's default.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Scalar(scalar) if scalar.is_null())
    }

    /// The value of a key; `None` where this is not a section.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Section(entries) => entries.get(key),
            _ => None,
        }
    }

    /// Sets the value at a dotted path, creating the sections on the way. Anything else on the way is replaced.
    pub fn set(&mut self, path: &str, value: Node) {
        let mut node = self;
        for name in path.split('.') {
            if !matches!(node, Self::Section(_)) {
                *node = Self::Section(IndexMap::new());
            }
            let Self::Section(entries) = node else {
                return; // it has just been made one
            };
            node = entries.entry(name.to_owned()).or_default();
        }
        *node = value;
    }

    /// Merges `upper` into this node, key by key; a null in `upper` changes nothing.
    pub fn overlay(&mut self, upper: Node) {
        match (self, upper) {
            (_, upper) if upper.is_null() => {}
            (Self::Section(lower), Self::Section(upper)) => {
                for (key, value) in upper {
                    lower.entry(key).or_default().overlay(value);
                }
            }
            (lower, upper) => *lower = upper,
        }
    }

    /// The value as JSON by YAML 1.2's core schema, for keys that take anything.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Scalar(scalar) => scalar.to_json(),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Section(entries) => {
                let entries = entries.iter().map(|(key, value)| (key.clone(), value.to_json()));
                Json::Object(entries.collect())
            }
        }
    }

    /// The value on one line, cut to a length that fits a message.
    pub fn show(&self) -> String {
        match self {
            Self::Scalar(scalar) if scalar.is_null() => "null".into(),
            Self::Scalar(scalar) => cut(&scalar.text),
            Self::List(items) => cut(&format!(
                "[{}]",
                items.iter().map(Self::show).collect::<Vec<_>>().join(", ")
            )),
            Self::Section(_) => "a section".into(),
        }
    }

    /// As [`Node::show`], with text in quotes.
    pub fn show_quoted(&self) -> String {
        match self {
            Self::Scalar(scalar) if scalar.is_text() => format!("{:?}", cut(&scalar.text)),
            _ => self.show(),
        }
    }

    /// Whether two values mean the same to a key that is not typed: numbers and booleans by value, the rest by text.
    pub fn means_the_same(&self, other: &Node) -> bool {
        match (self, other) {
            (Self::Scalar(a), Self::Scalar(b)) => a.means_the_same(b),
            (Self::List(a), Self::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.means_the_same(b)),
            _ => self == other,
        }
    }
}

impl Scalar {
    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        !self.quoted && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// As a boolean.
    pub fn flag(&self) -> Option<bool> {
        match self.text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    /// As a whole number: decimal, `0x…`, `0o…`, or a float without a fraction.
    pub fn whole(&self) -> Option<i64> {
        let text = self.text.trim();
        let float = || self.float().filter(|n| n.fract() == 0.0 && n.abs() < EXACT_WHOLE);
        integer(text).or_else(|| float().map(|float| float as i64))
    }

    /// As a finite number.
    pub fn number(&self) -> Option<f64> {
        self.float()
            .or_else(|| integer(self.text.trim()).map(|whole| whole as f64))
    }

    fn float(&self) -> Option<f64> {
        // `inf` and `nan`, which Rust reads too, are not finite.
        self.text.trim().parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// Whether YAML 1.2's core schema takes it for text.
    fn is_text(&self) -> bool {
        let infinite =
            ["inf", "Inf", "INF"].contains(&self.text.trim_start_matches(['-', '+']).trim_start_matches('.'));
        let not_a_number = [".nan", ".NaN", ".NAN"].contains(&self.text.as_str());
        self.to_json().is_string() && (self.quoted || !(infinite && self.text.contains('.') || not_a_number))
    }

    fn to_json(&self) -> Json {
        let core_boolean = ["true", "True", "TRUE", "false", "False", "FALSE"].contains(&self.text.as_str());
        let numeric = self.text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        match (self.flag(), integer(&self.text), self.float()) {
            _ if self.quoted => self.text.as_str().into(),
            _ if self.is_null() => Json::Null,
            (Some(flag), ..) if core_boolean => flag.into(),
            (_, Some(whole), _) if numeric => whole.into(),
            (.., Some(float)) if numeric => float.into(),
            _ => self.text.as_str().into(),
        }
    }

    fn means_the_same(&self, other: &Scalar) -> bool {
        let same_number = self.number().is_some_and(|number| other.number() == Some(number));
        let same_flag = self.flag().is_some_and(|flag| other.flag() == Some(flag));
        self.is_null() && other.is_null() || same_number || same_flag || self.text == other.text
    }
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match (digits.strip_prefix("0x"), digits.strip_prefix("0o")) {
        (Some(hexadecimal), _) => i64::from_str_radix(hexadecimal, 16).ok()?,
        (_, Some(octal)) => i64::from_str_radix(octal, 8).ok()?,
        _ => return text.parse().ok(),
    };
    (!digits[2..].starts_with(['-', '+'])).then_some(if negative { -magnitude } else { magnitude })
}

fn cut(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::yaml::parse;
    use super::*;

    fn scalar(text: &str) -> Scalar {
        match parse(text).unwrap() {
            Node::Scalar(scalar) => scalar,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn whole_numbers() {
        for (text, want) in [
            ("8", Some(8)),
            ("'64'", Some(64)),
            ("8.0", Some(8)),
            ("1e3", Some(1000)),
            ("-1", Some(-1)),
            ("+7", Some(7)),
            ("0x10", Some(16)),
            ("-0o17", Some(-15)),
            ("0x-1", None),
            ("2.5", None),
            ("1e30", None),
            ("many", None),
            ("1_000", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("18446744073709551615", None),
            (".inf", None),
        ] {
            assert_eq!(scalar(text).whole(), want, "{text}");
        }
    }

    #[test]
    fn numbers_are_finite() {
        for (text, want) in [
            ("1e-6", Some(1e-6)),
            ("'1.0e-06'", Some(1e-6)),
            ("3", Some(3.0)),
            ("0x10", Some(16.0)),
            (".5", Some(0.5)),
            (".inf", None),
            ("inf", None),
            ("nan", None),
            ("1e400", None),
            ("''", None),
        ] {
            assert_eq!(scalar(text).number(), want, "{text}");
        }
    }

    #[test]
    fn anything_is_json_by_the_core_schema() {
        let node =
            parse("{a: 1, b: '1', c: yes, d: true, e: ~, f: [1.5, 1e3, inf, .inf, 007], g: {h: -0x1F}}").unwrap();
        let want = json!({
            "a": 1, "b": "1", "c": "yes", "d": true, "e": null, "f": [1.5, 1000.0, "inf", ".inf", 7], "g": {"h": -31}
        });
        assert_eq!(node.to_json(), want);
    }

    #[test]
    fn messages_show_text_in_quotes_and_the_rest_bare() {
        for (text, want) in [
            ("many", "\"many\""),
            ("'8'", "\"8\""),
            ("8", "8"),
            (".nan", ".nan"),
            ("-.inf", "-.inf"),
            ("inf", "\"inf\""),
            ("true", "true"),
            ("~", "null"),
            ("[a, 1]", "[a, 1]"),
            ("{a: 1}", "a section"),
        ] {
            assert_eq!(parse(text).unwrap().show_quoted(), want, "{text}");
        }
        assert_eq!(Node::plain("x".repeat(100)).show().chars().count(), 81);
    }

    #[test]
    fn a_value_is_set_at_its_path() {
        let mut node = parse("{a: {b: 1, c: 2}, d: 3}").unwrap();
        node.set("a.b", parse("[4]").unwrap());
        node.set("d.e.f", parse("5").unwrap());
        node.set("a.c", Node::null());
        assert_eq!(
            node.to_json(),
            json!({"a": {"b": [4], "c": null}, "d": {"e": {"f": 5}}})
        );
    }

    #[test]
    fn values_mean_the_same_whatever_their_spelling() {
        for (a, b, same) in [
            ("1e-6", "'1.0e-06'", true),
            ("false", "'off'", true),
            ("null", "~", true),
            ("null", "0", false),
            ("[1, a]", "[1.0, 'a']", true),
            ("[1]", "[1, 2]", false),
            ("a", "b", false),
        ] {
            assert_eq!(
                parse(a).unwrap().means_the_same(&parse(b).unwrap()),
                same,
                "{a} and {b}"
            );
        }
    }
}
