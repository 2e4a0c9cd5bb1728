//! OpenAI's Responses API, as far as it concerns us: <https://platform.openai.com/docs/api-reference/responses>.
//!
//! Requests keep their items as JSON, since those of kinds that we do not know must be told by name; answers have
//! exactly the SDKs' shape.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::openai::ResponseFormat;

/// Body of `POST /v1/responses`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResponsesRequest {
    /// Accepted as it comes and echoed.
    #[serde(default)]
    pub model: Option<String>,
    /// A string, or a list of items.
    #[serde(default)]
    pub input: Value,
    /// The system message; not carried over by `previous_response_id`.
    #[serde(default)]
    pub instructions: Option<String>,
    /// An answer of this episode that `input` goes on from.
    #[serde(default)]
    pub previous_response_id: Option<String>,
    /// Tools the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or a function by name.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether several calls a turn are wanted.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Server-sent events instead of one answer.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Whether later requests may refer to the answer; they may by default.
    #[serde(default)]
    pub store: Option<bool>,
    /// Most tokens to sample.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// What the answer is to be: text.
    #[serde(default)]
    pub text: Option<TextSettings>,
    /// How hard to think; echoed.
    #[serde(default)]
    pub reasoning: Option<Reasoning>,
    /// Echoed.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
}

/// `text` of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct TextSettings {
    /// `text`, or `json_object`, which is text too.
    #[serde(default)]
    pub format: Option<ResponseFormat>,
}

/// `reasoning` of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// `none`, `low`, and the like.
    #[serde(default)]
    pub effort: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Answer of `POST /v1/responses`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// `resp_…`.
    pub id: String,
    /// `response`.
    pub object: String,
    /// Unix seconds.
    pub created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: String,
    /// Why it failed, in a stream; else that is an HTTP error.
    pub error: Option<Failure>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The request's.
    pub instructions: Option<String>,
    /// The request's.
    pub max_output_tokens: Option<u64>,
    /// The request's.
    pub metadata: Map<String, Value>,
    /// The request's.
    pub model: String,
    /// Reasoning, a message, calls, in this order.
    pub output: Vec<OutputItem>,
    /// The request's.
    pub parallel_tool_calls: bool,
    /// The request's.
    pub previous_response_id: Option<String>,
    /// The request's.
    pub reasoning: Option<Reasoning>,
    /// The request's.
    pub store: bool,
    /// The request's.
    pub temperature: Option<f64>,
    /// The request's.
    pub text: Value,
    /// The request's.
    pub tool_choice: Value,
    /// The request's.
    pub tools: Vec<Value>,
    /// The request's.
    pub top_p: Option<f64>,
    /// `disabled`: nothing is cut from a prompt.
    pub truncation: String,
    /// Exact counts; null until the end of a stream.
    pub usage: Option<Usage>,
}

/// Why an answer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// `server_error`, `rate_limit_exceeded` or `invalid_prompt`.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// Why an answer is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// Thinking.
    Reasoning {
        /// `rs_…`.
        id: String,
        /// None are made.
        summary: Vec<Value>,
        /// The thinking itself.
        content: Vec<Part>,
        /// `in_progress` or `completed`.
        status: String,
    },
    /// Text.
    Message {
        /// `msg_…`.
        id: String,
        /// `assistant`.
        role: String,
        /// `in_progress`, `completed` or `incomplete`.
        status: String,
        /// One part.
        content: Vec<Part>,
    },
    /// A call of a function.
    FunctionCall {
        /// `fc_…`.
        id: String,
        /// Names the call; its output refers to it.
        call_id: String,
        /// The namespace that the function is in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// The function.
        name: String,
        /// JSON text.
        arguments: String,
        /// `in_progress` or `completed`.
        status: String,
    },
    /// A call of a tool that takes text.
    CustomToolCall {
        /// `ctc_…`.
        id: String,
        /// Names the call; its output refers to it.
        call_id: String,
        /// The tool.
        name: String,
        /// The text.
        input: String,
        /// `in_progress` or `completed`.
        status: String,
    },
    /// A program to run.
    LocalShellCall {
        /// `lsh_…`.
        id: String,
        /// Names the call; its output refers to it.
        call_id: String,
        /// What to run.
        action: Value,
        /// `in_progress` or `completed`.
        status: String,
    },
    /// Commands to run.
    ShellCall {
        /// `sh_…`.
        id: String,
        /// Names the call; its output refers to it.
        call_id: String,
        /// What to run.
        action: Value,
        /// `in_progress` or `completed`.
        status: String,
    },
    /// A file to change.
    ApplyPatchCall {
        /// `apc_…`.
        id: String,
        /// Names the call; its output refers to it.
        call_id: String,
        /// What to change.
        operation: Value,
        /// `in_progress` or `completed`.
        status: String,
    },
}

