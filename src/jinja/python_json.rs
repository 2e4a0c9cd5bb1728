//! `json.dumps` of Python, byte for byte: what chat templates and models were trained to see.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::MAX_DEPTH;
use super::objects::Digits;

/// The arguments of `json.dumps`, with its defaults but for `ensure_ascii`, which chat templates switch off.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Whether characters beyond ASCII are escaped.
    pub(super) ensure_ascii: bool,
    /// One item a line, indented by this for each level.
    pub(super) indent: Option<String>,
    /// Between items.
    pub(super) item_separator: String,
    /// Between a key and its value.
    pub(super) key_separator: String,
    /// Whether keys are sorted.
    pub(super) sort_keys: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

/// Returns the text of a value. `charge` receives the number of bytes about to be written, and may refuse them.
///
/// # Errors
/// Fails for a value that JSON does not have, one nested deeper than 100 levels, or if `charge` does.
pub(super) fn dumps(value: &Value, style: &Style, charge: &Charge<'_>) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, style, charge, 0)?;
    Ok(out)
}

/// Pays for bytes.
pub(super) type Charge<'a> = dyn Fn(usize) -> Result<(), Error> + 'a;

fn write_value(out: &mut String, value: &Value, style: &Style, charge: &Charge<'_>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(refused(format!(
            "tojson: a value is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    charge(style.indent.as_ref().map_or(0, String::len).saturating_mul(depth + 1))?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            charge(text.len())?;
            write_string(out, text, style.ensure_ascii);
        }
        ValueKind::Seq => write_list(out, value, style, charge, depth)?,
        ValueKind::Map => {
            let mut entries = Vec::with_capacity(value.len().unwrap_or(0));
            for key in value.try_iter()?.checked() {
                let key = key?;
                let item = value.get_item(&key)?;
                entries.push((key_text(&key)?, item));
            }
            if style.sort_keys {
                entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            write_items(
                out,
                ('{', '}'),
                entries.into_iter(),
                style,
                depth,
                |out, (key, item)| {
                    charge(key.len())?;
                    write_string(out, &key, style.ensure_ascii);
                    out.push_str(&style.key_separator);
                    write_value(out, &item, style, charge, depth + 1)
                },
            )?;
        }
        ValueKind::Plain if value.downcast_object_ref::<Digits>().is_some() => out.push_str(&value.to_string()),
        kind => {
            return Err(refused(format!(
                "tojson: a value of kind {kind} is not JSON serializable"
            )));
        }
    }
    Ok(())
}

fn write_list(out: &mut String, value: &Value, style: &Style, charge: &Charge<'_>, depth: usize) -> Result<(), Error> {
    let items = value.try_iter()?.checked();
    write_items(out, ('[', ']'), items, style, depth, |out, item| {
        write_value(out, &item?, style, charge, depth + 1)
    })
}

fn write_number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match float {
            f64::INFINITY => out.push_str("Infinity"),
            f64::NEG_INFINITY => out.push_str("-Infinity"),
            float if float.is_nan() => out.push_str("NaN"),
            float => out.push_str(&float_repr(float)),
        },
        _ => out.push_str(&value.to_string()),
    }
}

/// Keys that are no strings become their JSON text.
fn key_text(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(&mut text, key),
        kind => {
            return Err(refused(format!(
                "tojson: a key must be a string or number, not a {kind}"
            )));
        }
    }
    Ok(text)
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn write_items<T>(
    out: &mut String,
    (open, close): (char, char),
    items: impl Iterator<Item = T>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    let mut empty = true;
    out.push(open);
    for item in items {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(x: f64) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dumps(value: &serde_json::Value, style: &Style) -> String {
        super::dumps(&crate::jinja::templates::value(value), style, &|_| Ok(())).unwrap()
    }

    #[test]
    fn as_python_prints_it() {
        // each right side is what `json.dumps(..., ensure_ascii=False)` prints in Python 3
        let cases = [
            (
                json!({"a": [1, 2.0, true, null], "b": {}}),
                r#"{"a": [1, 2.0, true, null], "b": {}}"#,
            ),
            (json!([]), "[]"),
            (
                json!("é 漢 \u{7f} < & ' \" \\ \n \u{1}"),
                "\"é 漢 \u{7f} < & ' \\\" \\\\ \\n \\u0001\"",
            ),
            (
                json!([1e16, 1e15, 1e-4, 1e-5, 1.5e300, -0.1]),
                "[1e+16, 1000000000000000.0, 0.0001, 1e-05, 1.5e+300, -0.1]",
            ),
            (
                json!([u64::MAX, i64::MIN, 0.0]),
                "[18446744073709551615, -9223372036854775808, 0.0]",
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(dumps(&value, &Style::default()), expected);
        }
    }

    #[test]
    fn every_argument() {
        let value = json!({"b": [1, {"c": []}], "a": "é😀\u{7f}"});
        let indented = Style {
            indent: Some("  ".into()),
            item_separator: ",".into(),
            ..Style::default()
        };
        let expected = "{\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ],\n  \"a\": \"é😀\u{7f}\"\n}";
        assert_eq!(dumps(&value, &indented), expected);
        let compact = Style {
            ensure_ascii: true,
            sort_keys: true,
            item_separator: ",".into(),
            key_separator: ":".into(),
            ..Style::default()
        };
        assert_eq!(
            dumps(&value, &compact),
            r#"{"a":"\u00e9\ud83d\ude00\u007f","b":[1,{"c":[]}]}"#
        );
    }
}
