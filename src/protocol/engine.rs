//! The engine contract: the interface between the control plane (`start`) and its child process (`ajet-swarm engine`).
//!
//! HTTP/1.1 over a Unix socket; the engine serves, the control plane calls.
//!
//! | method, path | body → answer |
//! |---|---|
//! | GET `/hello` | → [`Hello`] |
//! | POST `/episodes/{id}/chat` | [`ChatCall`] → an OpenAI chat completion, or server-sent events when it streams; the last is `[DONE]` or an error object |
//! | POST `/episodes/{id}/count_tokens` | [`ChatCall`] → [`TokenCount`]: number of prompt tokens |
//! | GET `/episodes/{id}/conversations` | → [`EpisodeConversations`]; empty before the episode's first call |
//! | POST `/episodes/{id}/end` | [`EndEpisode`] → [`EndOutcome`] |
//! | POST `/episodes/{id}/forget` | [`ForgetEpisode`] → `{}`, also for unknown episodes |
//! | POST `/completions` | [`CompletionRequest`](super::completions::CompletionRequest) → [`CompletionChunk`](super::completions::CompletionChunk)s as server-sent events: an answer for another engine |
//! | GET `/adapter` | → [`LoadedAdapter`](super::completions::LoadedAdapter): the adapter that completions are sampled with |
//! | POST `/adapter` | [`LoadAdapter`](super::completions::LoadAdapter) → `{}`: loads it in the place of the one before |
//! | DELETE `/adapter` | [`UnloadAdapter`](super::completions::UnloadAdapter) → `{}` |
//! | POST `/agree` | `{}` → [`BatchState`]: closes the batch, on which the clients agreed |
//! | POST `/update` | [`Update`] → `{}`: starts the weight update, once no episode runs; 409 unless the batch is full |
//! | GET `/events` | → [`EngineEvent`] as newline-delimited JSON, for as long as the engine lives |
//! | POST `/shutdown` | `{}` → `{}`: flushes the journal and exits with 0 |
//!
//! Errors are [`crate::protocol::openai::ErrorBody`] with the HTTP status.
//!
//! The engine's arguments are the socket's path, a file with the complete configuration as JSON and the experiment
//! directory. It exits when its standard input closes, so a killed control plane leaves no engine behind. It serves the
//! socket at once and reports its boot as events; until the model is loaded, `/hello` answers `ready: false` and the
//! other calls answer 503.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::swarm::EpisodeType;

/// Header with the id of the request on whose behalf the control plane calls, for the engine's log; the control plane's
/// own answers have it too.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Environment variable with the format of the engine's log: `json`, which the control plane reads, or `text`.
pub const LOG_FORMAT_VARIABLE: &str = "AJET_SWARM_LOG_FORMAT";

/// Version of this contract. A control plane refuses an engine with another version, with both numbers in the message.
pub const CONTRACT_VERSION: u32 = 7;

/// Lock file in an experiment directory; an engine holds the lock as long as it may write there.
pub const LOCK_FILE: &str = "engine.lock";

/// Answer of `GET /hello`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    /// [`CONTRACT_VERSION`] of the engine.
    pub contract_version: u32,
    /// Whether the model is loaded.
    pub ready: bool,
    /// `ajet.model.path` as configured.
    pub model: String,
    /// Device of the computation, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Number of parameters of the model.
    #[serde(default)]
    pub parameters: u64,
    /// Number of trained parameters.
    #[serde(default)]
    pub trainable_parameters: u64,
    /// Step whose batch is being sampled.
    #[serde(default)]
    pub global_step: u64,
    /// Finished episodes of the batch; not empty after a resume.
    #[serde(default)]
    pub pool: PoolSnapshot,
}

/// Body of `POST /episodes/{id}/chat`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatCall {
    /// Train episodes use the configuration's sampling parameters, eval episodes the request's.
    pub episode_type: EpisodeType,
    /// The agent's request, unchanged: the text of an OpenAI chat completion request.
    pub request: Box<RawValue>,
}

/// Answer of `POST /episodes/{id}/count_tokens`, in Anthropic's format.
pub use super::anthropic::TokenCount;

/// Answer of `GET /episodes/{id}/conversations`, as in the swarm API.
pub use super::swarm::EpisodeConversations;

/// Body of `POST /episodes/{id}/end`. The control plane has validated it: the reward is finite and the ids are not
/// empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndEpisode {
    /// Whether the episode trains or evaluates.
    pub episode_type: EpisodeType,
    /// Client that ran the episode.
    pub client_uuid: String,
    /// Task of the episode; episodes of one task form a group.
    pub task_id: String,
    /// Reward of the episode, a finite number.
    pub reward: f64,
    /// Whether the agent reached its goal, if known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// `global_step` at which the episode was claimed; eval rewards are recorded for this step.
    pub claimed_at_step: u64,
    /// The client's metadata, unchanged.
    #[serde(default)]
    pub metadata: IndexMap<String, serde_json::Value>,
    /// Numbers of the client that are averaged into the step's metrics.
    #[serde(default)]
    pub log_metrics: IndexMap<String, serde_json::Value>,
}

