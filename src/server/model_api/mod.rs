//! Model APIs on top of chat calls: a request becomes a chat request, and the chat answer becomes the API's own.
//!
//! Pure. An answer is built by one writer, chunk by chunk; a whole answer is treated as a single chunk, so streamed and
//! whole answers are the same.

pub mod anthropic;
pub mod check;
pub mod latest_call;
pub mod responses;
#[cfg(test)]
mod testing;
mod translator;

pub use translator::{END_OF_EVENT, ServerEvent, Translator};

use serde_json::Value;

use super::http::error::Error;
use crate::protocol::openai::{
    ChatCompletion, ChatCompletionChunk, ChunkChoice, Delta, ErrorObject, FunctionCall, FunctionCallDelta, ToolCall,
    ToolCallDelta,
};

/// Builds one answer in an API's own format.
pub trait AnswerWriter: Send {
    /// Adds the next chunk of the chat answer; returns the new events.
    fn chunk(&mut self, chunk: ChatCompletionChunk) -> Vec<ServerEvent>;

    /// Ends a complete answer; returns the last events.
    fn end(&mut self) -> Vec<ServerEvent>;

    /// Ends an answer with an error; returns the last events.
    fn failed(&mut self, error: ErrorObject) -> Vec<ServerEvent>;

    /// Returns the event that shows that the answer is still being generated, also before its first chunk; `None` for a
    /// comment.
    fn heartbeat(&self) -> Option<ServerEvent> {
        None
    }

    /// Returns the answer so far as one object.
    fn answer(&self) -> Value;

    /// Returns what later requests of the episode may refer to, once the answer is complete.
    fn kept(&self) -> Option<responses::Kept> {
        None
    }
}

/// Converts a whole chat answer to a single chunk.
fn as_chunk(completion: ChatCompletion) -> ChatCompletionChunk {
    let choices = completion.choices.into_iter().map(|choice| {
        let message = choice.message;
        ChunkChoice {
            index: choice.index,
            delta: Delta {
                role: Some(message.role),
                content: message.content.as_str().map(str::to_owned),
                reasoning_content: message.reasoning_content,
                tool_calls: message.tool_calls.map(|calls| {
                    let calls = calls.into_iter().zip(0..);
                    let deltas = calls.map(|(call, index)| ToolCallDelta {
                        index,
                        id: Some(call.id),
                        kind: Some(call.kind),
                        function: Some(FunctionCallDelta {
                            name: Some(call.function.name),
                            arguments: Some(call.function.arguments),
                        }),
                    });
                    deltas.collect()
                }),
            },
            finish_reason: choice.finish_reason,
            stop_reason: choice.stop_reason,
            ..ChunkChoice::default()
        }
    });
    ChatCompletionChunk {
        id: completion.id,
        created: completion.created,
        model: completion.model,
        choices: choices.collect(),
        usage: Some(completion.usage),
        ..ChatCompletionChunk::default()
    }
}

/// Converts a streamed call, which the engine sends in one piece once it is complete.
fn whole_call(delta: ToolCallDelta) -> ToolCall {
    let function = delta.function.unwrap_or_default();
    ToolCall {
        id: delta.id.unwrap_or_default(),
        kind: "function".into(),
        function: FunctionCall {
            name: function.name.unwrap_or_default(),
            arguments: function.arguments.unwrap_or_default(),
        },
    }
}

/// Returns the hexadecimal part of `chatcmpl-…`, from which the ids of the other APIs are made.
fn id_tail(chat_id: &str) -> &str {
    chat_id.strip_prefix("chatcmpl-").unwrap_or(chat_id)
}

/// Returns the text of a message's content: a string, null, or a list of parts of these kinds, joined by line breaks.
///
/// # Errors
/// Fails for a part of another kind; `at` names the field.
fn text_of(content: &Value, kinds: &[&str], at: &str) -> Result<String, Error> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => {
            return Err(wrong(
                at,
                format!("must be a string or a list of text parts, got {other}"),
            ));
        }
    };
    let texts = parts
        .iter()
        .enumerate()
        .map(|(number, part)| text_part(part, kinds, &format!("{at}[{number}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn text_part<'a>(part: &'a Value, kinds: &[&str], at: &str) -> Result<&'a str, Error> {
    // A refusal is text under another name.
    let text = part["text"].as_str().or(part["refusal"].as_str());
    match (part["type"].as_str(), text) {
        (Some(kind), Some(text)) if kinds.contains(&kind) => Ok(text),
        (Some(kind), _) => Err(wrong(at, format!("has type `{kind}`, but only text is supported"))),
        (None, _) => Err(wrong(at, "has no `type`")),
    }
}

fn wrong(field: &str, sentence: impl AsRef<str>) -> Error {
    Error::Field {
        message: format!("`{field}` {}", sentence.as_ref()),
        field: field.to_owned(),
    }
}
