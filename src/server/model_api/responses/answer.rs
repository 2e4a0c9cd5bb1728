//! Converting a chat answer to OpenAI's response.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::client_tools::ClientTool;
use super::kept::Kept;
use super::request::messages_of;
use super::tools::{ToolKind, functions};
use crate::protocol::openai::{self, ChatCompletionChunk, ChatMessage, FinishReason, ToolCall};
use crate::protocol::responses::{
    Event, Failure, IncompleteDetails, InputDetails, OutputDetails, OutputItem, Part, Response, ResponsesRequest,
    StreamEvent, Usage,
};
use crate::server::model_api::{AnswerWriter, ServerEvent, id_tail, whole_call};

/// Builds a [`Response`] or the events of its stream.
pub struct ResponseWriter {
    response: Response,
    new_messages: Vec<ChatMessage>,
    /// Chat functions that stand for other kinds of tools.
    kinds: HashMap<String, ToolKind>,
    begun: bool,
    /// Whether the last item is still open.
    open: bool,
    /// Emitted after all text, in whatever order the model wrote them.
    calls: Vec<ToolCall>,
    usage: Usage,
    events: Vec<Event>,
    next_sequence_number: u64,
}

impl ResponseWriter {
    /// Starts the answer to this request, which adds these messages to the episode.
    pub fn new(request: &ResponsesRequest, new_messages: Vec<ChatMessage>) -> Self {
        let tools = request.tools.clone().unwrap_or_default();
        Self {
            // Unknown tools were refused before.
            kinds: functions(&tools).map(|(_, kinds)| kinds).unwrap_or_default(),
            response: Response {
                id: String::new(),
                object: "response".into(),
                created_at: 0,
                status: "in_progress".into(),
                error: None,
                incomplete_details: None,
                instructions: request.instructions.clone(),
                max_output_tokens: request.max_output_tokens,
                metadata: request.metadata.clone().unwrap_or_default(),
                model: String::new(),
                output: Vec::new(),
                parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
                previous_response_id: request.previous_response_id.clone(),
                reasoning: request.reasoning.clone(),
                store: request.store.unwrap_or(true),
                temperature: request.temperature,
                text: match request.text.as_ref().and_then(|text| text.format.as_ref()) {
                    Some(format) => json!({ "format": format }),
                    None => json!({"format": {"type": "text"}}),
                },
                tool_choice: request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
                tools,
                top_p: request.top_p,
                truncation: "disabled".into(),
                usage: None,
            },
            new_messages,
            begun: false,
            open: false,
            calls: Vec::new(),
            usage: Usage::default(),
            events: Vec::new(),
            next_sequence_number: 0,
        }
    }

