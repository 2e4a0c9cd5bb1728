//! Anthropic's Messages API on top of chat calls.

mod answer;
mod request;
#[cfg(test)]
mod tests;
mod tools;

pub use answer::MessageWriter;
pub use request::chat_request;

/// Fields of the chat request and their names in this API.
pub const RENAMED: &[(&str, &str)] = &[
    ("stop", "stop_sequences"),
    ("reasoning_effort", "output_config.effort"),
    ("response_format", "output_config.format"),
    ("enable_thinking", "thinking.type"),
    ("continue_final_message", "messages"),
];

use crate::protocol::anthropic::{ErrorBody, ErrorObject};
use crate::protocol::openai;

/// Converts an error of the model API to Anthropic's format.
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
        // Anthropic's clients recognise a full context by this wording, and then compact it.
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
