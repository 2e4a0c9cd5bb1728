//! What the texts of a CSV column are: numbers, truth values or texts.

use serde_json::{Number, Value};

/// Texts that stand for no value, as pandas has them.
const MISSING: [&str; 18] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan",
];

/// The type of a column, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// No value so far.
    Missing,
    /// `True` and `False`.
    Flag,
    /// Integers of up to 64 bits.
    Integer,
    /// Numbers.
    Number,
    /// Anything.
    Text,
}

impl Type {
    /// The type of a column that also holds `text`.
    pub fn with(self, text: &str) -> Self {
        match (self, Self::of(text)) {
            (known, Self::Missing) => known,
            (Self::Missing, other) => other,
            (known, other) if known == other => known,
            (Self::Integer | Self::Number, Self::Integer | Self::Number) => Self::Number,
            _ => Self::Text,
        }
    }

    /// The narrowest type of one value.
    fn of(text: &str) -> Self {
        if is_missing(text) {
            return Self::Missing;
        }
        let trimmed = text.trim();
        let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
        let is_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match trimmed {
            _ if flag(text).is_some() => Self::Flag,
            // More digits would not survive as a number.
            _ if is_digits && trimmed.parse::<i64>().is_err() && trimmed.parse::<u64>().is_err() => Self::Text,
            _ if is_digits => Self::Integer,
            _ if number(trimmed).is_some() => Self::Number,
            _ => Self::Text,
        }
    }

    /// A value of a column of this type. A text that does not fit, beyond the rows that the type was inferred from,
    /// stays text.
    pub fn value(self, text: &str) -> Value {
        if is_missing(text) {
            return Value::Null;
        }
        let value = match self {
            Self::Missing | Self::Text => None,
            Self::Flag => flag(text).map(Value::Bool),
            Self::Integer | Self::Number => number(text.trim()),
        };
        value.unwrap_or_else(|| text.into())
    }
}

fn is_missing(text: &str) -> bool {
    MISSING.contains(&text) || text == "null"
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "True" | "TRUE" | "true" => Some(true),
        "False" | "FALSE" | "false" => Some(false),
        _ => None,
    }
}

/// A number with the digits that it is written with, where JSON can write it so; null for infinity.
fn number(text: &str) -> Option<Value> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if !text.starts_with(['+', '-']) && !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.') {
        return None;
    }
    if let Ok(number) = serde_json::from_str::<Number>(text) {
        return Some(Value::Number(number));
    }
    if let Ok(integer) = text.parse::<i64>() {
        return Some(integer.into());
    }
    let float: f64 = text.parse().ok()?;
    Some(Number::from_f64(float).map_or(Value::Null, Value::Number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_types_that_pandas_tells() {
        for (texts, kind, values) in [
            (vec!["1", "-2", "+3", " 4"], Type::Integer, "[1,-2,3,4]"),
            (vec!["007", "8"], Type::Integer, "[7,8]"),
            (vec!["1", "", "3"], Type::Integer, "[1,null,3]"),
            (vec!["18446744073709551615"], Type::Integer, "[18446744073709551615]"),
            (vec!["99999999999999999999"], Type::Text, "[\"99999999999999999999\"]"),
            (vec!["1", "2.50"], Type::Number, "[1,2.50]"),
            (vec![".5", "5.", "1e5"], Type::Number, "[0.5,5.0,1e+5]"),
            (vec!["inf", "1"], Type::Number, "[null,1]"),
            (vec!["True", "false"], Type::Flag, "[true,false]"),
            (vec!["True", "1"], Type::Text, "[\"True\",\"1\"]"),
            (vec!["a", "NA", "None", "null"], Type::Text, "[\"a\",null,null,null]"),
            (vec!["1", "1,000"], Type::Text, "[\"1\",\"1,000\"]"),
            (vec!["", "NaN"], Type::Missing, "[null,null]"),
            (vec!["-", "."], Type::Text, "[\"-\",\".\"]"),
        ] {
            let found = texts.iter().fold(Type::Missing, |kind, text| kind.with(text));
            assert_eq!(found, kind, "{texts:?}");
            let read: Value = texts.iter().map(|text| kind.value(text)).collect();
            assert_eq!(read.to_string(), values, "{texts:?}");
        }
    }

    #[test]
    fn a_text_among_numbers_that_was_not_seen_stays_text() {
        assert_eq!(Type::Integer.value("12a"), "12a");
        assert_eq!(Type::Flag.value("maybe"), "maybe");
    }
}
