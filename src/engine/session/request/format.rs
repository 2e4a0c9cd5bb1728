//! Format of the answer.

use serde_json::{Value, json};

use crate::engine::session::error::ChatError;
use crate::protocol::openai::ChatRequest;

/// Returns the JSON schema that the answer must fit; `None` for text.
pub(super) fn answer_schema(request: &ChatRequest) -> Result<Option<Value>, ChatError> {
    let Some(format) = &request.response_format else {
        return Ok(None);
    };
    let schema = format.json_schema.as_ref().and_then(|format| format.schema.as_ref());
    match (format.kind.as_str(), schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => Ok(Some(json!({"type": "object"}))),
        ("json_schema", Some(schema @ (Value::Object(_) | Value::Bool(_)))) => Ok(Some(schema.clone())),
        ("json_schema", _) => {
            let message = "`response_format` of type `json_schema` requires a JSON schema, an object, in `schema`";
            Err(ChatError::invalid("response_format", message))
        }
        (other, _) => {
            let message = format!("`response_format.type` must be text, json_object or json_schema, got `{other}`");
            Err(ChatError::invalid("response_format", message))
        }
    }
}
