//! APIs that are answered by way of a chat call: a request becomes a chat request, the chat answer the API's own.
//!
//! Pure. An answer is built by one writer, chunk after chunk; a whole answer is the sum of one chunk that has it all. So
//! streamed and whole answers are the same.

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
    ChatCompletion, ChatCompletionChunk, ChatMessage, ChunkChoice, Delta, ErrorObject, FunctionCall, FunctionCallDelta,
    ToolCall, ToolCallDelta,
};

/// Builds one answer in an API's own shape.
pub trait AnswerWriter: Send {
    /// Takes the next chunk of the chat answer; tells what it adds.
    fn chunk(&mut self, chunk: ChatCompletionChunk) -> Vec<ServerEvent>;

    /// The chat answer is complete; tells the end.
    fn end(&mut self) -> Vec<ServerEvent>;

    /// The chat answer ends with an error; tells the end.
    fn failed(&mut self, error: ErrorObject) -> Vec<ServerEvent>;

    /// What tells that the answer is still being made, before its first chunk as well; a comment where there is none.
    fn heartbeat(&self) -> Option<ServerEvent> {
        None
    }

    /// The answer so far as one object.
    fn answer(&self) -> Value;

    /// What later requests of the episode may refer to, once the answer is complete.
    fn kept(&self) -> Option<responses::Kept> {
        None
    }
}

/// A whole chat answer as the one chunk that it could have been streamed in.
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

/// A call as the engine streams it: in one piece, since it is a call only when it is whole.
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

/// The hexadecimal part of `chatcmpl-…`, from which the other APIs' ids are made.
fn id_tail(chat_id: &str) -> &str {
    chat_id.strip_prefix("chatcmpl-").unwrap_or(chat_id)
}

fn message(role: &str, content: impl Into<Value>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: content.into(),
        ..ChatMessage::default()
    }
}

/// The text of a content: a string, null, or a list of parts of these kinds, whose texts are joined by line breaks.
///
/// # Errors
/// A part of another kind; `at` names the field.
fn text_of(content: &Value, kinds: &[&str], at: &str) -> Result<String, Error> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => {
            return Err(wrong(
                at,
                format!("is {other}; allowed are a string or a list of text parts"),
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
    // A refusal is text by another name.
    let text = part["text"].as_str().or(part["refusal"].as_str());
    match (part["type"].as_str(), text) {
        (Some(kind), Some(text)) if kinds.contains(&kind) => Ok(text),
        (Some(kind), _) => Err(wrong(at, format!("is of type `{kind}`; only text is supported here"))),
        (None, _) => Err(wrong(at, "has no `type`")),
    }
}

fn wrong(field: &str, sentence: impl AsRef<str>) -> Error {
    Error::Field {
        message: format!("`{field}` {}", sentence.as_ref()),
        field: field.to_owned(),
    }
}