    fn begin(&mut self, chunk: &ChatCompletionChunk) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        self.response.id = format!("resp_{}", id_tail(&chunk.id));
        self.response.created_at = chunk.created;
        self.response.model.clone_from(&chunk.model);
        let response = Box::new(self.response.clone());
        self.events.push(Event::Created {
            response: response.clone(),
        });
        self.events.push(Event::InProgress { response });
    }

    /// Returns an id for an item of this answer.
    fn id(&self, prefix: &str) -> String {
        let tail = self.response.id.trim_start_matches("resp_");
        format!("{prefix}_{tail}_{}", self.response.output.len())
    }

    fn add_reasoning(&mut self, delta: String) {
        if delta.is_empty() {
            return;
        }
        if !matches!(self.response.output.last(), Some(OutputItem::Reasoning { .. })) {
            let item = OutputItem::Reasoning {
                id: self.id("rs"),
                summary: Vec::new(),
                content: Vec::new(),
                status: "in_progress".into(),
            };
            self.open(item, Some(Part::ReasoningText { text: String::new() }));
        }
        let (output_index, item_id) = self.place();
        self.grow(&delta);
        self.events.push(Event::ReasoningDelta {
            item_id,
            output_index,
            content_index: 0,
            delta,
        });
    }

    fn add_text(&mut self, delta: String) {
        if delta.is_empty() {
            return;
        }
        if !matches!(self.response.output.last(), Some(OutputItem::Message { .. })) {
            let item = OutputItem::Message {
                id: self.id("msg"),
                role: "assistant".into(),
                status: "in_progress".into(),
                content: Vec::new(),
            };
            let part = Part::OutputText {
                text: String::new(),
                annotations: Vec::new(),
                logprobs: Vec::new(),
            };
            self.open(item, Some(part));
        }
        let (output_index, item_id) = self.place();
        self.grow(&delta);
        self.events.push(Event::TextDelta {
            item_id,
            output_index,
            content_index: 0,
            delta,
            logprobs: Vec::new(),
        });
    }

    /// Opens an item and its only part.
    fn open(&mut self, item: OutputItem, part: Option<Part>) {
        self.close("completed");
        self.response.output.push(item.clone());
        self.open = true;
        let (output_index, item_id) = self.place();
        self.events.push(Event::ItemAdded { output_index, item });
        let Some(part) = part else { return };
        if let Some(OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. }) =
            self.response.output.last_mut()
        {
            content.push(part.clone());
        }
        self.events.push(Event::PartAdded {
            item_id,
            output_index,
            content_index: 0,
            part,
        });
    }

    /// Returns index and id of the last item.
    fn place(&self) -> (usize, String) {
        let id = self.response.output.last().map_or("", OutputItem::id);
        (self.response.output.len().saturating_sub(1), id.to_owned())
    }

    /// Appends to the only part of the last item.
    fn grow(&mut self, more: &str) {
        if let Some(OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. }) =
            self.response.output.last_mut()
            && let Some(Part::OutputText { text, .. } | Part::ReasoningText { text }) = content.last_mut()
        {
            text.push_str(more);
        }
    }

    /// Closes the last item if it is open.
    fn close(&mut self, how: &str) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let (output_index, item_id) = self.place();
        let Some(item) = self.response.output.last_mut() else {
            return; // none is open
        };
        match item {
            OutputItem::Reasoning { status, content, .. } | OutputItem::Message { status, content, .. } => {
                *status = how.to_owned();
                self.events
                    .extend(content.iter().flat_map(|part| part_done(part, &item_id, output_index)));
            }
            OutputItem::FunctionCall {
                status,
                name,
                arguments,
                ..
            } => {
                *status = "completed".into(); // only text can be cut off
                self.events.push(Event::ArgumentsDone {
                    item_id,
                    output_index,
                    name: name.clone(),
                    arguments: arguments.clone(),
                });
            }
            OutputItem::LocalShellCall { status, .. }
            | OutputItem::ShellCall { status, .. }
            | OutputItem::ApplyPatchCall { status, .. } => *status = "completed".into(), // as above
            OutputItem::CustomToolCall { status, input, .. } => {
                *status = "completed".into(); // as above
                self.events.push(Event::InputDone {
                    item_id,
                    output_index,
                    input: input.clone(),
                });
            }
        }
        let item = item.clone();
        self.events.push(Event::ItemDone { output_index, item });
    }

    fn add_call(&mut self, call: ToolCall) {
        let (call_id, name, arguments) = (call.id, call.function.name, call.function.arguments);
        let (namespace, name) = match self.kinds.get(&name).cloned() {
            Some(ToolKind::Custom) => return self.add_custom_call(call_id, name, arguments),
            Some(ToolKind::Client(tool)) => match tool.action(&arguments) {
                Some(action) => return self.add_client_call(tool, call_id, action),
                None => (None, name), // an unknown call, which the client can refuse
            },
            Some(ToolKind::InNamespace { namespace, name }) => (Some(namespace), name),
            None => (None, name),
        };
        let id = self.id("fc");
        let item = |arguments| OutputItem::FunctionCall {
            id: id.clone(),
            call_id: call_id.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            arguments,
            status: "in_progress".into(),
        };
        self.open(item(String::new()), None);
        let (output_index, item_id) = self.place();
        self.fill(item(arguments.clone()));
        self.events.push(Event::ArgumentsDelta {
            item_id,
            output_index,
            delta: arguments,
        });
    }

    fn add_client_call(&mut self, tool: ClientTool, call_id: String, action: Value) {
        let status = "in_progress".to_owned();
        let item = match tool {
            ClientTool::LocalShell => OutputItem::LocalShellCall {
                id: self.id("lsh"),
                call_id,
                action,
                status,
            },
            ClientTool::Shell => OutputItem::ShellCall {
                id: self.id("sh"),
                call_id,
                action,
                status,
            },
            ClientTool::ApplyPatch => OutputItem::ApplyPatchCall {
                id: self.id("apc"),
                call_id,
                operation: action,
                status,
            },
        };
        self.open(item, None);
    }

    fn add_custom_call(&mut self, call_id: String, name: String, arguments: String) {
        let id = self.id("ctc");
        let item = |input| OutputItem::CustomToolCall {
            id: id.clone(),
            call_id: call_id.clone(),
            name: name.clone(),
            input,
            status: "in_progress".into(),
        };
        self.open(item(String::new()), None);
        let (output_index, item_id) = self.place();
        let written: Value = serde_json::from_str(&arguments).unwrap_or_default();
        let input = written["input"].as_str().map_or(arguments, str::to_owned);
        self.fill(item(input.clone()));
        self.events.push(Event::InputDelta {
            item_id,
            output_index,
            delta: input,
        });
    }

    fn fill(&mut self, item: OutputItem) {
        if let Some(last) = self.response.output.last_mut() {
            *last = item;
        }
    }

    /// Returns the events since the last call, numbered.
    fn take_events(&mut self) -> Vec<ServerEvent> {
        let events = std::mem::take(&mut self.events);
        let numbered = events.into_iter().zip(self.next_sequence_number..);
        let emitted: Vec<ServerEvent> = numbered
            .map(|(event, sequence_number)| ServerEvent::new(&StreamEvent { event, sequence_number }))
            .collect();
        self.next_sequence_number += emitted.len() as u64;
        emitted
    }
}

