//! OpenAI's chat completions, the model API that agents call.
//!
//! Requests keep unknown fields; answers have exactly OpenAI's shape plus the documented extensions
//! `reasoning_content`, `prompt_token_ids` and `token_ids`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatRequest {
    /// Name of the model; any name is accepted and returned in the answer.
    #[serde(default)]
    pub model: Option<String>,
    /// Messages of the conversation.
    #[serde(default, deserialize_with = "null_as_default")]
    pub messages: Vec<ChatMessage>,
    /// Functions that the model may call, passed to the chat template unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// Whether the model must call a tool: `auto`, `none`, `required` or a named function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    /// Whether an answer may have several tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Whether to stream the answer as server-sent events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Further data of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Maximum number of tokens to sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Newer name of `max_tokens`, which takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u64>,
    /// Strings that end the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopStrings>,
    /// Number of answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Seed of the sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Whether to return log-probabilities of the sampled tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Number of most likely tokens to return with log-probabilities, at most 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u64>,
    /// Sampling temperature; 0 is greedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling: probability of the most likely tokens to sample from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Extension: number of most likely tokens to sample from; −1 or 0 for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Extension: minimum probability of a token, relative to the most likely one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Subtracted from a token's logit for each occurrence in the answer; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// Subtracted from the logits of tokens that occur in the answer; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Added to the logits of tokens, by token id; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Reasoning effort, the chat template's variable `reasoning_effort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Extension of some servers: reasoning with `effort` and `enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningSwitch>,
    /// Extension of some servers: thinking of type `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingSwitch>,
    /// Format of the answer: `text`, `json_object` or `json_schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// Extension: whether to think, the chat template's variable `enable_thinking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_thinking: Option<bool>,
    /// Extension: whether the prompt ends with the generation prompt, as by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Extension: whether the last message, of the assistant, is the beginning of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// Extension: whether to return `prompt_token_ids` and `token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// Extension: variables for the chat template, such as `enable_thinking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
}

/// Reasoning of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct ReasoningSwitch {
    /// Reasoning effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Whether to reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Thinking of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct ThinkingSwitch {
    /// `enabled` or `disabled`; other values leave it to the model.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Format of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with `type`")]
pub struct ResponseFormat {
    /// Type of the format: `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema of `json_schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchemaFormat>,
}

impl ResponseFormat {
    /// Returns the format of JSON that fits a schema.
    pub fn of_schema(schema: Option<Value>) -> Self {
        Self {
            kind: "json_schema".into(),
            json_schema: Some(JsonSchemaFormat { schema }),
        }
    }
}

/// JSON schema of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with `schema`")]
pub struct JsonSchemaFormat {
    /// The schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// Further data of a stream.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Whether to send a last chunk with the usage.
    #[serde(default, deserialize_with = "null_as_default")]
    pub include_usage: bool,
    /// Extension: whether every chunk contains the usage so far.
    #[serde(default, deserialize_with = "null_as_default")]
    pub continuous_usage_stats: bool,
}

/// `stop` of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum StopStrings {
    /// A single string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl StopStrings {
    /// Returns the strings of either form.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(s) => std::slice::from_ref(s),
            Self::Many(v) => v,
        }
    }
}

/// One message of a conversation, in a request or an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Role: `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Content: a string, null, or a list of text parts.
    #[serde(default)]
    pub content: Value,
    /// Thinking of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Other name of `reasoning_content` in requests.
    #[serde(default, skip_serializing)]
    pub reasoning: Value,
    /// Refusal of a model in a request, which counts as content.
    #[serde(default, skip_serializing)]
    pub refusal: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the participant, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ChatMessage {
    /// Creates a message without other fields. `content` is a string, null, or a list of parts.
    pub fn new(role: &str, content: impl Into<Value>) -> Self {
        Self {
            role: role.to_owned(),
            content: content.into(),
            ..Self::default()
        }
    }
}

/// A tool call of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id of the call.
    #[serde(default, deserialize_with = "null_as_default")]
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// Function and arguments.
    pub function: FunctionCall,
}

