//! Converting a chat answer to Anthropic's message.

use serde_json::{Value, json};

use super::error_body;
use crate::protocol::anthropic::{BlockDelta, ContentBlock, Message, MessageEnd, MessagesRequest, StreamEvent, Usage};
use crate::protocol::openai::{self, ChatCompletionChunk, FinishReason, FunctionCall, ToolCall};
use crate::server::model_api::{AnswerWriter, ServerEvent, id_tail, whole_call};

/// Builds a [`Message`] or the events of its stream.
pub struct MessageWriter {
    message: Message,
    begun: bool,
    /// Whether the request enabled thinking.
    shows_thinking: bool,
    /// Whether the last block is still open.
    open: bool,
    /// Emitted after all text, in whatever order the model wrote them.
    calls: Vec<ToolCall>,
}

impl MessageWriter {
    /// Starts the answer to this request.
    pub fn new(request: &MessagesRequest) -> Self {
        let shows_thinking = request.thinking.as_ref().is_some_and(|thinking| {
            matches!(thinking.kind.as_str(), "enabled" | "adaptive") && thinking.display.as_deref() != Some("omitted")
        });
        Self {
            message: Message {
                id: String::new(),
                kind: "message".into(),
                role: "assistant".into(),
                model: String::new(),
                content: Vec::new(),
                stop_reason: None,
                stop_sequence: None,
                usage: Usage::default(),
            },
            begun: false,
            shows_thinking,
            open: false,
            calls: Vec::new(),
        }
    }

    fn take(&mut self, chunk: ChatCompletionChunk) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        if let Some(usage) = &chunk.usage {
            self.message.usage = split_usage(usage);
        }
        if !self.begun {
            self.begun = true;
            self.message.id = format!("msg_{}", id_tail(&chunk.id));
            self.message.model = chunk.model;
            events.push(StreamEvent::MessageStart {
                message: self.message.clone(),
            });
        }
        for choice in chunk.choices {
            let delta = choice.delta;
            if let Some(more) = delta.reasoning_content.filter(|_| self.shows_thinking) {
                self.add_thinking(more, &mut events);
            }
            if let Some(more) = delta.content {
                self.add_text(more, &mut events);
            }
            self.calls
                .extend(delta.tool_calls.into_iter().flatten().map(whole_call));
            if let Some(reason) = choice.finish_reason {
                self.message.stop_sequence = choice.stop_reason;
                self.message.stop_reason = Some(self.stop_reason(&reason).to_owned());
            }
        }
        events
    }

    fn stop_reason(&self, finish_reason: &FinishReason) -> &'static str {
        match finish_reason {
            FinishReason::Length => "max_tokens",
            FinishReason::ToolCalls => "tool_use",
            _ if self.message.stop_sequence.is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }

    fn add_text(&mut self, more: String, events: &mut Vec<StreamEvent>) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.message.content.last(), Some(ContentBlock::Text { .. })) {
            self.open(ContentBlock::Text { text: String::new() }, events);
        }
        if let Some(ContentBlock::Text { text }) = self.message.content.last_mut() {
            text.push_str(&more);
        }
        self.grow(BlockDelta::TextDelta { text: more }, events);
    }

    fn add_thinking(&mut self, more: String, events: &mut Vec<StreamEvent>) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.message.content.last(), Some(ContentBlock::Thinking { .. })) {
            let empty = ContentBlock::Thinking {
                thinking: String::new(),
                signature: String::new(),
            };
            self.open(empty, events);
        }
        if let Some(ContentBlock::Thinking { thinking, .. }) = self.message.content.last_mut() {
            thinking.push_str(&more);
        }
        self.grow(BlockDelta::ThinkingDelta { thinking: more }, events);
    }

    fn open(&mut self, block: ContentBlock, events: &mut Vec<StreamEvent>) {
        self.close(events);
        events.push(StreamEvent::ContentBlockStart {
            index: self.message.content.len(),
            content_block: block.clone(),
        });
        self.message.content.push(block);
        self.open = true;
    }

    fn grow(&self, delta: BlockDelta, events: &mut Vec<StreamEvent>) {
        let index = self.message.content.len() - 1; // a block is open
        events.push(StreamEvent::ContentBlockDelta { index, delta });
    }

    fn close(&mut self, events: &mut Vec<StreamEvent>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let id = self.message.id.clone();
        if let Some(ContentBlock::Thinking { signature, .. }) = self.message.content.last_mut() {
            signature.clone_from(&id);
            self.grow(BlockDelta::SignatureDelta { signature: id }, events);
        }
        let index = self.message.content.len() - 1; // as above
        events.push(StreamEvent::ContentBlockStop { index });
    }

    fn last_events(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for call in std::mem::take(&mut self.calls) {
            let FunctionCall { name, arguments } = call.function;
            // The parsers accept only JSON objects.
            let input = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            let block = |input| ContentBlock::ToolUse {
                id: call.id.clone(),
                name: name.clone(),
                input,
            };
            self.open(block(json!({})), &mut events);
            let partial_json = arguments;
            self.grow(BlockDelta::InputJsonDelta { partial_json }, &mut events);
            if let Some(last) = self.message.content.last_mut() {
                *last = block(input);
            }
        }
        self.close(&mut events);
        events.push(StreamEvent::MessageDelta {
            delta: MessageEnd {
                stop_reason: self.message.stop_reason.clone(),
                stop_sequence: self.message.stop_sequence.clone(),
            },
            usage: self.message.usage,
        });
        events.push(StreamEvent::MessageStop);
        events
    }
}

impl AnswerWriter for MessageWriter {
    fn chunk(&mut self, chunk: ChatCompletionChunk) -> Vec<ServerEvent> {
        self.take(chunk).iter().map(ServerEvent::new).collect()
    }

    fn end(&mut self) -> Vec<ServerEvent> {
        self.last_events().iter().map(ServerEvent::new).collect()
    }

    fn failed(&mut self, error: openai::ErrorObject) -> Vec<ServerEvent> {
        let status = match (error.kind.as_str(), error.code.as_deref()) {
            ("server_error", Some("engine_unavailable")) => 503,
            ("server_error", _) => 500,
            ("rate_limit_error", _) => 429,
            (_, Some("episode_not_found")) => 404,
            _ => 400,
        };
        vec![ServerEvent::new(&error_body(status, error))]
    }

    fn heartbeat(&self) -> Option<ServerEvent> {
        Some(ServerEvent::new(&StreamEvent::Ping))
    }

    fn answer(&self) -> Value {
        json!(self.message)
    }
}

fn split_usage(usage: &openai::Usage) -> Usage {
    let cached = usage
        .prompt_tokens_details
        .as_ref()
        .map_or(0, |details| details.cached_tokens);
    Usage {
        input_tokens: usage.prompt_tokens.saturating_sub(cached),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached,
        output_tokens: usage.completion_tokens,
    }
}
