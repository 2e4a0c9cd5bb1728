//! What is asked of a sampler and what it answers.

use tokio::sync::mpsc::UnboundedSender;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 is greedy.
    pub temperature: f32,
    /// Nucleus: the likeliest tokens whose probabilities sum to at least this. 1 is all.
    pub top_p: f32,
    /// The k likeliest tokens. `None` is all.
    pub top_k: Option<usize>,
    /// Tokens at least this share as likely as the likeliest. 0 is all.
    pub min_p: f32,
    /// What is added to logits before all of this.
    pub bias: Bias,
    /// The same seed, prompt and weights give the same tokens, whatever else is in the batch.
    pub seed: u64,
    /// Most tokens to sample; at least 1.
    pub max_tokens: usize,
    /// Tokens that end the answer; the one sampled is part of it.
    pub stop_token_ids: Vec<u32>,
    /// How many of the likeliest tokens to report at each place.
    pub top_logprobs: usize,
}

/// What is added to logits, so that some tokens are likelier or less likely. Reported log-probabilities do not know of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bias {
    /// Taken off a token's logit for each time that the answer has it.
    pub frequency_penalty: f32,
    /// Taken off the logits of the tokens that the answer has.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens, in the order of their ids, each at most once.
    pub logits: Vec<(u32, f32)>,
}

impl Bias {
    /// Whether all its numbers are.
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

/// Decides on the model thread, after each token, whether the answer ends there (stop strings). Must be cheap.
pub trait StopCheck: Send {
    /// Takes the next sampled token; true ends the answer with it.
    fn push(&mut self, token_id: u32) -> bool;
}

/// One answer to be sampled.
pub struct SampleRequest {
    /// Unique among the requests of a sampler; by it a request is cancelled.
    pub id: u64,
    /// Requests of one group wait behind each other, groups take turns. The episode.
    pub group: String,
    /// The whole prompt, at least one token.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub params: SamplingParams,
    /// Tokens to take one after the other instead of drawing them; they get the log-probabilities that the model gives
    /// them. Behind the last, tokens are drawn.
    pub given: Vec<u32>,
    /// Ends the answer early.
    pub stop: Option<Box<dyn StopCheck>>,
    /// Where the answer goes, token by token; a closed channel cancels the request.
    pub events: UnboundedSender<SampleEvent>,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under softmax(logits / temperature) over the whole vocabulary (at
    /// temperature 0: 1). Truncation by top-p and the like does not enter, so that the trainer can recompute it.
    pub logprob: f32,
    /// The likeliest tokens at this place with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop check.
    Stop,
    /// `max_tokens`.
    Length,
    /// The request was cancelled, or the sampler was stopped.
    Cancelled,
}

/// What a sampler tells about a request, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleEvent {
    /// The prompt is in the cache; so many of its tokens were there before.
    Started {
        /// Prompt tokens that the prefix cache gave.
        cached_tokens: usize,
    },
    /// The next token.
    Token(SampledToken),
    /// The end.
    Finished(FinishReason),
    /// The end, by an error: a sentence.
    Failed(String),
}
