//! Values as Python prints and reads them.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::objects::{Digits, Generator, Range, View};
use super::python_json::float_repr;
use super::{MAX_DEPTH, charge, invalid, is_tests, usable};

/// `str(value)`.
pub(super) fn text(state: &State, value: &Value) -> Result<String, Error> {
    match usable(state, value)?.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => repr(state, value),
    }
}

/// `repr(value)`.
pub(super) fn repr(state: &State, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(state, &mut out, value, 0)?;
    Ok(out)
}

fn write_repr(state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    charge(state, 0)?;
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value is nested deeper than {MAX_DEPTH} levels")));
    }
    match usable(state, value)?.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        _ if value.downcast_object_ref::<Range>().is_some() => out.push_str(&value.to_string()),
        _ if value.downcast_object_ref::<Generator>().is_some() => {
            return Err(invalid(
                "a generator is not printed\nhint: make it a list with the filter `list`",
            ));
        }
        ValueKind::Plain if value.downcast_object_ref::<Digits>().is_none() => {
            return Err(invalid("a function or method is not printed"));
        }
        ValueKind::Map if is_tests::is_namespace(value) || is_tests::is_loop(value) => {
            return Err(invalid("`namespace` and `loop` are not printed"));
        }
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            charge(state, text.len())?;
            write_string(out, text);
        }
        ValueKind::Map => {
            let entries = value.try_iter()?.checked().map(|key| {
                let key = key?;
                let item = value.get_item(&key)?;
                Ok(vec![key, item])
            });
            write_items(state, out, ("{", "}"), entries, depth)?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().map(|item| Ok(vec![item?]));
            match value.downcast_object_ref::<View>() {
                Some(view) => {
                    out.push_str(view.name);
                    write_items(state, out, ("([", "])"), items, depth)?;
                }
                None if value.is_tuple() && value.len() == Some(1) => {
                    write_items(state, out, ("(", ",)"), items, depth)?
                }
                None if value.is_tuple() => write_items(state, out, ("(", ")"), items, depth)?,
                None => write_items(state, out, ("[", "]"), items, depth)?,
            }
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_items(
    state: &State,
    out: &mut String,
    (open, close): (&str, &str),
    items: impl Iterator<Item = Result<Vec<Value>, Error>>,
    depth: usize,
) -> Result<(), Error> {
    out.push_str(open);
    for (place, parts) in items.enumerate() {
        if place > 0 {
            out.push_str(", ");
        }
        for (part, value) in parts?.iter().enumerate() {
            if part > 0 {
                out.push_str(": ");
            }
            write_repr(state, out, value, depth + 1)?;
        }
    }
    out.push_str(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{3000}' | '\u{feff}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `repr(float)`.
pub(super) fn float(number: f64) -> String {
    float_repr(number)
}

/// A number from its JSON text: integers of any length stay as they are.
pub(super) fn number(text: &str) -> Value {
    if text.contains(['.', 'e', 'E']) {
        return text.parse::<f64>().map_or_else(|_| Value::from(text), Value::from);
    }
    match (text.parse::<i128>(), text.parse::<u128>()) {
        (Ok(number), _) => Value::from(number),
        (_, Ok(number)) => Value::from(number),
        _ => Value::from_object(Digits(text.to_owned())),
    }
}

/// `int(text, base)`; `None` where Python raises a `ValueError`.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["\0"; 2],
    };
    let digits = prefix
        .iter()
        .find_map(|prefix| digits.strip_prefix(prefix))
        .unwrap_or(digits);
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(&without_underscores(digits)?, base).ok()?;
    Some(if negative { -number } else { number })
}

/// `float(text)`; `None` where Python raises a `ValueError`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// Underscores may stand between two digits.
fn without_underscores(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric);
    let misplaced = |at: usize| bytes[at] == b'_' && !(is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)));
    (!(0..bytes.len()).any(misplaced)).then(|| digits.replace('_', ""))
}

/// `text.splitlines(keepends)`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let (mut start, mut chars) = (0, text.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        let is_end = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !is_end {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}
