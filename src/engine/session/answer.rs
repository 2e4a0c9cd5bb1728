//! Building an answer: sampled tokens go in, deltas of the assistant's message come out.
//!
//! A streamed answer consists of these deltas, a whole one is their sum; so both are the same message.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::backend::{ChatBackend, ChatModel};
use super::request::Request;
use super::stop::StopScanner;
use super::visible::VisibleText;
use crate::inference::parsers::{AnswerParser, Piece, ToolFormat};
use crate::inference::{FinishReason, SampledToken};
use crate::protocol::openai::{
    self, ChatMessage, ChoiceLogprobs, Delta, FunctionCall, FunctionCallDelta, TokenLogprob, ToolCall, ToolCallDelta,
    TopLogprob,
};
use crate::timeline::{Prompt, TurnEnd};

/// Minimum reported log-probability, since JSON has no infinity.
const MIN_LOGPROB: f64 = -9999.0;

/// Converts the tokens of one answer to deltas, and collects what is recorded.
pub struct AnswerWriter {
    model: Arc<dyn ChatModel>,
    text: VisibleText,
    stops: StopScanner,
    parser: AnswerParser,
    parallel_tool_calls: bool,
    wants_logprobs: bool,
    answer: Answer,
}

/// A finished answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Assistant's message for the agent.
    pub message: ChatMessage,
    /// Sampled token ids.
    pub sampled: Vec<u32>,
    /// Their log-probabilities, same length.
    pub logprobs: Vec<f32>,
    /// Indices of sampled tokens that were the only ones the grammar allowed.
    pub determined: Vec<usize>,
    /// Log-probabilities for the agent, if requested.
    pub shown_logprobs: Vec<TokenLogprob>,
    /// Number of sampled tokens up to the end of the thinking.
    pub reasoning_tokens: usize,
    /// Stop string that ended the answer.
    pub stop_string: Option<String>,
    /// Whether the model ended its turn within a tool call, which is text then.
    cut_call: bool,
    /// Beginning of the answer from the request, as far as the parser has emitted it.
    opening: String,
    /// Rest of that beginning.
    not_shown: String,
}

/// Token counts of one or more answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampled {
    /// All sampled tokens.
    pub tokens: u64,
    /// Those up to the end of the thinking.
    pub reasoning: u64,
}

impl Sampled {
    /// Adds the counts of another answer.
    pub fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.reasoning += other.reasoning;
    }
}

impl AnswerWriter {
    /// Starts the answer to this prompt.
    pub fn new(backend: &ChatBackend, request: &Request, prompt: &Prompt) -> Self {
        let has_tools = !request.conversation.tools.is_empty();
        let tool_format = if has_tools {
            backend.tool_format
        } else {
            ToolFormat::None
        };
        let rendered = prompt
            .rendered
            .strip_suffix(&prompt.opening)
            .unwrap_or(&prompt.rendered);
        let mut parser = AnswerParser::new(
            backend.reasoning_format,
            tool_format,
            rendered,
            &request.conversation.offered_functions(),
        );
        let opened = parser.push(&prompt.opening);
        let mut answer = Answer {
            message: ChatMessage::new("assistant", Value::Null),
            not_shown: request.opening.clone().unwrap_or_default(),
            ..Answer::default()
        };
        // The beginning given by the request is not returned.
        answer.add(opened, request.parallel_tool_calls);
        Self {
            model: backend.model.clone(),
            text: VisibleText::new(backend.model.clone()),
            stops: StopScanner::new(&request.stop),
            parser,
            parallel_tool_calls: request.parallel_tool_calls,
            wants_logprobs: request.logprobs,
            answer,
        }
    }

    /// Returns the token counts so far.
    pub fn counts(&self) -> Sampled {
        self.answer.counts()
    }

    /// Adds the next token.
    pub fn push(&mut self, token: &SampledToken) -> Vec<Delta> {
        if token.determined {
            self.answer.determined.push(self.answer.sampled.len());
        }
        self.answer.sampled.push(token.id);
        self.answer.logprobs.push(token.logprob);
        if self.wants_logprobs {
            self.answer.shown_logprobs.push(self.shown_logprob(token));
        }
        let text = self.text.push(token.id);
        let text = self.stops.push(&text);
        let pieces = self.parser.push(&text);
        self.answer.add(pieces, self.parallel_tool_calls)
    }

    /// Returns the log-probabilities of the last token, if requested.
    pub fn last_logprob(&self) -> Option<&TokenLogprob> {
        self.answer.shown_logprobs.last()
    }

    /// Ends the answer; returns the last deltas and the whole answer.
    pub fn finish(self) -> (Vec<Delta>, Answer) {
        let mut answer = self.answer;
        let (mut stops, mut parser) = (self.stops, self.parser);
        let mut text = stops.push(&self.text.finish());
        answer.stop_string = stops.found().map(str::to_owned);
        if answer.stop_string.is_none() {
            text += &stops.finish();
        }
        let mut pieces = parser.push(&text);
        let ending = parser.finish();
        pieces.extend(ending.pieces);
        // A stop string cuts where the request wanted it.
        answer.cut_call = ending.cut_call && answer.stop_string.is_none();
        let deltas = answer.add(pieces, self.parallel_tool_calls);
        let message = &mut answer.message;
        if message.content.is_null() && message.tool_calls.is_none() {
            message.content = "".into();
        }
        (deltas, answer)
    }

