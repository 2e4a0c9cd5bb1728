//! Whether a tool call's arguments fit the tool's JSON Schema.
//!
//! The keywords that tools are described with are checked: `type`, `enum`, `const`, `properties`, `required`,
//! `additionalProperties`, `items`, `anyOf`, `oneOf`, `allOf`, and bounds of numbers, texts and lists. Others are for the
//! model only; the tool's program sees the arguments anyway.

use serde_json::Value;

/// Maximum nesting of arguments that are checked.
const DEPTH: usize = 64;

/// What is wrong with a value that stands at `path`, or nothing.
pub(super) fn mismatch(schema: &Value, value: &Value, path: &str) -> Option<String> {
    check(schema, value, path, 0)
}

fn check(schema: &Value, value: &Value, path: &str, depth: usize) -> Option<String> {
    if depth > DEPTH {
        return Some(format!("{path} is nested deeper than {DEPTH} levels"));
    }
    if *schema == Value::Bool(false) {
        return Some(format!("{path} is not a parameter"));
    }
    // `true`, or what is no schema.
    let schema = schema.as_object()?;
    let of = |name: &str| schema.get(name);
    if let Some(types) = of("type")
        && !names(types).iter().any(|name| is_of_type(value, name))
    {
        return Some(format!(
            "{path} must be of type {}, not {value}",
            names(types).join(" or ")
        ));
    }
    if let Some(Value::Array(allowed)) = of("enum")
        && !allowed.iter().any(|allowed| equal(allowed, value))
    {
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        return Some(format!("{path} must be one of {}, not {value}", allowed.join(", ")));
    }
    if let Some(only) = of("const").filter(|only| !equal(only, value)) {
        return Some(format!("{path} must be {only}, not {value}"));
    }
    let bounds = bounds(schema, value, path);
    let alternatives = alternatives(schema, value, path, depth);
    bounds.or(alternatives).or_else(|| members(schema, value, path, depth))
}

type Keywords = serde_json::Map<String, Value>;

/// Properties of an object, items of a list.
fn members(schema: &Keywords, value: &Value, path: &str, depth: usize) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            let mut missing = required
                .filter_map(Value::as_str)
                .filter(|name| !fields.contains_key(*name));
            if let Some(name) = missing.next() {
                return Some(format!("{path}.{name} is missing"));
            }
            let others = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
            fields.iter().find_map(|(name, field)| {
                let known = schema.get("properties").and_then(|properties| properties.get(name));
                check(known.unwrap_or(others), field, &format!("{path}.{name}"), depth + 1)
            })
        }
        Value::Array(items) => {
            let schema = schema.get("items")?;
            let mut items = items.iter().enumerate();
            items.find_map(|(place, item)| check(schema, item, &format!("{path}[{place}]"), depth + 1))
        }
        _ => None,
    }
}

fn alternatives(schema: &Keywords, value: &Value, path: &str, depth: usize) -> Option<String> {
    let schemas = |name: &str| schema.get(name).and_then(Value::as_array);
    if let Some(error) = schemas("allOf").and_then(|all| all.iter().find_map(|one| check(one, value, path, depth + 1)))
    {
        return Some(error);
    }
    for (name, exactly_one) in [("anyOf", false), ("oneOf", true)] {
        let Some(some) = schemas(name) else { continue };
        let errors: Vec<_> = some.iter().map(|one| check(one, value, path, depth + 1)).collect();
        match errors.iter().filter(|error| error.is_none()).count() {
            0 => {
                let errors: Vec<_> = errors.into_iter().flatten().collect();
                return Some(errors.join(", or "));
            }
            2.. if exactly_one => return Some(format!("{path} fits more than one of the allowed forms")),
            _ => {}
        }
    }
    None
}

/// Bounds of numbers, and of the lengths of texts and lists.
fn bounds(schema: &Keywords, value: &Value, path: &str) -> Option<String> {
    let (size, what, least, most) = match value {
        Value::Number(number) => (number.as_f64()?, "", "minimum", "maximum"),
        Value::String(text) => (text.chars().count() as f64, "the length of ", "minLength", "maxLength"),
        Value::Array(items) => (items.len() as f64, "the length of ", "minItems", "maxItems"),
        _ => return None,
    };
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    if let Some(least) = bound(least).filter(|least| size < *least) {
        return Some(format!("{what}{path} must be at least {least}, not {size}"));
    }
    if let Some(most) = bound(most).filter(|most| size > *most) {
        return Some(format!("{what}{path} must be at most {most}, not {size}"));
    }
    if !value.is_number() {
        return None;
    }
    if let Some(above) = bound("exclusiveMinimum").filter(|above| size <= *above) {
        return Some(format!("{path} must be above {above}, not {size}"));
    }
    let below = bound("exclusiveMaximum").filter(|below| size >= *below)?;
    Some(format!("{path} must be below {below}, not {size}"))
}

