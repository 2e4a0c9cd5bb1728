//! Makes everything that a server or a file says printable, before it becomes typed.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::terminal;

/// Reads a value whose texts are shown on one line each.
///
/// # Errors
/// It is not such a value.
pub fn lines<T: DeserializeOwned>(mut value: Value) -> serde_json::Result<T> {
    replace(&mut value, &|text| match terminal::is_one_line(text) {
        true => None,
        false => Some(terminal::one_line(text)),
    });
    serde_json::from_value(value)
}

/// Reads a value whose texts keep their lines.
///
/// # Errors
/// It is not such a value.
pub fn texts<T: DeserializeOwned>(mut value: Value) -> serde_json::Result<T> {
    replace(&mut value, &|text| match terminal::printable(text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text),
    });
    serde_json::from_value(value)
}

/// Replaces the texts for which `printable` has another one. Almost all are printable already, several times a second.
fn replace(value: &mut Value, printable: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(other) = printable(text) {
                *text = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, printable)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| replace(field, printable));
            if !fields.keys().all(|name| terminal::is_one_line(name)) {
                let all = std::mem::take(fields).into_iter();
                *fields = all.map(|(name, field)| (terminal::one_line(&name), field)).collect();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Seen with bidi overrides in an engine's detail and in names of tasks.
    #[test]
    fn no_text_of_a_server_steers_the_terminal() {
        let hostile = || json!({"t\u{1b}]52;c;x\u{7}": [1.5, "a\u{202e}b\nc\u{200b}"]});
        let read: Value = lines(hostile()).unwrap();
        assert_eq!(read, json!({"t\\u{1b}]52;c;x\\u{7}": [1.5, "a\\u{202e}b c\\u{200b}"]}));
        let read: Value = texts(hostile()).unwrap();
        assert_eq!(read, json!({"t\\u{1b}]52;c;x\\u{7}": [1.5, "a\\u{202e}b\nc\\u{200b}"]}));
    }
}