fn function() -> String {
    "function".into()
}

/// Function and arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text.
    #[serde(default, deserialize_with = "null_as_default")]
    pub arguments: String,
}

/// Deserialises null as the default, since many clients send null for omitted fields.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Answer of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatCompletion {
    /// Id of the answer, `chatcmpl-…`.
    pub id: String,
    /// Always `chat.completion`.
    pub object: String,
    /// Time in Unix seconds.
    pub created: u64,
    /// Name of the model, as in the request.
    pub model: String,
    /// Answers.
    pub choices: Vec<Choice>,
    /// Exact token counts.
    pub usage: Usage,
    /// Extension: token ids of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model or a stop string ended it.
    Stop,
    /// A token limit was reached.
    Length,
    /// It has tool calls.
    ToolCalls,
    /// Any other reason of another server, such as `content_filter`.
    #[serde(untagged)]
    Other(String),
}

/// One answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Choice {
    /// Index of the answer among `n`.
    pub index: u32,
    /// Message of the assistant.
    pub message: ChatMessage,
    /// Why the answer ended.
    pub finish_reason: Option<FinishReason>,
    /// Extension: stop string that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Log-probabilities, if requested.
    pub logprobs: Option<ChoiceLogprobs>,
    /// Extension: sampled token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChoiceLogprobs {
    /// One entry per sampled token.
    pub content: Vec<TokenLogprob>,
}

/// Log-probability of one token.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm of the probability.
    pub logprob: f64,
    /// Bytes of the token.
    pub bytes: Option<Vec<u8>>,
    /// Most likely tokens at this position.
    #[serde(default)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// Log-probability of a likely token at a position.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Natural logarithm of the probability.
    pub logprob: f64,
    /// Bytes of the token.
    pub bytes: Option<Vec<u8>>,
}

/// Token counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt_tokens: u64,
    /// Number of sampled tokens.
    pub completion_tokens: u64,
    /// Sum of both.
    pub total_tokens: u64,
    /// Details of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// Details of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Details of the sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionTokensDetails {
    /// Number of tokens up to the end of the thinking.
    pub reasoning_tokens: u64,
}

/// Details of the prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Number of tokens from the prefix cache.
    pub cached_tokens: u64,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatCompletionChunk {
    /// Id of the answer, `chatcmpl-…`, the same in every chunk.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: String,
    /// Time in Unix seconds.
    pub created: u64,
    /// Name of the model, as in the request.
    pub model: String,
    /// Additions to answers; empty in the usage chunk.
    pub choices: Vec<ChunkChoice>,
    /// Usage in the last chunk, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Extension: token ids of the prompt in the first chunk, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Addition of a chunk to an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChunkChoice {
    /// Index of the answer among `n`.
    pub index: u32,
    /// Addition to the message.
    pub delta: Delta,
    /// Why the answer ended, in its last chunk.
    pub finish_reason: Option<FinishReason>,
    /// Extension: stop string that ended the answer, in its last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Log-probabilities of the tokens of this chunk, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
    /// Extension: token ids of this chunk, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Addition to a message of the assistant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Delta {
    /// Role, in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Further text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Further thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Further tool calls or parts of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// Addition to a tool call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// Index of the call in the message.
    pub index: u32,
    /// Id of the call, in its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function`, in the call's first chunk.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the function, then pieces of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionCallDelta>,
}

/// Addition to the function of a call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FunctionCallDelta {
    /// Name of the function, in the call's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Part of the arguments' JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// Body of all errors of `/v1` and of the engine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// OpenAI's error object.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// Message.
    pub message: String,
    /// Type of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Invalid field of the request.
    pub param: Option<String>,
    /// Code of the error, such as `context_length_exceeded`.
    pub code: Option<String>,
    /// Extension: numbers of tokens of a `context_length_exceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PromptTokens>,
}

/// Length of a prompt beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptTokens {
    /// Number of tokens of the prompt.
    pub given: u64,
    /// Maximum number of tokens of a prompt.
    pub max: u64,
}
