//! OpenAI's Responses API, as far as it is supported: <https://platform.openai.com/docs/api-reference/responses>.
//!
//! Requests keep their items as JSON, so that errors can name items of unknown types; answers have exactly the shape
//! that the SDKs expect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Body of `POST /v1/responses`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResponsesRequest {
    /// Name of the model; any name is accepted and returned in the answer.
    #[serde(default)]
    pub model: Option<String>,
    /// Input: a string or a list of items.
    #[serde(default)]
    pub input: Value,
    /// System message, which `previous_response_id` does not carry over.
    #[serde(default)]
    pub instructions: Option<String>,
    /// Id of an answer of this episode that `input` continues.
    #[serde(default)]
    pub previous_response_id: Option<String>,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// Whether the model must call a tool: `auto`, `none`, `required` or a named function.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether an answer may have several calls.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Whether to stream the answer as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Whether to keep the answer for later requests, as by default.
    #[serde(default)]
    pub store: Option<bool>,
    /// Maximum number of tokens to sample.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// Sampling temperature; 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Nucleus sampling: probability of the most likely tokens to sample from.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Format of the answer; returned in it.
    #[serde(default)]
    pub text: Option<TextSettings>,
    /// Reasoning effort; returned in the answer.
    #[serde(default)]
    pub reasoning: Option<Reasoning>,
    /// Metadata, returned in the answer.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
}

/// `text` of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct TextSettings {
    /// Format: `text`, `json_object` or `json_schema`.
    #[serde(default)]
    pub format: Option<TextFormat>,
}

/// Format of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with `type`")]
pub struct TextFormat {
    /// Type: `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Schema of `json_schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Further fields, which the answer repeats.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// `reasoning` of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// Reasoning effort, such as `none` or `low`.
    #[serde(default)]
    pub effort: Option<String>,
    /// Further fields.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Answer of `POST /v1/responses`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Id of the answer, `resp_…`.
    pub id: String,
    /// Always `response`.
    pub object: String,
    /// Time in Unix seconds.
    pub created_at: u64,
    /// Status: `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: String,
    /// Why a stream failed; other failures are HTTP errors.
    pub error: Option<Failure>,
    /// Why the answer is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// Value of the request.
    pub instructions: Option<String>,
    /// Value of the request.
    pub max_output_tokens: Option<u64>,
    /// Value of the request.
    pub metadata: Map<String, Value>,
    /// Value of the request.
    pub model: String,
    /// Reasoning, a message and calls, in this order.
    pub output: Vec<OutputItem>,
    /// Value of the request.
    pub parallel_tool_calls: bool,
    /// Value of the request.
    pub previous_response_id: Option<String>,
    /// Value of the request.
    pub reasoning: Option<Reasoning>,
    /// Value of the request.
    pub store: bool,
    /// Value of the request.
    pub temperature: Option<f64>,
    /// Value of the request.
    pub text: Value,
    /// Value of the request.
    pub tool_choice: Value,
    /// Value of the request.
    pub tools: Vec<Value>,
    /// Value of the request.
    pub top_p: Option<f64>,
    /// Always `disabled`: prompts are not truncated.
    pub truncation: String,
    /// Exact token counts; null until the end of a stream.
    pub usage: Option<Usage>,
}

/// Why an answer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Code: `server_error`, `rate_limit_exceeded` or `invalid_prompt`.
    pub code: String,
    /// Message.
    pub message: String,
}

