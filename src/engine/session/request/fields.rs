//! Fields of a request: their types and ranges.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::engine::session::error::ChatError;
use crate::protocol::openai::{ChatMessage, ChatRequest};
use crate::protocol::type_error::in_json_words;

/// Deserialises a request; an error names the field, and the number of the message if it is in one. It is read from
/// text: serde_json's conversion from a value turns 1e400 into infinity.
pub(super) fn typed(body: Value) -> Result<ChatRequest, ChatError> {
    let Value::Object(fields) = body else {
        return Err(ChatError::InvalidRequest {
            param: None,
            message: "the request must be a JSON object".into(),
        });
    };
    if let Some(Value::Array(messages)) = fields.get("messages") {
        for (at, message) in messages.iter().enumerate() {
            if let Err(error) = ChatMessage::deserialize(message) {
                let param = format!("messages[{at}]");
                let message = format!("`{param}` is not a valid chat message: {error}");
                return Err(ChatError::invalid(param, message));
            }
        }
    }
    let text = serde_json::to_string(&fields).unwrap_or_default(); // infallible for a map of values
    serde_json::from_str(&text).map_err(|error| {
        let alone = |(name, value): (String, Value)| {
            let field = Value::Object(Map::from_iter([(name.clone(), value)]));
            let error = serde_json::from_str::<ChatRequest>(&field.to_string()).err()?;
            let message = format!("`{name}` is invalid: {}", in_json_words(&error));
            Some(ChatError::invalid(name, message))
        };
        fields
            .into_iter()
            .find_map(alone)
            .unwrap_or_else(|| ChatError::InvalidRequest {
                param: None,
                message: error.to_string(),
            })
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