    fn shown_logprob(&self, token: &SampledToken) -> TokenLogprob {
        let top = token.top.iter().map(|(id, logprob)| {
            let (token, bytes) = self.shown(*id);
            let logprob = f64::from(*logprob).max(MIN_LOGPROB);
            TopLogprob {
                token,
                logprob,
                bytes: Some(bytes),
            }
        });
        let (text, bytes) = self.shown(token.id);
        TokenLogprob {
            token: text,
            logprob: f64::from(token.logprob).max(MIN_LOGPROB),
            bytes: Some(bytes),
            top_logprobs: top.collect(),
        }
    }

    fn shown(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.model.token_bytes(id);
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }
}

impl Answer {
    fn add(&mut self, pieces: Vec<Piece>, parallel_tool_calls: bool) -> Vec<Delta> {
        pieces
            .into_iter()
            .filter_map(|piece| self.add_piece(piece, parallel_tool_calls))
            .collect()
    }

    fn add_piece(&mut self, piece: Piece, parallel_tool_calls: bool) -> Option<Delta> {
        let message = &mut self.message;
        match piece {
            Piece::Content(text) => {
                let text = skip_opening(text, &mut self.not_shown, &mut self.opening)?;
                match &mut message.content {
                    Value::String(so_far) => so_far.push_str(&text),
                    content => *content = text.as_str().into(),
                }
                Some(Delta {
                    content: Some(text),
                    ..Delta::default()
                })
            }
            Piece::Reasoning(text) => {
                message.reasoning_content.get_or_insert_default().push_str(&text);
                self.reasoning_tokens = self.sampled.len();
                Some(Delta {
                    reasoning_content: Some(text),
                    ..Delta::default()
                })
            }
            Piece::ToolCall(_) if message.tool_calls.is_some() && !parallel_tool_calls => None,
            Piece::ToolCall(call) => {
                let calls = message.tool_calls.get_or_insert_default();
                let call = ToolCall {
                    id: format!("call_{}", &Uuid::new_v4().simple().to_string()[..24]),
                    kind: "function".into(),
                    function: FunctionCall {
                        name: call.name,
                        arguments: call.arguments,
                    },
                };
                calls.push(call.clone());
                Some(Delta {
                    tool_calls: Some(vec![call_delta(calls.len() as u32 - 1, call)]),
                    ..Delta::default()
                })
            }
        }
    }

    /// Returns the token counts.
    pub fn counts(&self) -> Sampled {
        Sampled {
            tokens: self.sampled.len() as u64,
            reasoning: self.reasoning_tokens as u64,
        }
    }

    /// Returns why the answer ended, for the agent. An answer whose tool call the model itself did not finish is
    /// [`Length`](openai::FinishReason::Length) too: agents must not take half a call for a final answer.
    pub fn finish_reason(&self, reason: FinishReason) -> openai::FinishReason {
        match reason {
            FinishReason::Length => openai::FinishReason::Length,
            _ if self.message.tool_calls.is_some() => openai::FinishReason::ToolCalls,
            _ if self.cut_call => openai::FinishReason::Length,
            _ => openai::FinishReason::Stop,
        }
    }

    /// Returns how the turn ended, judging by its last token.
    pub fn end(&self, reason: FinishReason, stop_token_ids: &[u32]) -> TurnEnd {
        match (self.sampled.last(), reason) {
            (Some(last), _) if stop_token_ids.contains(last) => TurnEnd::EndToken,
            (_, FinishReason::Length) => TurnEnd::Length,
            _ => TurnEnd::StopString,
        }
    }

    /// Returns the log-probabilities for the agent, if requested.
    pub fn choice_logprobs(&self, asked: bool) -> Option<ChoiceLogprobs> {
        asked.then(|| ChoiceLogprobs {
            content: self.shown_logprobs.clone(),
        })
    }

    /// Returns the message as it appears in a later request: content as a string, or null if there are only calls; no
    /// empty fields.
    pub fn as_history(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), "assistant".into());
        let content = match self.message.content.as_str() {
            None if self.opening.is_empty() => Value::Null,
            content => format!("{}{}", self.opening, content.unwrap_or_default()).into(),
        };
        out.insert("content".into(), content);
        if let Some(reasoning) = &self.message.reasoning_content {
            out.insert("reasoning_content".into(), reasoning.as_str().into());
        }
        if let Some(calls) = &self.message.tool_calls {
            out.insert("tool_calls".into(), json!(calls));
        }
        Value::Object(out)
    }
}

/// Returns the part of a piece of content that is new after the request's beginning; `None` if the piece lies within
/// it.
fn skip_opening(text: String, not_shown: &mut String, opening: &mut String) -> Option<String> {
    if not_shown.is_empty() {
        return Some(text);
    }
    if opening.is_empty() && !text.starts_with(char::is_whitespace) {
        *not_shown = not_shown.trim_start().to_owned(); // as the parser did
    }
    let alike = text.chars().zip(not_shown.chars()).take_while(|(a, b)| a == b);
    let len = alike.map(|(c, _)| c.len_utf8()).sum();
    opening.push_str(&text[..len]);
    not_shown.drain(..len);
    let new = text[len..].to_owned();
    if !new.is_empty() {
        not_shown.clear();
    }
    Some(new).filter(|new| !new.is_empty())
}

fn call_delta(index: u32, call: ToolCall) -> ToolCallDelta {
    ToolCallDelta {
        index,
        id: Some(call.id),
        kind: Some(call.kind),
        function: Some(FunctionCallDelta {
            name: Some(call.function.name),
            arguments: Some(call.function.arguments),
        }),
    }
}