impl OutputItem {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. }
            | Self::LocalShellCall { id, .. }
            | Self::ShellCall { id, .. }
            | Self::ApplyPatchCall { id, .. } => id,
        }
    }
}

/// A part of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Of a message.
    OutputText {
        /// The text.
        text: String,
        /// None are made.
        annotations: Vec<Value>,
        /// None are told.
        logprobs: Vec<Value>,
    },
    /// Of reasoning.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// Token counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Fed to the model.
    pub input_tokens: u64,
    /// Of these.
    pub input_tokens_details: InputDetails,
    /// Sampled.
    pub output_tokens: u64,
    /// Of these.
    pub output_tokens_details: OutputDetails,
    /// Their sum.
    pub total_tokens: u64,
}

/// Of the prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InputDetails {
    /// Taken from the prefix cache.
    pub cached_tokens: u64,
}

/// Of the sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputDetails {
    /// Thinking.
    pub reasoning_tokens: u64,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamEvent {
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
    /// Counts from 0.
    pub sequence_number: u64,
}

/// What happened in a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    /// The first.
    #[serde(rename = "response.created")]
    Created {
        /// Without output.
        response: Box<Response>,
    },
    /// The second.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// Without output.
        response: Box<Response>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Its place.
        output_index: usize,
        /// Empty so far.
        item: OutputItem,
    },
    /// A part of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// Empty so far.
        part: Part,
    },
    /// More text.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// The text.
        delta: String,
        /// None are told.
        logprobs: Vec<Value>,
    },
    /// All text.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// The text.
        text: String,
        /// None are told.
        logprobs: Vec<Value>,
    },
    /// More thinking.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// The text.
        delta: String,
    },
    /// All thinking.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// The text.
        text: String,
    },
    /// A part is whole.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The part's place in it.
        content_index: usize,
        /// The part.
        part: Part,
    },
    /// More arguments.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// JSON text.
        delta: String,
    },
    /// All arguments.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The function.
        name: String,
        /// JSON text.
        arguments: String,
    },
    /// More input of a custom tool.
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The text.
        delta: String,
    },
    /// All input of a custom tool.
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        /// The item.
        item_id: String,
        /// Its place.
        output_index: usize,
        /// The text.
        input: String,
    },
    /// An item is whole.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Its place.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// The last, of an answer that ended by itself.
    #[serde(rename = "response.completed")]
    Completed {
        /// All of it.
        response: Box<Response>,
    },
    /// The last, of an answer that was cut.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// All of it.
        response: Box<Response>,
    },
    /// The last, of an answer that was broken off.
    #[serde(rename = "response.failed")]
    Failed {
        /// As far as it came, and why.
        response: Box<Response>,
    },
    /// The only one, of an answer that did not begin.
    #[serde(rename = "error")]
    Error {
        /// Such as `server_error`.
        code: String,
        /// A sentence.
        message: String,
        /// The field that is wrong.
        param: Option<String>,
    },
}
