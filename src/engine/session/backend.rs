//! Dependencies of a session: the model's text side and the sampler, as traits, so that tests run in milliseconds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ChatError;
use super::latency::Latencies;
use super::request::ForcedCall;
use super::script::{self, Script};
use crate::config::schema::{Ajet, Rollout};
use crate::grammar::Grammars;
use crate::inference::parsers::{ReasoningFormat, ToolFormat};
use crate::inference::{Bias, SampleRequest};
use crate::timeline::{MergePolicy, Prompt, Renderer, after_text};

/// The text side of a model.
pub trait ChatModel: Renderer + Send + Sync {
    /// Returns the bytes that a token adds to a text; one character may need several tokens.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Returns whether a token is special, such as an end of turn; special tokens are not shown.
    fn is_special(&self, id: u32) -> bool;

    /// Returns the tokens that end a turn.
    fn stop_token_ids(&self) -> &[u32];

    /// Returns the chat template's source, from which formats are detected.
    fn chat_template(&self) -> &str;

    /// Returns the compiler of grammars for the model's tokens.
    fn grammars(&self) -> &Arc<Grammars>;
}

/// Samples token ids with log-probabilities from token ids.
pub trait Sampler: Send + Sync {
    /// Queues a request, whose answer arrives on its channel.
    ///
    /// # Errors
    /// Fails if the queue is full or the sampler is gone.
    fn submit(&self, request: SampleRequest) -> Result<(), ChatError>;

    /// Returns the weight version, which grows with every update.
    fn weight_version(&self) -> u64;
}

/// Settings of all sessions of an engine.
#[derive(Clone, Debug)]
pub struct ChatSettings {
    /// Sampling, and the handling of overflow, tools and system prompts.
    pub rollout: Rollout,
    /// Maximum number of tokens sampled in one call.
    pub max_turn_tokens: usize,
    /// Maximum number of tokens of prompt and answer.
    pub max_model_len: usize,
    /// How calls become rows; seed and weight version are set per episode.
    pub merging: MergePolicy,
    /// Seed of the experiment.
    pub seed: u64,
    /// Maximum number of answers being sampled or queued; further ones are refused.
    pub max_open_requests: usize,
    /// Scripted answers, if the model is a scripted one.
    pub script: Option<Script>,
}

impl ChatSettings {
    /// Creates the settings of a configuration.
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

/// Backend shared by all sessions of an engine.
pub struct ChatBackend {
    /// Text side of the model.
    pub model: Arc<dyn ChatModel>,
    /// The sampler.
    pub sampler: Arc<dyn Sampler>,
    /// Settings.
    pub settings: ChatSettings,
    pub(super) tool_format: ToolFormat,
    pub(super) reasoning_format: ReasoningFormat,
    /// Latencies of the answers.
    pub latencies: Latencies,
    /// Called with the first request that brings tools, and then gone.
    tool_warning: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    next_request: AtomicU64,
    /// Permits of the answers being sampled or queued.
    permits: Arc<Semaphore>,
}

impl ChatBackend {
    /// Selects the parsers by configuration and chat template.
    ///
    /// # Errors
    /// Returns a message if the configuration names an unknown parser.
    pub fn new(model: Arc<dyn ChatModel>, sampler: Arc<dyn Sampler>, settings: ChatSettings) -> Result<Self, String> {
        let rollout = &settings.rollout;
        Ok(Self {
            tool_format: ToolFormat::choose(rollout.tool_parser.as_deref(), model.chat_template())?,
            reasoning_format: ReasoningFormat::choose(rollout.reasoning_parser.as_deref(), model.chat_template())?,
            model,
            sampler,
            permits: Arc::new(Semaphore::new(settings.max_open_requests.min(Semaphore::MAX_PERMITS))),
            settings,
            latencies: Latencies::default(),
            next_request: AtomicU64::new(0),
            tool_warning: Mutex::new(None),
        })
    }

    /// Calls `warn` once, with the first request that brings tools.
    pub fn with_tool_warning(mut self, warn: impl FnOnce() + Send + 'static) -> Self {
        self.tool_warning = Mutex::new(Some(Box::new(warn)));
        self
    }

    /// Warns of what the chat template does with tools, once.
    pub(super) fn warn_of_tools(&self) {
        let warn = self.tool_warning.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(warn) = warn {
            warn();
        }
    }

    /// Returns the tokens that end an answer; none if they are ignored.
    pub(super) fn end_tokens(&self) -> &[u32] {
        match self.settings.rollout.ignore_eos {
            true => &[],
            false => self.model.stop_token_ids(),
        }
    }

    /// Acquires a permit for an answer.
    pub(super) fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, ChatError> {
        self.permits.clone().try_acquire_owned().map_err(|_| {
            ChatError::QueueFull(format!(
                "the engine has reached its limit of {} sampled and queued requests (ajet.rollout.max_num_seqs and \
                 max_queued_requests); hint: try again",
                self.settings.max_open_requests
            ))
        })
    }

    /// Checks that the biased token ids exist in this model's vocabulary.
    pub(super) fn check_bias(&self, bias: &Bias) -> Result<(), ChatError> {
        let mut ids = bias.logits.iter().map(|(id, _)| *id);
        match ids.find(|id| self.model.token_bytes(*id).is_empty()) {
            None => Ok(()),
            Some(id) => Err(ChatError::invalid(
                "logit_bias",
                format!("`logit_bias` contains token {id}, which is not in the model's vocabulary"),
            )),
        }
    }

    /// Returns the beginning of an answer that must be a tool call.
    pub(super) fn call_opening(&self, call: &ForcedCall, rendered: &str) -> Result<String, ChatError> {
        let syntax = self.tool_format.syntax().ok_or_else(|| {
            let sentence = "`tool_choice` requires a tool call, but the model's chat template has none \
                            (ajet.rollout.tool_parser)";
            ChatError::invalid("tool_choice", sentence)
        })?;
        let opening = match call {
            ForcedCall::Any => syntax.before_name(),
            ForcedCall::Named(name) => syntax.before_arguments(name),
        };
        Ok(format!("{}{opening}", self.reasoning_format.closing(rendered)))
    }

    /// Returns the tokens of the scripted answer to this prompt; empty if the answer is sampled.
    pub(super) fn scripted_answer(&self, prompt: &Prompt) -> Result<Vec<u32>, ChatError> {
        let Some(script) = &self.settings.script else {
            return Ok(Vec::new());
        };
        let text = script
            .answer(&prompt.conversation)
            .ok_or_else(|| ChatError::InvalidRequest {
                param: Some("messages".into()),
                message: script::no_match_message(&prompt.conversation),
            })?;
        // What the prompt already contains is not answered again, however the script formats its JSON.
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

    /// Returns an id that no other request to the sampler has.
    pub fn next_request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Derives a separate seed for each use in each episode.
    pub(super) fn seed(&self, episode_uuid: &str, purpose: &str, number: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.settings.seed, episode_uuid, purpose, number).hash(&mut hasher);
        hasher.finish()
    }
}
