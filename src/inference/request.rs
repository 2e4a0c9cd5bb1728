//! Requests to a sampler and their events.

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use crate::grammar::Matcher;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Nucleus sampling: the most likely tokens whose probabilities sum to at least this. 1 keeps all.
    pub top_p: f32,
    /// Number of most likely tokens to keep; `None` keeps all.
    pub top_k: Option<usize>,
    /// Minimum probability relative to the most likely token. 0 keeps all.
    pub min_p: f32,
    /// Biases of the logits, applied first.
    pub bias: Bias,
    /// Random seed: the same seed, prompt and weights give the same tokens, whatever else is in the batch.
    pub seed: u64,
    /// Maximum number of tokens to sample; at least 1.
    pub max_tokens: usize,
    /// Tokens that end the answer; the sampled one is part of it.
    pub stop_token_ids: Vec<u32>,
    /// Number of most likely tokens to report at each position.
    pub top_logprobs: usize,
}

/// Biases of logits. The reported log-probabilities do not include them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bias {
    /// Frequency penalty: subtracted once for each occurrence of a token in the answer.
    pub frequency_penalty: f32,
    /// Presence penalty: subtracted from tokens that occur in the answer.
    pub presence_penalty: f32,
    /// Additive biases in the order of token ids, each at most once.
    pub logits: Vec<(u32, f32)>,
}

impl Bias {
    /// Returns whether all numbers are finite.
    pub fn is_finite(&self) -> bool {
        let Self {
            frequency_penalty,
            presence_penalty,
            logits,
        } = self;
        let added = logits.iter().map(|(_, more)| more);
        added
            .chain([frequency_penalty, presence_penalty])
            .all(|number| number.is_finite())
    }
}

/// Decides on the model thread after each token whether the answer ends (stop strings). Must be fast.
pub trait StopCheck: Send {
    /// Adds the next sampled token; returns `true` to end the answer with it.
    fn push(&mut self, token_id: u32) -> bool;
}

/// A request for one answer.
pub struct SampleRequest {
    /// Id, unique among the requests of a sampler, needed to cancel it.
    pub id: u64,
    /// Group of the request, its episode: requests of one group are processed in order, groups take turns.
    pub group: String,
    /// Complete prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Tokens to use instead of sampled ones, with the log-probabilities that the model gives them. After the last one,
    /// tokens are sampled.
    pub forced_tokens: Vec<u32>,
    /// Grammar of the answer, at its beginning.
    pub grammar: Option<Matcher>,
    /// Check that ends the answer early.
    pub stop: Option<Box<dyn StopCheck>>,
    /// Channel for the answer's events; closing it cancels the request.
    pub events: UnboundedSender<SampleEvent>,
}

#[cfg(test)]
impl SamplingParams {
    /// Returns parameters that sample one token from the model's own distribution.
    pub(crate) fn unmodified() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            bias: Bias::default(),
            seed: 1,
            max_tokens: 1,
            stop_token_ids: vec![],
            top_logprobs: 0,
        }
    }
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability under softmax(logits / temperature) over the tokens that the grammar allows,
    /// without one over the whole vocabulary (at temperature 0: 1). Truncation such as top-p is not included, so that
    /// the trainer can recompute it.
    pub logprob: f32,
    /// Whether the grammar allowed no other token.
    pub determined: bool,
    /// Most likely tokens at this position with their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Reason why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token or a stop check.
    Stop,
    /// `max_tokens`.
    Length,
    /// The request was cancelled, or the sampler was stopped.
    Cancelled,
}

/// Events of a request, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SampleEvent {
    /// The prompt is in the cache.
    Started {
        /// Number of prompt tokens from the prefix cache.
        cached_tokens: usize,
    },
    /// The next token.
    Token(SampledToken),
    /// The answer ended.
    Finished(FinishReason),
    /// The answer failed, with a message.
    Failed(String),
}

impl SampleEvent {
    /// Returns whether no event of the request follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed(_))
    }
}