/// Why a claimed episode was not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The client aborted it.
    Aborted,
    /// No LLM call for longer than its discard timeout.
    Idle,
    /// It ended without an LLM call.
    NoLlmCall,
    /// It was still running when ROLLING_POST timed out or the engine was stopped.
    Late,
    /// All rewards of its task were equal, and the collection method skips such tasks.
    Dummy,
    /// The cache of finished episodes exceeded its limit.
    OverCache,
    /// It has no row with a sampled token.
    NoResponse,
    /// All of its rows were cut by length and `mask_truncated` is set.
    Truncated,
    /// Its log-probabilities, loss or gradient were not finite.
    NonFinite,
    /// The engine ended while it was running.
    EngineLost,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Aborted,
        Self::Idle,
        Self::NoLlmCall,
        Self::Late,
        Self::Dummy,
        Self::OverCache,
        Self::NoResponse,
        Self::Truncated,
        Self::NonFinite,
        Self::EngineLost,
    ];

    /// Returns whether the reason is found when the batch is trained. The others are counted as soon as they occur.
    pub fn is_of_the_update(self) -> bool {
        match self {
            Self::Dummy | Self::OverCache | Self::NoResponse | Self::Truncated | Self::NonFinite => true,
            Self::Aborted | Self::Idle | Self::NoLlmCall | Self::Late | Self::EngineLost => false,
        }
    }

    /// Returns the name on the wire, such as `no_llm_call`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Idle => "idle",
            Self::NoLlmCall => "no_llm_call",
            Self::Late => "late",
            Self::Dummy => "dummy",
            Self::OverCache => "over_cache",
            Self::NoResponse => "no_response",
            Self::Truncated => "truncated",
            Self::NonFinite => "non_finite",
            Self::EngineLost => "engine_lost",
        }
    }
}

/// Body of `POST /episodes/{id}/forget`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgetEpisode {
    /// Why the episode is dropped.
    pub reason: DropReason,
    /// Train or eval.
    #[serde(default)]
    pub episode_type: EpisodeType,
    /// Id of its client.
    #[serde(default)]
    pub client_uuid: String,
    /// Its task, or empty if the claim did not name it.
    #[serde(default)]
    pub task_id: String,
    /// The `global_step` at which it was claimed.
    #[serde(default)]
    pub claimed_at_step: u64,
}

/// Body of `POST /update`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// Number of train episodes of the batch, by reason, that were claimed but did not reach the pool. The control
    /// plane counts them, since it outlives engines; the engine adds those that it drops itself to the step's metrics.
    #[serde(default)]
    pub dropped: IndexMap<DropReason, u64>,
}

/// Finished train episodes of the batch, and the state of the stop rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolSnapshot {
    /// Incremented with every change, so that a late snapshot does not replace a newer one.
    pub revision: u64,
    /// Step of the batch.
    pub global_step: u64,
    /// Finished train episodes, in the order they ended.
    pub episodes: Vec<PooledEpisode>,
    /// Number of tasks with at least N episodes.
    pub completed_tasks: u64,
    /// Number of completed tasks whose rewards differ.
    pub completed_non_dummy_tasks: u64,
    /// Whether the stop rule is met.
    pub full: bool,
}

/// Change of the pool by one call. Answers do not contain the whole pool, whose total size would grow with the square
/// of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolChange {
    /// Revision of the pool after the call. Answers may arrive out of order; the counts of the highest revision apply.
    pub revision: u64,
    /// Step of the batch.
    pub global_step: u64,
    /// Episode that was added.
    #[serde(default)]
    pub added: Option<PooledEpisode>,
    /// Episodes that were removed to keep the pool within its limit.
    #[serde(default)]
    pub removed: Vec<String>,
    /// As in [`PoolSnapshot`].
    pub completed_tasks: u64,
    /// As in [`PoolSnapshot`].
    pub completed_non_dummy_tasks: u64,
    /// As in [`PoolSnapshot`].
    pub full: bool,
}

/// One finished train episode of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PooledEpisode {
    /// Revision of the pool at which it was added.
    pub entered: u64,
    /// Id of the episode.
    pub episode_uuid: String,
    /// Id of its task.
    pub task_id: String,
    /// Id of the client that ran it.
    pub client_uuid: String,
    /// Reward of the episode.
    pub reward: f64,
}

/// Answer of `POST /agree`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BatchState {
    /// Pool after the call.
    pub pool: PoolSnapshot,
}

