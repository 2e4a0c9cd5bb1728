//! `json.dumps` of Python, byte for byte: what chat templates and models were trained to see.

use serde_json::Value;

/// The arguments of `json.dumps`, with its defaults but for `ensure_ascii`, which chat templates switch off.
#[derive(Clone, Debug)]
pub struct Style {
    /// Whether characters beyond ASCII are escaped.
    pub ensure_ascii: bool,
    /// One item a line, indented by this for each level.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: String,
    /// Between a key and its value.
    pub key_separator: String,
    /// Whether keys are sorted.
    pub sort_keys: bool,
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

/// The text of a value.
pub fn dumps(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64() {
            Some(float) if n.is_f64() => out.push_str(&float_repr(float)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(s) => write_string(out, s, style.ensure_ascii),
        Value::Array(items) => {
            write_items(out, ('[', ']'), items.iter(), style, depth, |out, item| {
                write_value(out, item, style, depth + 1);
            });
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_items(
                out,
                ('{', '}'),
                entries.into_iter(),
                style,
                depth,
                |out, (key, value)| {
                    write_string(out, key, style.ensure_ascii);
                    out.push_str(&style.key_separator);
                    write_value(out, value, style, depth + 1);
                },
            );
        }
    }
}

fn write_items<T>(
    out: &mut String,
    (open, close): (char, char),
    items: impl ExactSizeIterator<Item = T>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, T),
) {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    let empty = items.len() == 0;
    out.push(open);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write(out, item);
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
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
fn float_repr(x: f64) -> String {
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
