//! Makes everything that a server or a file says printable, before it becomes typed.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::terminal;

/// Reads a value whose texts are shown on one line each.
///
/// # Errors
/// It is not such a value.
pub fn lines<T: DeserializeOwned>(mut value: Value) -> serde_json::Result<T> {
    replace(&mut value, &terminal::one_line);
    serde_json::from_value(value)
}

/// Reads a value whose texts keep their lines.
///
/// # Errors
/// It is not such a value.
pub fn texts<T: DeserializeOwned>(mut value: Value) -> serde_json::Result<T> {
    replace(&mut value, &|text| terminal::printable(text).into_owned());
    serde_json::from_value(value)
}

fn replace(value: &mut Value, printable: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, printable)),
        Value::Object(fields) => {
            let all = std::mem::take(fields).into_iter().map(|(name, mut field)| {
                replace(&mut field, printable);
                (terminal::one_line(&name), field)
            });
            *fields = all.collect();
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
