//! Anthropic's messages API, as far as it is supported: <https://docs.anthropic.com/en/api/messages>.
//!
//! Requests keep their contents as JSON, so that errors can name blocks of unknown types; answers have exactly the
//! shape that the SDKs expect.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::openai::null_as_default;

/// Body of `POST /v1/messages` and, without `max_tokens`, of `POST /v1/messages/count_tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MessagesRequest {
    /// Name of the model; any name is accepted and returned in the answer.
    #[serde(default)]
    pub model: Option<String>,
    /// Messages of `user` and `assistant` in turn.
    #[serde(default, deserialize_with = "null_as_default")]
    pub messages: Vec<MessageParam>,
    /// Maximum number of tokens to sample; required.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// System prompt: a string or text blocks.
    #[serde(default)]
    pub system: Value,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model must call a tool.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Strings that end the answer.
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    /// Whether to stream the answer as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Sampling temperature; 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Nucleus sampling: probability of the most likely tokens to sample from.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Number of most likely tokens to sample from.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// Whether to return the thinking.
    #[serde(default)]
    pub thinking: Option<Thinking>,
    /// Settings of the answer, such as the reasoning effort.
    #[serde(default)]
    pub output_config: Option<OutputConfig>,
}

/// One message of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MessageParam {
    /// Role: `user`, `assistant`, or `system` within a conversation.
    pub role: String,
    /// Content: a string or a list of blocks.
    #[serde(default)]
    pub content: Value,
}

/// A tool that the model may call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tool {
    /// Type: absent or `custom` for tools that the request defines; others are defined by Anthropic.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Name.
    #[serde(default)]
    pub name: Option<String>,
    /// Description.
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema of the input.
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// Whether the input of calls must fit the schema.
    #[serde(default)]
    pub strict: Option<bool>,
    /// Examples of inputs.
    #[serde(default)]
    pub input_examples: Option<Vec<Value>>,
}

/// `tool_choice` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolChoice {
    /// Type of the choice: `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the tool, for `tool`.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether an answer may have at most one call.
    #[serde(default)]
    pub disable_parallel_tool_use: Option<bool>,
}

/// `thinking` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Thinking {
    /// Type: `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `omitted` if the thinking is not to be returned.
    #[serde(default)]
    pub display: Option<String>,
}

/// `output_config` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OutputConfig {
    /// Reasoning effort.
    #[serde(default)]
    pub effort: Option<String>,
    /// Format of the answer; text if absent.
    #[serde(default)]
    pub format: Option<OutputFormat>,
}

/// Format of an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OutputFormat {
    /// Always `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema.
    #[serde(default)]
    pub schema: Option<Value>,
}

/// Answer of `POST /v1/messages`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Id of the answer, `msg_…`.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Always `assistant`.
    pub role: String,
    /// Name of the model, as in the request.
    pub model: String,
    /// Thinking, text and tool calls, in this order.
    pub content: Vec<ContentBlock>,
    /// Why the answer ended: `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null at the start of a stream.
    pub stop_reason: Option<String>,
    /// Stop string that ended the answer.
    pub stop_sequence: Option<String>,
    /// Exact token counts.
    pub usage: Usage,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Thinking, if requested.
    Thinking {
        /// The thinking.
        thinking: String,
        /// Anthropic's signature, which the SDKs require; here the answer's id.
        signature: String,
    },
    /// A tool call.
    ToolUse {
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// Input, an object.
        input: Value,
    },
}

/// Token counts. `input_tokens` are only those of the prompt that were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of prompt tokens that are not from the cache.
    pub input_tokens: u64,
    /// Number of tokens written to a paid cache; always 0.
    pub cache_creation_input_tokens: u64,
    /// Number of prompt tokens from the prefix cache.
    pub cache_read_input_tokens: u64,
    /// Number of sampled tokens.
    pub output_tokens: u64,
}

/// One server-sent event of a streamed answer, in the order: a start, for each block a start, deltas and a stop, then
/// the message's delta and its stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// First event.
    MessageStart {
        /// Message without content.
        message: Message,
    },
    /// A block begins.
    ContentBlockStart {
        /// Index in `content`.
        index: usize,
        /// Empty block.
        content_block: ContentBlock,
    },
    /// A block continues.
    ContentBlockDelta {
        /// Index in `content`.
        index: usize,
        /// Addition to the block.
        delta: BlockDelta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Index in `content`.
        index: usize,
    },
    /// The answer ended.
    MessageDelta {
        /// Why it ended.
        delta: MessageEnd,
        /// Final token counts.
        usage: Usage,
    },
    /// Last event.
    MessageStop,
    /// Keeps the connection alive; may occur anywhere.
    Ping,
}

/// Addition to a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// Text.
    TextDelta {
        /// Further text.
        text: String,
    },
    /// Thinking.
    ThinkingDelta {
        /// Further thinking.
        thinking: String,
    },
    /// Signature at the end of the thinking.
    SignatureDelta {
        /// See [`ContentBlock::Thinking`].
        signature: String,
    },
    /// Input of a tool call.
    InputJsonDelta {
        /// Further part of the input as JSON text.
        partial_json: String,
    },
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageEnd {
    /// See [`Message::stop_reason`].
    pub stop_reason: Option<String>,
    /// See [`Message::stop_sequence`].
    pub stop_sequence: Option<String>,
}

/// Answer of `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// Number of tokens of the rendered prompt.
    pub input_tokens: u64,
}

/// Body of all errors of `/v1/messages`, and the event that ends a failed stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorBody")]
pub struct ErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: ErrorObject,
}

/// Anthropic's error object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorObject")]
pub struct ErrorObject {
    /// Type of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Message.
    pub message: String,
}
