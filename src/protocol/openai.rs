//! The model API that agents call: OpenAI's chat completions, as far as they concern us.
//!
//! Requests keep fields that we do not know; answers have exactly OpenAI's shape plus the documented extensions
//! `reasoning_content`, `prompt_token_ids` and `token_ids`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatRequest {
    /// Accepted as it comes and echoed.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation.
    #[serde(default)]
    pub messages: Vec<ChatMessage>,
    /// Functions the model may call, passed to the chat template as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required` or a named function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    /// Whether several calls a turn are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Server-sent events instead of one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// What a stream tells besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Most tokens to sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The newer name of `max_tokens`; it wins where both are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u64>,
    /// One string or several that end the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopStrings>,
    /// Answers wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Makes the answer repeatable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Log-probabilities of the sampled tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Log-probabilities of the likeliest tokens, at most 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u64>,
    /// 0 is greedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Extension: the k likeliest tokens; −1 or 0 for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Extension: tokens at least this share as likely as the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Taken off a token's logit for each time that the answer has it; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// Taken off the logits of the tokens that the answer has; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Added to the logits of tokens, by their ids; eval episodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// How hard to think: the chat template's variable `reasoning_effort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Extension, as some servers have it: `effort` and whether it is `enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningSwitch>,
    /// Extension, as some servers have it: thinking of type `enabled` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingSwitch>,
    /// `text`, or `json_object`, which is text too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// Extension: whether to think, the chat template's variable of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_thinking: Option<bool>,
    /// Extension: whether the prompt ends with the beginning of an assistant's turn. It does by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Extension: the last message, an assistant's, is the beginning of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_final_message: Option<bool>,
    /// Extension: `prompt_token_ids` and `token_ids` in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// Extension: variables for the chat template, such as `enable_thinking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
}

/// How to think.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct ReasoningSwitch {
    /// How hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Whether at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Whether to think.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct ThinkingSwitch {
    /// `enabled` or `disabled`; others leave it to the model.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// What an answer is to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object with `type`")]
pub struct ResponseFormat {
    /// `text` or `json_object`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What a stream tells besides its deltas.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    #[serde(default, deserialize_with = "null_as_default")]
    pub include_usage: bool,
    /// Extension: the usage so far in every chunk.
    #[serde(default, deserialize_with = "null_as_default")]
    pub continuous_usage_stats: bool,
}

/// `stop` of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum StopStrings {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl StopStrings {
    /// The strings, whichever way they were given.
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
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// A string, null, or a list of text parts.
    #[serde(default)]
    pub content: Value,
    /// Thinking, for models that think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Another name of `reasoning_content`, of a request.
    #[serde(default, skip_serializing)]
    pub reasoning: Value,
    /// What a model answered that refused, of a request: it is content.
    #[serde(default, skip_serializing)]
    pub refusal: Option<String>,
    /// Calls the assistant made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who speaks, where that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A function call by the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call.
    #[serde(default, deserialize_with = "null_as_default")]
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

fn function() -> String {
    "function".into()
}

/// Name and arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function.
    pub name: String,
    /// Its arguments as JSON text.
    #[serde(default, deserialize_with = "null_as_default")]
    pub arguments: String,
}

/// Many clients write null for what they leave out.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Answer of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatCompletion {
    /// `chatcmpl-…`.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// The request's.
    pub model: String,
    /// The answers.
    pub choices: Vec<Choice>,
    /// Exact counts.
    pub usage: Usage,
    /// Extension: what the model was fed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// A token limit.
    Length,
    /// It calls tools.
    ToolCalls,
    /// Any other word of another server, such as `content_filter`.
    #[serde(untagged)]
    Other(String),
}

/// One answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Choice {
    /// Which of `n`.
    pub index: u32,
    /// The assistant's message.
    pub message: ChatMessage,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// Extension: the stop string that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Where asked for.
    pub logprobs: Option<ChoiceLogprobs>,
    /// Extension: what the model sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChoiceLogprobs {
    /// One entry a sampled token.
    pub content: Vec<TokenLogprob>,
}

/// Log-probability of one token.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token as text.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens at this place.
    #[serde(default)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// Log-probability of a token that was likely at a place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopLogprob {
    /// The token as text.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

/// Token counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Fed to the model.
    pub prompt_tokens: u64,
    /// Sampled.
    pub completion_tokens: u64,
    /// Their sum.
    pub total_tokens: u64,
    /// Of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// Of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Of the sampled tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionTokensDetails {
    /// Up to the end of the thinking.
    pub reasoning_tokens: u64,
}

/// Of the prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Taken from the prefix cache.
    pub cached_tokens: u64,
}

/// One server-sent event of a streamed answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatCompletionChunk {
    /// `chatcmpl-…`, the same in every chunk.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// The request's.
    pub model: String,
    /// Empty in the usage chunk.
    pub choices: Vec<ChunkChoice>,
    /// In the last chunk, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Extension: in the first chunk, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What a chunk adds to one answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChunkChoice {
    /// Which of `n`.
    pub index: u32,
    /// The addition.
    pub delta: Delta,
    /// In the answer's last chunk.
    pub finish_reason: Option<FinishReason>,
    /// Extension: in the last chunk, the stop string that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Of the tokens of this chunk, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
    /// Extension: the tokens of this chunk, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// An addition to an assistant's message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Delta {
    /// In the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// More text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// More calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// An addition to a call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// Which call of the message.
    pub index: u32,
    /// In the call's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// In the call's first chunk: `function`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name first, then arguments piece by piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionCallDelta>,
}

/// An addition to a call's function.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FunctionCallDelta {
    /// In the call's first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A piece of the arguments' JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// Body of every error on `/v1`, and of the engine's own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorObject,
}

/// OpenAI's error object.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// A sentence.
    pub message: String,
    /// Such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request's field that is wrong.
    pub param: Option<String>,
    /// Such as `context_length_exceeded`.
    pub code: Option<String>,
    /// Extension: the numbers of a `context_length_exceeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PromptTokens>,
}

/// Length of a prompt that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptTokens {
    /// Tokens of the prompt.
    pub given: u64,
    /// Maximum number of tokens of a prompt.
    pub max: u64,
}
