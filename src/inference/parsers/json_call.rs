//! A tool call as a JSON object: `{"name": …, "arguments": {…}}`, or `parameters` instead.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::ParsedCall;

#[derive(Deserialize)]
struct JsonCall {
    name: String,
    #[serde(alias = "parameters")]
    arguments: Value,
}

impl JsonCall {
    /// None where the arguments are not an object. Some models write it as a string that holds one.
    fn parsed(self) -> Option<ParsedCall> {
        let arguments = match self.arguments {
            Value::Object(arguments) => arguments,
            Value::String(text) => serde_json::from_str::<Map<_, _>>(&text).ok()?,
            _ => return None,
        };
        (!self.name.is_empty()).then_some(ParsedCall {
            name: self.name,
            arguments: Value::Object(arguments).to_string(),
        })
    }
}

/// The call that `text` is, white space around it aside.
pub fn parse_one(text: &str) -> Option<ParsedCall> {
    serde_json::from_str::<JsonCall>(text).ok()?.parsed()
}

/// The calls of a JSON list.
pub fn parse_list(text: &str) -> Option<Vec<ParsedCall>> {
    let calls: Vec<JsonCall> = serde_json::from_str(text).ok()?;
    let calls: Vec<ParsedCall> = calls.into_iter().map(JsonCall::parsed).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

/// Splits a text behind the JSON value that it begins with.
pub fn split_value(text: &str) -> serde_json::Result<(&str, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(text.split_at(values.byte_offset())),
        Some(Err(error)) => Err(error),
        None => Ok(("", text)),
    }
}

/// Whether a text that begins with `{` may still become a call: its first key is one of a call's, as far as it is
/// there.
pub fn could_be_call(text: &str) -> bool {
    let Some(inside) = text.trim_start().strip_prefix('{') else {
        return false;
    };
    let inside = inside.trim_start();
    let Some(key) = inside.strip_prefix('"') else {
        return inside.is_empty();
    };
    ["type", "name", "function", "arguments", "parameters"]
        .iter()
        .any(|known| match key.split_once('"') {
            Some((whole, _)) => whole == *known,
            None => known.starts_with(key),
        })
}
