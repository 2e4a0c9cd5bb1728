//! What a session stands on: the model's text side and the sampler, as traits, so that tests run in milliseconds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ChatError;
use super::request::ForcedCall;
use super::script::{self, Script};
use crate::config::schema::{Ajet, Rollout};
use crate::inference::parsers::{ReasoningFormat, ToolFormat};
use crate::inference::{Bias, SampleRequest};
use crate::timeline::{MergePolicy, Prompt, Renderer, after_text};

/// A model as far as text is concerned.
pub trait ChatModel: Renderer + Send + Sync {
    /// The bytes that a token adds to a text; those of several tokens may be needed for one character.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Whether a token is special, such as an end of turn; special tokens are not shown.
    fn is_special(&self, id: u32) -> bool;

    /// The tokens that end a turn.
    fn stop_token_ids(&self) -> &[u32];

    /// The chat template's source, by which formats are chosen.
    fn chat_template(&self) -> &str;
}

/// Token ids in, token ids and log-probabilities out.
pub trait Sampler: Send + Sync {
    /// Queues a request, whose answer arrives on its channel.
    ///
    /// # Errors
    /// The queue is full or the sampler is gone.
    fn submit(&self, request: SampleRequest) -> Result<(), ChatError>;

    /// Which weights sample now; grows with every update.
    fn weight_version(&self) -> u64;
}

/// Limits and choices that hold for every session of an engine.
#[derive(Clone, Debug)]
pub struct ChatSettings {
    /// Sampling and what to do about overflow, tools and system prompts.
    pub rollout: Rollout,
    /// Most tokens sampled in one call.
    pub max_turn_tokens: usize,
    /// Most tokens of prompt and answer.
    pub max_model_len: usize,
    /// How calls become rows; seed and weight version are set per episode.
    pub merging: MergePolicy,
    /// Seed of the experiment.
    pub seed: u64,
    /// Answers that are sampled or wait for it at once; more are refused.
    pub max_open_requests: usize,
    /// Answers that are given, where the model is a scripted one.
    pub script: Option<Script>,
}

impl ChatSettings {
    /// From a configuration.
    pub fn new(ajet: &Ajet) -> Self {
        let policy = &ajet.context_tracker.timeline_merging_policy;
        Self {
            max_turn_tokens: ajet.max_response_length_in_one_turn(),
            max_model_len: ajet.max_model_len(),
            merging: MergePolicy {
                compare_level: policy.timeline_compare_level,
                ignore_tools: policy.ignore_tools,
                max_row_len: ajet.max_row_len().min(ajet.max_model_len()),
                max_rows: ajet.rollout.multi_turn.max_sample_per_task,
                seed: 0,
                weight_version: 0,
            },
            seed: ajet.trainer_common.seed,
            max_open_requests: ajet
                .rollout
                .max_num_seqs
                .saturating_add(ajet.rollout.max_queued_requests),
            script: None,
            rollout: ajet.rollout.clone(),
        }
    }
}

/// What all sessions of an engine share.
pub struct ChatBackend {
    /// The model's text side.
    pub model: Arc<dyn ChatModel>,
    /// The sampler.
    pub sampler: Arc<dyn Sampler>,
    /// Limits and choices.
    pub settings: ChatSettings,
    pub(super) tool_format: ToolFormat,
    pub(super) reasoning_format: ReasoningFormat,
    next_request: AtomicU64,
    /// A permit for each answer that is sampled or waits for it.
    places: Arc<Semaphore>,
}

impl ChatBackend {
    /// Chooses the parsers by configuration and chat template.
    ///
    /// # Errors
    /// A sentence, where the configuration names a parser that is not known.
    pub fn new(model: Arc<dyn ChatModel>, sampler: Arc<dyn Sampler>, settings: ChatSettings) -> Result<Self, String> {
        let rollout = &settings.rollout;
        Ok(Self {
            tool_format: ToolFormat::choose(rollout.tool_parser.as_deref(), model.chat_template())?,
            reasoning_format: ReasoningFormat::choose(rollout.reasoning_parser.as_deref(), model.chat_template())?,
            model,
            sampler,
            places: Arc::new(Semaphore::new(settings.max_open_requests.min(Semaphore::MAX_PERMITS))),
            settings,
            next_request: AtomicU64::new(0),
        })
    }

    /// A place among the answers that are sampled or wait for it.
    pub(super) fn take_place(&self) -> Result<OwnedSemaphorePermit, ChatError> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            ChatError::QueueFull(format!(
                "{} requests are sampled or wait (ajet.rollout.max_num_seqs and max_queued_requests allow no more); \
                 try again",
                self.settings.max_open_requests
            ))
        })
    }

    /// Ids of another model's tokens mean nothing here.
    pub(super) fn check_bias(&self, bias: &Bias) -> Result<(), ChatError> {
        let mut ids = bias.logits.iter().map(|(id, _)| *id);
        match ids.find(|id| self.model.token_bytes(*id).is_empty()) {
            None => Ok(()),
            Some(id) => Err(ChatError::invalid(
                "logit_bias",
                format!("`logit_bias` has token {id}, which the model does not have"),
            )),
        }
    }

    /// How an answer that is to be a tool call begins.
    pub(super) fn call_opening(&self, call: &ForcedCall, rendered: &str) -> Result<String, ChatError> {
        let name = match call {
            ForcedCall::Any => None,
            ForcedCall::Named(name) => Some(name.as_str()),
        };
        let opening = self.tool_format.opening(name).ok_or_else(|| {
            let sentence = "`tool_choice` wants a tool call, but the model's chat template has none \
                            (ajet.rollout.tool_parser)";
            ChatError::invalid("tool_choice", sentence)
        })?;
        Ok(format!("{}{opening}", self.reasoning_format.closing(rendered)))
    }

    /// The tokens of the answer that is given to this prompt; none where it is sampled.
    pub(super) fn given_answer(&self, prompt: &Prompt) -> Result<Vec<u32>, ChatError> {
        let Some(script) = &self.settings.script else {
            return Ok(Vec::new());
        };
        let text = script
            .answer(&prompt.conversation)
            .ok_or_else(|| ChatError::InvalidRequest {
                param: Some("messages".into()),
                message: script::no_answer(&prompt.conversation),
            })?;
        // What is in the prompt already is not answered again, however the script lays out its JSON.
        let text = after_text(text, &prompt.opening).unwrap_or(text);
        let ids = self
            .model
            .encode(text)
            .map_err(|error| ChatError::Sampling(error.to_string()))?;
        Ok(ids
            .into_iter()
            .chain(self.model.stop_token_ids().first().copied())
            .collect())
    }

    pub(super) fn next_request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// A seed of its own for each use in each episode.
    pub(super) fn seed(&self, episode_uuid: &str, purpose: &str, number: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.settings.seed, episode_uuid, purpose, number).hash(&mut hasher);
        hasher.finish()
    }
}
