//! Fields of a request: their types and ranges.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::engine::session::error::ChatError;
use crate::protocol::openai::{ChatMessage, ChatRequest};
use crate::protocol::type_error::in_json_words;

/// Parses a request; an error names the field, and the number of the message if it is in one.
pub(super) fn typed(body: &RawValue) -> Result<ChatRequest, ChatError> {
    let invalid = |message| ChatError::InvalidRequest { param: None, message };
    // serde would take a list for the fields in their order.
    if !body.get().starts_with('{') {
        return Err(invalid("the request must be a JSON object".into()));
    }
    serde_json::from_str(body.get()).map_err(|error| invalid_field(body).unwrap_or_else(|| invalid(error.to_string())))
}

/// Returns the error of the first message or field that is invalid alone.
fn invalid_field(body: &RawValue) -> Option<ChatError> {
    let fields: Map<String, Value> = serde_json::from_str(body.get()).ok()?;
    let messages = fields.get("messages").and_then(Value::as_array);
    for (at, message) in messages.into_iter().flatten().enumerate() {
        if let Err(error) = ChatMessage::deserialize(message) {
            let param = format!("messages[{at}]");
            let message = format!("`{param}` is not a valid chat message: {error}");
            return Some(ChatError::invalid(param, message));
        }
    }
    fields.into_iter().find_map(|(name, value)| {
        let field = Value::Object(Map::from_iter([(name.clone(), value)]));
        let error = serde_json::from_str::<ChatRequest>(&field.to_string()).err()?;
        let message = format!("`{name}` is invalid: {}", in_json_words(&error));
        Some(ChatError::invalid(name, message))
    })
}

pub(super) fn integer(name: &str, given: Option<u64>, min: u64, max: u64) -> Result<Option<u64>, ChatError> {
    match given {
        Some(value) if value < min || value > max => {
            let allowed = if max == u64::MAX {
                format!("at least {min}")
            } else {
                format!("between {min} and {max}")
            };
            Err(ChatError::invalid(
                name,
                format!("`{name}` must be {allowed}, got {value}"),
            ))
        }
        given => Ok(given),
    }
}

pub(super) fn real(name: &str, given: Option<f64>, min: f64, max: f64) -> Result<Option<f64>, ChatError> {
    match given {
        Some(value) if !(min..=max).contains(&value) => Err(ChatError::invalid(
            name,
            format!("`{name}` must be between {min} and {max}, got {value}"),
        )),
        given => Ok(given),
    }
}
