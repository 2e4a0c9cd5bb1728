//! Anthropic's messages API by way of a chat call.

mod answer;
mod request;
#[cfg(test)]
mod tests;
mod tools;

pub use answer::MessageWriter;
pub use request::chat_request;

/// Fields of the chat request by their names in this API.
pub const RENAMED: &[(&str, &str)] = &[
    ("stop", "stop_sequences"),
    ("reasoning_effort", "output_config.effort"),
    ("enable_thinking", "thinking.type"),
    ("continue_final_message", "messages"),
];

use crate::protocol::anthropic::{ErrorBody, ErrorObject};
use crate::protocol::openai;

/// An error of the model API in Anthropic's shape.
pub fn error_body(status: u16, error: openai::ErrorObject) -> ErrorBody {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let message = match error.prompt_tokens {
        // The wording by which Anthropic's clients know that they must compact.
        Some(tokens) => format!("prompt is too long: {} tokens > {} maximum", tokens.given, tokens.max),
        None => error.message,
    };
    ErrorBody {
        kind: "error".into(),
        error: ErrorObject {
            kind: kind.into(),
            message,
        },
    }
}