fn names(types: &Value) -> Vec<&str> {
    match types {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        // 1.0 is an integer in JSON Schema.
        "integer" => {
            let is_whole = |number: f64| number.is_finite() && number.fract() == 0.0;
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(is_whole)
        }
        // No type that there is: the check is left to the program.
        _ => true,
    }
}

/// Whether two values are the same; numbers by what they are worth, not as they are written.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64().is_some() && a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn arguments_fit_or_the_model_learns_why_not() {
        let schema = json(
            r#"{"type": "object", "required": ["city"], "additionalProperties": false, "properties": {
                "city": {"type": "string", "minLength": 2, "maxLength": 5},
                "days": {"type": "integer", "minimum": 1, "exclusiveMaximum": 8},
                "unit": {"enum": ["C", "F"]},
                "tags": {"type": "array", "maxItems": 2, "items": {"type": ["string", "null"]}},
                "at": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "kind": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
                "version": {"const": 1},
                "free": {"type": "object", "additionalProperties": {"type": "boolean"}}
            }}"#,
        );
        for (arguments, wrong) in [
            (r#"{"city": "Graz"}"#, None),
            (
                r#"{"city": "Graz", "days": 7.0, "unit": "F", "tags": ["a", null], "at": null, "version": 1.0}"#,
                None,
            ),
            (r#"{"city": "Graz", "free": {"a": true}}"#, None),
            ("{}", Some("arguments.city is missing")),
            ("[]", Some("arguments must be of type object, not []")),
            (r#"{"city": 5}"#, Some("arguments.city must be of type string, not 5")),
            (
                r#"{"city": "G"}"#,
                Some("the length of arguments.city must be at least 2, not 1"),
            ),
            (
                r#"{"city": "Grazzz"}"#,
                Some("the length of arguments.city must be at most 5, not 6"),
            ),
            (
                r#"{"city": "Graz", "days": 0}"#,
                Some("arguments.days must be at least 1, not 0"),
            ),
            (
                r#"{"city": "Graz", "days": 8}"#,
                Some("arguments.days must be below 8, not 8"),
            ),
            (
                r#"{"city": "Graz", "days": 1.5}"#,
                Some("arguments.days must be of type integer, not 1.5"),
            ),
            // No float holds it; seen to be a panic elsewhere.
            (
                r#"{"city": "Graz", "days": 1e999}"#,
                Some("arguments.days must be of type integer, not 1e+999"),
            ),
            (
                r#"{"city": "Graz", "unit": "K"}"#,
                Some(r#"arguments.unit must be one of "C", "F", not "K""#),
            ),
            (
                r#"{"city": "Graz", "town": 1}"#,
                Some("arguments.town is not a parameter"),
            ),
            (
                r#"{"city": "Graz", "tags": [1]}"#,
                Some("arguments.tags[0] must be of type string or null, not 1"),
            ),
            (
                r#"{"city": "Graz", "tags": ["", "", ""]}"#,
                Some("the length of arguments.tags must be at most 2, not 3"),
            ),
            (
                r#"{"city": "Graz", "at": "x"}"#,
                Some("arguments.at must be of type number, not \"x\", or "),
            ),
            (
                r#"{"city": "Graz", "kind": 1}"#,
                Some("arguments.kind fits more than one of the allowed forms"),
            ),
            (
                r#"{"city": "Graz", "version": 2}"#,
                Some("arguments.version must be 1, not 2"),
            ),
            (
                r#"{"city": "Graz", "free": {"a": 1}}"#,
                Some("arguments.free.a must be of type boolean, not 1"),
            ),
        ] {
            let found = mismatch(&schema, &json(arguments), "arguments");
            match wrong {
                None => assert_eq!(found, None, "{arguments}"),
                Some(wrong) => assert!(
                    found.as_ref().is_some_and(|found| found.contains(wrong)),
                    "{arguments}: {found:?}"
                ),
            }
        }
        assert_eq!(mismatch(&json("true"), &json("1"), "x"), None);
        assert_eq!(mismatch(&json(r#"{"type": "file"}"#), &json("1"), "x"), None);
    }
}