/// Why an answer is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteDetails {
    /// Reason: `max_output_tokens`.
    pub reason: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// Thinking.
    Reasoning {
        /// Id of the item, `rs_…`.
        id: String,
        /// Summaries; always empty.
        summary: Vec<Value>,
        /// Text of the thinking.
        content: Vec<Part>,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
    /// Text.
    Message {
        /// Id of the item, `msg_…`.
        id: String,
        /// Always `assistant`.
        role: String,
        /// Status: `in_progress`, `completed` or `incomplete`.
        status: String,
        /// Content, one part.
        content: Vec<Part>,
    },
    /// A function call.
    FunctionCall {
        /// Id of the item, `fc_…`.
        id: String,
        /// Id of the call, to which its output refers.
        call_id: String,
        /// Namespace of the function.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Name of the function.
        name: String,
        /// Arguments as JSON text.
        arguments: String,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
    /// A call of a tool with text as input.
    CustomToolCall {
        /// Id of the item, `ctc_…`.
        id: String,
        /// Id of the call, to which its output refers.
        call_id: String,
        /// Name of the tool.
        name: String,
        /// Input text.
        input: String,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
    /// A program to run on the client.
    LocalShellCall {
        /// Id of the item, `lsh_…`.
        id: String,
        /// Id of the call, to which its output refers.
        call_id: String,
        /// Program to run.
        action: Value,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
    /// Commands to run.
    ShellCall {
        /// Id of the item, `sh_…`.
        id: String,
        /// Id of the call, to which its output refers.
        call_id: String,
        /// Program to run.
        action: Value,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
    /// A change of a file.
    ApplyPatchCall {
        /// Id of the item, `apc_…`.
        id: String,
        /// Id of the call, to which its output refers.
        call_id: String,
        /// The change.
        operation: Value,
        /// Status: `in_progress` or `completed`.
        status: String,
    },
}

impl OutputItem {
    /// Returns the id.
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

/// Part of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text of a message.
    OutputText {
        /// Text.
        text: String,
        /// Annotations; always empty.
        annotations: Vec<Value>,
        /// Log-probabilities; always empty.
        logprobs: Vec<Value>,
    },
    /// Text of reasoning.
    ReasoningText {
        /// Text.
        text: String,
    },
}

/// Token counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub input_tokens: u64,
    /// Details of the prompt's tokens.
    pub input_tokens_details: InputDetails,
    /// Number of sampled tokens.
    pub output_tokens: u64,
    /// Details of the sampled tokens.
    pub output_tokens_details: OutputDetails,
    /// Sum of both.
    pub total_tokens: u64,
}

/// Details of the prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InputDetails {
    /// Number of tokens from the prefix cache.
    pub cached_tokens: u64,
}

/// Details of the sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputDetails {
    /// Number of tokens of the thinking.
    pub reasoning_tokens: u64,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamEvent {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Number of the event, from 0.
    pub sequence_number: u64,
}

/// Event of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    /// First event.
    #[serde(rename = "response.created")]
    Created {
        /// Answer without output.
        response: Box<Response>,
    },
    /// Second event.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// Answer without output.
        response: Box<Response>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Index of the item in `output`.
        output_index: usize,
        /// Empty item.
        item: OutputItem,
    },
    /// A part of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Empty part.
        part: Part,
    },
    /// A text continues.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Further text.
        delta: String,
        /// Log-probabilities; always empty.
        logprobs: Vec<Value>,
    },
    /// A text is complete.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Text.
        text: String,
        /// Log-probabilities; always empty.
        logprobs: Vec<Value>,
    },
    /// Thinking continues.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Further text.
        delta: String,
    },
    /// Thinking is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Text.
        text: String,
    },
    /// A part is complete.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Index of the part in the item.
        content_index: usize,
        /// Complete part.
        part: Part,
    },
    /// Arguments continue.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Further part of the arguments as JSON text.
        delta: String,
    },
    /// Arguments are complete.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Name of the function.
        name: String,
        /// Arguments as JSON text.
        arguments: String,
    },
    /// Input of a custom tool continues.
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Further text.
        delta: String,
    },
    /// Input of a custom tool is complete.
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item in `output`.
        output_index: usize,
        /// Input text.
        input: String,
    },
    /// An item is complete.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Index of the item in `output`.
        output_index: usize,
        /// Complete item.
        item: OutputItem,
    },
    /// Last event of a complete answer.
    #[serde(rename = "response.completed")]
    Completed {
        /// Complete answer.
        response: Box<Response>,
    },
    /// Last event of a truncated answer.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// Complete answer.
        response: Box<Response>,
    },
    /// Last event of a failed answer.
    #[serde(rename = "response.failed")]
    Failed {
        /// Answer so far, and the error.
        response: Box<Response>,
    },
    /// Only event of an answer that did not begin.
    #[serde(rename = "error")]
    Error {
        /// Code, such as `server_error`.
        code: String,
        /// Message.
        message: String,
        /// Invalid field of the request.
        param: Option<String>,
    },
}
