//! Record of the latest chat call, for debugging of what the model is asked and answers.

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::protocol::openai::{ChatCompletionChunk, ToolCall};
use crate::protocol::swarm::ReplayLatestLlmCallAnswer;

/// Maximum bytes kept of an answer.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// End of a successful stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A finished chat call.
#[derive(Clone, Debug)]
pub struct LatestCall {
    input: Box<RawValue>,
    answer: Vec<Bytes>,
    streamed: bool,
}

/// Collects an answer while it is passed on.
#[derive(Debug)]
pub struct Recorder {
    call: LatestCall,
    bytes: usize,
}

impl Recorder {
    /// Starts recording the answer to `input`, which is streamed or whole.
    pub fn new(input: Box<RawValue>, streamed: bool) -> Self {
        Self {
            call: LatestCall {
                input,
                answer: Vec::new(),
                streamed,
            },
            bytes: 0,
        }
    }

    /// Adds the next piece.
    pub fn push(&mut self, piece: &Bytes) {
        self.bytes += piece.len();
        if self.bytes <= MAX_BYTES {
            self.call.answer.push(piece.clone());
        }
    }

    /// Ends the recording; returns `None` if the answer was too large or ended with an error.
    pub fn finish(self) -> Option<LatestCall> {
        (self.bytes <= MAX_BYTES && self.call.is_complete()).then_some(self.call)
    }
}

impl LatestCall {
    fn is_complete(&self) -> bool {
        let backwards = self.answer.iter().flat_map(|piece| piece.iter()).rev();
        !self.streamed || backwards.take(DONE.len()).eq(DONE.iter().rev())
    }

    /// Returns the call for clients; a stream is joined into one answer.
    pub fn replay(&self) -> ReplayLatestLlmCallAnswer {
        let bytes = self.answer.concat();
        let output = if self.streamed {
            join_chunks(&String::from_utf8_lossy(&bytes))
        } else {
            serde_json::from_slice(&bytes).unwrap_or(Value::Null)
        };
        ReplayLatestLlmCallAnswer {
            input: serde_json::from_str(self.input.get()).unwrap_or(Value::Null),
            output,
        }
    }
}

/// Joins a stream of chunks into one chat completion (of its first choice).
fn join_chunks(events: &str) -> Value {
    let chunks = events.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut chunks = chunks
        .filter_map(|data| serde_json::from_str::<ChatCompletionChunk>(data.trim_start()).ok())
        .peekable();
    let Some(first) = chunks.peek().cloned() else {
        return Value::Null;
    };
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::<ToolCall>::new());
    let (mut finish_reason, mut usage) = (None, None);
    for chunk in chunks {
        usage = chunk.usage.or(usage);
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            finish_reason = choice.finish_reason.or(finish_reason);
            content.push_str(choice.delta.content.as_deref().unwrap_or(""));
            reasoning.push_str(choice.delta.reasoning_content.as_deref().unwrap_or(""));
            for delta in choice.delta.tool_calls.unwrap_or_default() {
                if delta.index as usize >= calls.len() {
                    calls.push(ToolCall {
                        kind: "function".into(),
                        ..ToolCall::default()
                    });
                }
                if let Some(call) = calls.last_mut() {
                    call.id.push_str(delta.id.as_deref().unwrap_or(""));
                    let function = delta.function.unwrap_or_default();
                    call.function.name.push_str(function.name.as_deref().unwrap_or(""));
                    call.function
                        .arguments
                        .push_str(function.arguments.as_deref().unwrap_or(""));
                }
            }
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    json!({
        "id": first.id, "object": "chat.completion", "created": first.created, "model": first.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": null}],
        "usage": usage,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    fn recorded(pieces: &[&str], streamed: bool) -> ReplayLatestLlmCallAnswer {
        let mut recorder = Recorder::new(to_raw_value(&json!({"messages": []})).unwrap(), streamed);
        for piece in pieces {
            recorder.push(&Bytes::copy_from_slice(piece.as_bytes()));
        }
        recorder.finish().unwrap().replay()
    }

    #[test]
    fn an_answer_is_replayed_as_it_was() {
        let replay = recorded(&[r#"{"a":"#, "1}"], false);
        assert_eq!(replay.input, json!({"messages": []}));
        assert_eq!(replay.output, json!({"a": 1}));
    }

    #[test]
    fn a_stream_is_replayed_as_one_answer_however_it_was_cut() {
        let events = concat!(
            r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Grü"},"finish_reason":null}]}"#,
            "\n\n",
            r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"ße","tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]},"finish_reason":null}]}"#,
            "\n\n",
            r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":"tool_calls"}]}"#,
            "\n\ndata: [DONE]\n\n",
        );
        let (head, tail) = events.split_at(37);
        let output = recorded(&[head, tail], true).output;
        let message = &output["choices"][0]["message"];
        assert_eq!(message["content"], "Grüße");
        assert_eq!(
            message["tool_calls"][0]["function"],
            json!({"name": "f", "arguments": "{}"})
        );
        assert_eq!(output["choices"][0]["finish_reason"], "tool_calls");
    }

    #[test]
    fn a_stream_that_failed_is_not_kept() {
        for end in ["", "data: [DONE]", "data: {\"error\":{\"message\":\"no\"}}\n\n"] {
            let mut recorder = Recorder::new(RawValue::NULL.to_owned(), true);
            recorder.push(&Bytes::from("data: {}\n\n"));
            recorder.push(&Bytes::from(end));
            assert!(recorder.finish().is_none(), "{end}");
        }
    }

    #[test]
    fn an_answer_that_is_too_large_is_not_kept() {
        let mut recorder = Recorder::new(RawValue::NULL.to_owned(), false);
        let piece = Bytes::from(vec![b' '; MAX_BYTES]);
        recorder.push(&piece);
        recorder.push(&piece);
        assert!(recorder.finish().is_none());
    }
}
