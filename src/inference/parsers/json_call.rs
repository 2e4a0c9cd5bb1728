//! A tool call as a JSON object: `{"name": …, "arguments": {…}}`, or `parameters` instead.
//!
//! Arguments are passed on as the model wrote them, numbers, white space and repeated keys included.

use indexmap::IndexMap;
use serde_json::value::RawValue;

use super::ParsedCall;

/// Keys that an object without arguments may have and still be a call; another one would be lost.
const KEYS_BESIDE_ARGUMENTS: [&str; 3] = ["name", "type", "id"];

/// A call, and whether its object says anything of arguments.
pub struct JsonCall {
    pub call: ParsedCall,
    pub has_arguments: bool,
}

/// The calls that `text` is: an object, or a list of them; white space around it aside.
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

/// The text of the object that JSON arguments are; `{}` for none. Some models write a string that holds one.
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

/// Splits a text behind the JSON object or list that it begins with.
pub fn split_value(text: &str) -> serde_json::Result<(&str, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => Ok(text.split_at(values.byte_offset())),
        Some(Err(error)) => Err(error),
        None => Ok(("", text)),
    }
}

/// Whether a text is JSON that ends too early.
pub fn is_cut(text: &str) -> bool {
    split_value(text).is_err_and(|error| error.is_eof())
}

/// Whether a text may still become a call or a list of calls: it begins with `{`, perhaps behind `[`, and its first key
/// is one of a call's, as far as it is there.
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
