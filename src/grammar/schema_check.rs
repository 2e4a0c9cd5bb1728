//! Checks that the JSON schemas of requests can constrain answers, and names the part that cannot.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::error::{GrammarError, Result};
use super::grammars::Grammars;

/// Maximum number of parts that are compiled to find the place of an error.
const MAX_TRIALS: usize = 200;
/// Keywords whose value is a schema.
const SCHEMAS: [&str; 4] = ["items", "additionalProperties", "not", "contains"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const OBJECTS: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];

/// Checks that answers can be constrained to a JSON schema.
///
/// # Errors
/// Names the innermost part that is not supported.
pub fn check_schema(grammars: &Grammars, schema: &Value) -> Result<()> {
    let Err(error) = compile(grammars, schema.clone()) else {
        return Ok(());
    };
    let mut trials = MAX_TRIALS;
    let (place, error) = innermost(grammars, schema, schema, String::new(), error, &mut trials);
    match error {
        GrammarError::Compile(reason) => Err(GrammarError::Schema {
            place: format!("#{place}"),
            reason,
        }),
        other => Err(other),
    }
}

fn compile(grammars: &Grammars, schema: Value) -> Result<()> {
    grammars
        .compile(TopLevelGrammar::from_json_schema(with_separators(schema)))
        .map(drop)
}

/// Returns the place and the error of the innermost part of `schema` that does not compile.
fn innermost(
    grammars: &Grammars,
    root: &Value,
    schema: &Value,
    place: String,
    error: GrammarError,
    trials: &mut usize,
) -> (String, GrammarError) {
    for (name, part) in parts(schema) {
        if *trials == 0 {
            break;
        }
        *trials -= 1;
        if let Err(error) = compile(grammars, within(root, part)) {
            return innermost(grammars, root, part, format!("{place}/{name}"), error, trials);
        }
    }
    (place, error)
}

/// Returns the schemas within a schema, with their places.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = vec![];
    for keyword in SCHEMAS {
        found.extend(schema.get(keyword).map(|part| (keyword.to_owned(), part)));
    }
    for keyword in LISTS {
        let list = schema[keyword].as_array().into_iter().flatten().enumerate();
        found.extend(list.map(|(number, part)| (format!("{keyword}/{number}"), part)));
    }
    for keyword in OBJECTS {
        let object = schema[keyword].as_object().into_iter().flatten();
        found.extend(object.map(|(name, part)| (format!("{keyword}/{name}"), part)));
    }
    found
}

/// Returns a part as a schema of its own, with the definitions that it may refer to.
fn within(root: &Value, part: &Value) -> Value {
    let Value::Object(part) = part else {
        return part.clone();
    };
    let mut part = part.clone();
    for keyword in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(keyword) {
            part.entry(keyword).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(part)
}

/// Sets the white space of JSON texts: `{"a": 1, "b": [2]}`, as Python's `json.dumps` and most chat templates write
/// them. So a model never has to choose between spellings, and cannot fill an answer with white space.
pub(super) fn with_separators(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(fields) => fields,
        Value::Bool(false) => Map::from_iter([("not".to_owned(), json!({}))]),
        _ => Map::new(),
    };
    let style = json!({"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false});
    schema.insert("x-guidance".to_owned(), style);
    Value::Object(schema)
}
