//! Anthropic's messages API, as far as it concerns us: <https://docs.anthropic.com/en/api/messages>.
//!
//! Requests keep their contents as JSON, since blocks of kinds that we do not know must be told by name; answers have
//! exactly the SDKs' shape.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /v1/messages` and, without `max_tokens`, of `POST /v1/messages/count_tokens`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MessagesRequest {
    /// Accepted as it comes and echoed.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation: `user` and `assistant` in turn.
    #[serde(default)]
    pub messages: Vec<MessageParam>,
    /// Most tokens to sample; the API wants it to be given.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// A string, or text blocks.
    #[serde(default)]
    pub system: Value,
    /// Tools the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether it may, must, or must not.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Strings that end the answer.
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    /// Server-sent events instead of one answer.
    #[serde(default)]
    pub stream: Option<bool>,
    /// 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// The k likeliest tokens.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// Whether thinking is to be shown.
    #[serde(default)]
    pub thinking: Option<Thinking>,
    /// How hard to think and work.
    #[serde(default)]
    pub output_config: Option<OutputConfig>,
}

/// One message of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MessageParam {
    /// `user`, `assistant`, or `system` in the middle of a conversation.
    pub role: String,
    /// A string, or a list of blocks.
    #[serde(default)]
    pub content: Value,
}

/// A tool on offer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tool {
    /// Absent or `custom` for tools that the request describes; others are defined by Anthropic.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// What it does.
    #[serde(default)]
    pub description: Option<String>,
    /// JSON schema of its input.
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// Inputs that the model is shown.
    #[serde(default)]
    pub input_examples: Option<Vec<Value>>,
}

/// `tool_choice` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of `tool`.
    #[serde(default)]
    pub name: Option<String>,
    /// One call a turn at most.
    #[serde(default)]
    pub disable_parallel_tool_use: Option<bool>,
}

/// `thinking` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `omitted` where thinking is not to be shown.
    #[serde(default)]
    pub display: Option<String>,
}

/// `output_config` of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OutputConfig {
    /// How hard to think and work.
    #[serde(default)]
    pub effort: Option<String>,
}

/// Answer of `POST /v1/messages`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `msg_…`.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// The request's.
    pub model: String,
    /// Thinking, text, tool calls, in this order.
    pub content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null at the start of a stream.
    pub stop_reason: Option<String>,
    /// The string that ended the answer.
    pub stop_sequence: Option<String>,
    /// Exact counts.
    pub usage: Usage,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// It.
        text: String,
    },
    /// Thinking, where the request asked to see it.
    Thinking {
        /// It.
        thinking: String,
        /// Anthropic's proof of origin, which the SDKs want to be there; here the answer's id.
        signature: String,
    },
    /// A tool call.
    ToolUse {
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
        /// An object.
        input: Value,
    },
}

/// Token counts. The prompt's are split: `input_tokens` are those that were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt, without those from the cache.
    pub input_tokens: u64,
    /// Written to the cache at a price; none here.
    pub cache_creation_input_tokens: u64,
    /// Of the prompt, from the prefix cache.
    pub cache_read_input_tokens: u64,
    /// Sampled.
    pub output_tokens: u64,
}

/// One server-sent event of a streamed answer, in the order: a start, for each block a start, deltas and a stop, then
/// the message's delta and its stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    /// The first.
    MessageStart {
        /// Without content.
        message: Message,
    },
    /// A block begins.
    ContentBlockStart {
        /// Its place in `content`.
        index: usize,
        /// Empty so far.
        content_block: ContentBlock,
    },
    /// A block grows.
    ContentBlockDelta {
        /// Its place.
        index: usize,
        /// By this.
        delta: BlockDelta,
    },
    /// A block is whole.
    ContentBlockStop {
        /// Its place.
        index: usize,
    },
    /// Why the answer ended.
    MessageDelta {
        /// What is known now.
        delta: MessageEnd,
        /// The final counts.
        usage: Usage,
    },
    /// The last.
    MessageStop,
    /// Anywhere: the answer is still being made.
    Ping,
}

/// An addition to a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// Of a text.
    TextDelta {
        /// More.
        text: String,
    },
    /// Of thinking.
    ThinkingDelta {
        /// More.
        thinking: String,
    },
    /// Of thinking, at its end.
    SignatureDelta {
        /// See [`ContentBlock::Thinking`].
        signature: String,
    },
    /// Of a tool call.
    InputJsonDelta {
        /// More of the input as JSON text.
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
    /// Of the prompt that the request would be rendered to.
    pub input_tokens: u64,
}

/// Body of every error on `/v1/messages`, and the event at which a stream breaks off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorBody")]
pub struct ErrorBody {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    pub error: ErrorObject,
}

/// Anthropic's error object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorObject")]
pub struct ErrorObject {
    /// Such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A sentence.
    pub message: String,
}
