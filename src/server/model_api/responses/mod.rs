//! OpenAI's Responses API on top of chat calls.

mod answer;
mod client_tools;
mod kept;
mod request;
#[cfg(test)]
mod tests;
mod tools;

pub use answer::ResponseWriter;
pub use kept::{Kept, KeptResponses};
pub use request::{chat_input, resolve_references};

/// Fields of the chat request and their names in this API.
pub const RENAMED: &[(&str, &str)] = &[
    ("max_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format", "text.format"),
];
