//! Tool calls as JSON objects: `{"name": …, "arguments": {…}}`, or with `parameters` instead.
//!
//! Arguments are passed on exactly as the model wrote them, including white space and repeated keys.

use indexmap::IndexMap;
use serde_json::value::RawValue;

use super::ParsedCall;

/// Keys that a call without arguments may have. An object with other keys is not a call, since they would be lost.
const KEYS_BESIDE_ARGUMENTS: [&str; 3] = ["name", "type", "id"];

/// A call, and whether its object has arguments.
pub struct JsonCall {
    pub call: ParsedCall,
    pub has_arguments: bool,
}

/// Parses the calls of `text`: an object or a list of them, with white space around it.
pub fn parse(text: &str) -> Option<Vec<JsonCall>> {
    if !text.trim_start().starts_with('[') {
        return Some(vec![parse_one(text)?]);
    }
    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    let calls: Vec<JsonCall> = items.iter().map(|item| parse_one(item.get())).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

fn parse_one(text: &str) -> Option<JsonCall> {
    let fields: IndexMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let name: String = serde_json::from_str(fields.get("name")?.get()).ok()?;
    let given = ["arguments", "parameters"].iter().find_map(|key| fields.get(*key));
    let arguments = match given {
        Some(given) => object(given.get())?,
        None if fields.keys().all(|key| KEYS_BESIDE_ARGUMENTS.contains(&key.as_str())) => "{}".to_owned(),
        None => return None,
    };
    (!name.is_empty()).then_some(JsonCall {
        call: ParsedCall { name, arguments },
        has_arguments: given.is_some(),
    })
}

/// Returns arguments as the text of a JSON object; `{}` if there are none. Some models write a string that contains
/// one.
fn object(json: &str) -> Option<String> {
    match json.as_bytes().first()? {
        b'{' => Some(json.to_owned()),
        b'n' => Some("{}".to_owned()),
        b'"' => {
            let text: String = serde_json::from_str(json).ok()?;
            let inner = text.trim();
            match inner {
                "" | "null" => Some("{}".to_owned()),
                _ if !inner.starts_with('{') => None,
                _ => serde_json::from_str::<&RawValue>(inner)
                    .ok()
                    .map(|object| object.get().to_owned()),
            }
        }
        _ => None,
    }
}

/// Splits a text after the JSON object or list at its beginning.
pub fn split_value(text: &str) -> serde_json::Result<(&str, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(text.split_at(values.byte_offset())),
        Some(Err(error)) => Err(error),
        None => Ok(("", text)),
    }
}

/// Returns whether a text is incomplete JSON.
pub fn is_cut(text: &str) -> bool {
    split_value(text).is_err_and(|error| error.is_eof())
}

/// Returns whether a text may be the beginning of a call or a list of calls: it begins with `{` or `[{`, and its first
/// key, as far as it is complete, is one of a call.
pub fn could_be_call(text: &str) -> bool {
    let begun = text.trim_start();
    let object = begun.strip_prefix('[').map_or(begun, str::trim_start);
    let Some(inside) = object.strip_prefix('{') else {
        return object.is_empty();
    };
    let inside = inside.trim_start();
    let Some(key) = inside.strip_prefix('"') else {
        return inside.is_empty();
    };
    ["type", "name", "id", "arguments", "parameters"]
        .iter()
        .any(|known| match key.split_once('"') {
            Some((whole, _)) => whole == *known,
            None => known.starts_with(key),
        })
}