impl AnswerWriter for ResponseWriter {
    fn chunk(&mut self, chunk: ChatCompletionChunk) -> Vec<ServerEvent> {
        self.begin(&chunk);
        if let Some(usage) = &chunk.usage {
            self.usage = counts(usage);
        }
        for choice in chunk.choices {
            self.add_reasoning(choice.delta.reasoning_content.unwrap_or_default());
            self.add_text(choice.delta.content.unwrap_or_default());
            self.calls
                .extend(choice.delta.tool_calls.into_iter().flatten().map(whole_call));
            if choice.finish_reason == Some(FinishReason::Length) {
                self.response.incomplete_details = Some(IncompleteDetails {
                    reason: "max_output_tokens".into(),
                });
            }
        }
        self.take_events()
    }

    fn end(&mut self) -> Vec<ServerEvent> {
        let cut = self.response.incomplete_details.is_some();
        let status = if cut { "incomplete" } else { "completed" };
        for call in std::mem::take(&mut self.calls) {
            self.add_call(call);
        }
        self.close(status);
        self.response.status = status.into();
        self.response.usage = Some(self.usage.clone());
        let response = Box::new(self.response.clone());
        self.events.push(match cut {
            true => Event::Incomplete { response },
            false => Event::Completed { response },
        });
        self.take_events()
    }

    fn failed(&mut self, error: openai::ErrorObject) -> Vec<ServerEvent> {
        let code = match error.kind.as_str() {
            "server_error" => "server_error",
            "rate_limit_error" => "rate_limit_exceeded",
            _ => "invalid_prompt",
        };
        let (code, message) = (code.to_owned(), error.message);
        if !self.begun {
            let param = error.param;
            self.events.push(Event::Error { code, message, param });
            return self.take_events();
        }
        self.close("incomplete");
        self.response.status = "failed".into();
        self.response.error = Some(Failure { code, message });
        let response = Box::new(self.response.clone());
        self.events.push(Event::Failed { response });
        self.take_events()
    }

    fn answer(&self) -> Value {
        json!(self.response)
    }

    fn kept(&self) -> Option<Kept> {
        if !self.response.store {
            return None;
        }
        let items: Vec<Value> = self.response.output.iter().map(|item| json!(item)).collect();
        let mut answer = messages_of(&items).ok()?; // our own items are valid
        if answer.is_empty() {
            answer.push(ChatMessage::new("assistant", ""));
        }
        let mut response = self.answer();
        response["output"] = Value::Null; // stored separately
        Some(Kept {
            id: self.response.id.clone(),
            previous: self.response.previous_response_id.clone(),
            messages: self.new_messages.iter().cloned().chain(answer).collect(),
            response,
            output: items,
        })
    }
}

fn part_done(part: &Part, item_id: &str, output_index: usize) -> [Event; 2] {
    let (item_id, content_index) = (item_id.to_owned(), 0);
    let text_done = match part.clone() {
        Part::OutputText { text, .. } => Event::TextDone {
            item_id: item_id.clone(),
            output_index,
            content_index,
            text,
            logprobs: Vec::new(),
        },
        Part::ReasoningText { text } => Event::ReasoningDone {
            item_id: item_id.clone(),
            output_index,
            content_index,
            text,
        },
    };
    let part = part.clone();
    let done = Event::PartDone {
        item_id,
        output_index,
        content_index,
        part,
    };
    [text_done, done]
}

fn counts(usage: &openai::Usage) -> Usage {
    let details = usage.prompt_tokens_details.as_ref();
    let sampled = usage.completion_tokens_details.as_ref();
    Usage {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: InputDetails {
            cached_tokens: details.map_or(0, |details| details.cached_tokens),
        },
        output_tokens: usage.completion_tokens,
        output_tokens_details: OutputDetails {
            reasoning_tokens: sampled.map_or(0, |details| details.reasoning_tokens),
        },
        total_tokens: usage.total_tokens,
    }
}