/// Answer of `POST /episodes/{id}/end`. The episode is on disk when the answer is sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndOutcome {
    /// Why the episode was not added to the pool, if it was not.
    #[serde(default)]
    pub dropped: Option<DropReason>,
    /// Number of training rows.
    #[serde(default)]
    pub rows: u64,
    /// Number of LLM calls.
    #[serde(default)]
    pub llm_calls: u64,
    /// Change of the pool.
    pub change: PoolChange,
}

/// Phase of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnginePhase {
    /// The model is being loaded.
    Booting,
    /// Episodes are sampled.
    Rolling,
    /// The weights are being updated or written.
    WeightSyncing,
}

/// Load of sampling. Totals count from the start of the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineLoad {
    /// LLM requests that are being sampled.
    pub running_requests: u64,
    /// LLM requests that are queued.
    pub waiting_requests: u64,
    /// Share of the KV cache in use, 0 to 1.
    pub cache_usage: f64,
    /// Sampled tokens.
    pub sampled_tokens: u64,
    /// Tokens of all started prompts.
    pub prompt_tokens: u64,
    /// Those served from the prefix cache.
    pub cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Sequences that lost their cache for lack of memory.
    pub preemptions: u64,
    /// Resident memory in bytes; 0 if the system does not report it.
    pub memory_bytes: u64,
    /// Seconds from a request to its first token, of the requests since the last event.
    #[serde(default)]
    pub time_to_first_token: Vec<f64>,
    /// Seconds per further token, of the requests that ended since the last event.
    #[serde(default)]
    pub time_per_token: Vec<f64>,
    /// Tokens sampled since the last event, by running episode.
    #[serde(default)]
    pub new_tokens: IndexMap<String, u64>,
    /// Samplers elsewhere; empty if the engine samples alone.
    #[serde(default)]
    pub endpoints: Vec<EndpointLoad>,
}

/// State of a sampler elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointLoad {
    /// Scheme, host and port.
    pub url: String,
    /// Version of the weights that it samples with; null if it cannot be used.
    #[serde(default)]
    pub weight_version: Option<u64>,
    /// Requests that it is sampling.
    #[serde(default)]
    pub running_requests: u64,
    /// Tokens that it has sampled since the engine started.
    #[serde(default)]
    pub sampled_tokens: u64,
    /// Why it cannot be used, if it cannot.
    #[serde(default)]
    pub problem: Option<String>,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For information.
    Info,
    /// Something is lost or wrong; the engine continues.
    Warn,
}

/// One line of `GET /events`, such as `{"log": {"level": "warn", "message": "slow disk"}}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineEvent {
    /// The phase or its detail changed. Every stream begins with the current one.
    Status {
        /// Current phase.
        phase: EnginePhase,
        /// Current activity, such as `loading weights 40%` or `exporting step 20`.
        #[serde(default)]
        detail: Option<String>,
        /// Step whose batch is being sampled, or, during an update, was sampled.
        global_step: u64,
    },
    /// The pool changed, but not by a call, whose answer would contain the change.
    Pool {
        /// Current pool.
        pool: PoolSnapshot,
    },
    /// An update is complete; its metrics have the names of `metrics.jsonl`.
    Metrics {
        /// Step at which the batch was sampled.
        global_step: u64,
        /// Values by name.
        metrics: IndexMap<String, f64>,
    },
    /// The load of sampling changed; at most twice a second.
    Load {
        /// The load now.
        load: EngineLoad,
    },
    /// Episodes were removed from the batch and not trained on.
    Dropped {
        /// Why they were removed.
        reason: DropReason,
        /// Number of episodes.
        count: u64,
    },
    /// A line for the server's log.
    Log {
        /// Severity.
        level: LogLevel,
        /// Text of the line.
        message: String,
    },
    /// The engine is about to exit for this reason.
    Fatal {
        /// The reason, as one sentence.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_one_json_object_a_line() {
        let event = EngineEvent::Dropped {
            reason: DropReason::NoLlmCall,
            count: 2,
        };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"dropped":{"reason":"no_llm_call","count":2}}"#);
        assert!(matches!(
            serde_json::from_str(&line).unwrap(),
            EngineEvent::Dropped { count: 2, .. }
        ));
        let metrics = r#"{"metrics":{"global_step":3,"metrics":{"loss":-1.5e-7}}}"#;
        let EngineEvent::Metrics { metrics, .. } = serde_json::from_str(metrics).unwrap() else {
            panic!()
        };
        assert_eq!(metrics["loss"], -1.5e-7, "floats in an enum are read as floats");
    }

    #[test]
    fn drop_reasons_are_named_as_they_are_serialised() {
        for reason in DropReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
