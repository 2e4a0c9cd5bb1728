//! Completions of token ids, in the format of vLLM's `/v1/completions`: between an engine and the samplers elsewhere that
//! `ajet.rollout.endpoints` names, and between such a sampler's server and its own engine.

use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prefix of a token's id where ids are written instead of texts.
const TOKEN_ID: &str = "token_id:";

/// Body of `POST /v1/completions`. Fields that this server does not know are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Name of the adapter.
    pub model: String,
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to sample.
    pub max_tokens: usize,
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f64,
    /// The most likely tokens that together reach this probability.
    #[serde(default = "one")]
    pub top_p: f64,
    /// Number of most likely tokens to sample from; −1 for all.
    #[serde(default = "all")]
    pub top_k: i64,
    /// Minimum probability relative to the most likely token.
    #[serde(default)]
    pub min_p: f64,
    /// Random seed.
    #[serde(default)]
    pub seed: u64,
    /// Tokens that end the answer.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    /// Sample on after tokens that end an answer and are not in `stop_token_ids`; only `true` here.
    pub ignore_eos: bool,
    /// Number of most likely tokens to report at each position, beside the sampled one.
    pub logprobs: usize,
    /// Write ids as `token_id:7` instead of texts; only `true` here.
    pub return_tokens_as_token_ids: bool,
    /// Leave special tokens out of texts; without effect on ids.
    #[serde(default)]
    pub skip_special_tokens: bool,
    /// Send the answer as server-sent events; only `true` here.
    pub stream: bool,
}

fn one() -> f64 {
    1.0
}

fn all() -> i64 {
    -1
}

/// Data of a server-sent event of the answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChunk {
    /// The only choice; none in a chunk with the usage, which some servers send.
    #[serde(default)]
    pub choices: Vec<CompletionChoice>,
}

/// Part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// Always 0.
    #[serde(default)]
    pub index: u32,
    /// The next tokens; null in a chunk without tokens.
    #[serde(default)]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length` in the last chunk.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// Tokens and their log-probabilities, in lists of the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// `token_id:` and the id.
    pub tokens: Vec<String>,
    /// Natural logarithm of each token's probability.
    pub token_logprobs: Vec<Option<f32>>,
    /// Most likely tokens at each position.
    #[serde(default)]
    pub top_logprobs: Option<Vec<Option<IndexMap<String, f32>>>>,
}

/// Writes an id in place of a token's text.
pub fn write_token_id(id: u32) -> String {
    format!("{TOKEN_ID}{id}")
}

/// Reads an id in place of a token's text.
pub fn read_token_id(token: &str) -> Option<u32> {
    token.strip_prefix(TOKEN_ID)?.parse().ok()
}

/// Body of `POST /v1/load_lora_adapter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadAdapter {
    /// Name for requests.
    pub lora_name: String,
    /// Directory on the sampler's machine.
    pub lora_path: PathBuf,
}

/// Body of `POST /v1/unload_lora_adapter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnloadAdapter {
    /// Name that it was loaded under.
    pub lora_name: String,
}

/// Adapter of an engine that only samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadedAdapter {
    /// Name that requests use; null without one.
    #[serde(default)]
    pub lora_name: Option<String>,
}
