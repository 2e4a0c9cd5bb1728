//! The engine contract: what the control plane (`start`) asks of its child process (`ajet-swarm engine`).
//!
//! HTTP/1.1 over a Unix socket; the engine serves, the control plane calls.
//!
//! | method, path | body → answer |
//! |---|---|
//! | GET `/hello` | → [`Hello`] |
//! | POST `/episodes/{id}/chat` | [`ChatCall`] → an OpenAI chat completion, or server-sent events when it streams; the last is `[DONE]` or an error object |
//! | POST `/episodes/{id}/count_tokens` | [`ChatCall`] → [`TokenCount`]: of the prompt that it would be sampled from |
//! | GET `/episodes/{id}/conversations` | → [`EpisodeConversations`]; empty before the episode's first call |
//! | POST `/episodes/{id}/end` | [`EndEpisode`] → [`EndOutcome`] |
//! | POST `/episodes/{id}/forget` | [`ForgetEpisode`] → `{}`; unknown episodes too |
//! | POST `/agree` | `{}` → [`BatchState`]: the clients agreed, close the batch |
//! | POST `/update` | [`Update`] → `{}`: the last running episode is gone, update the weights; refused with 409 unless the batch is full |
//! | GET `/events` | → [`EngineEvent`] as newline-delimited JSON, for as long as the engine lives |
//! | POST `/shutdown` | `{}` → `{}`: journal, then exit 0 |
//!
//! Errors are [`crate::protocol::openai::ErrorBody`] with the HTTP status.
//!
//! The engine is started with the socket's path, a file with the whole configuration as YAML and the experiment
//! directory; it ends itself when its standard input closes, so a killed control plane leaves no engine behind. It
//! serves the socket at once and reports its boot as events; before it rolls, `/hello` answers with `ready: false` and
//! the other calls with 503.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::swarm::EpisodeType;

/// Version of this contract. A control plane refuses an engine that speaks another one, naming both numbers.
pub const CONTRACT_VERSION: u32 = 6;

/// File in an experiment directory that an engine holds locked for as long as it may write there.
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
    /// Such as `cpu` or `cuda:0`.
    pub device: String,
    /// Parameters of the model.
    #[serde(default)]
    pub parameters: u64,
    /// Parameters that are trained.
    #[serde(default)]
    pub trainable_parameters: u64,
    /// The step whose batch is being sampled.
    #[serde(default)]
    pub global_step: u64,
    /// The batch so far (not empty after a resume).
    #[serde(default)]
    pub pool: PoolSnapshot,
}

/// Body of `POST /episodes/{id}/chat`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatCall {
    /// Train episodes are sampled as the configuration says, eval episodes as the request says.
    pub episode_type: EpisodeType,
    /// The agent's request, as it came: an OpenAI chat completion request.
    pub request: serde_json::Value,
}

/// Answer of `POST /episodes/{id}/count_tokens`, which is Anthropic's.
pub use super::anthropic::TokenCount;

/// Answer of `GET /episodes/{id}/conversations`, which is the swarm API's.
pub use super::swarm::EpisodeConversations;

/// Body of `POST /episodes/{id}/end`. The control plane has already checked it: the reward is finite, the ids are set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndEpisode {
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Whose episode it was.
    pub client_uuid: String,
    /// The task, which groups episodes.
    pub task_id: String,
    /// Finite.
    pub reward: f64,
    /// Whether the agent reached its goal, where that is known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// The `global_step` at which it was claimed; eval rewards are recorded under it.
    pub claimed_at_step: u64,
    /// What the client sent along.
    #[serde(default)]
    pub metadata: IndexMap<String, serde_json::Value>,
    /// To be averaged into the step's metrics.
    #[serde(default)]
    pub log_metrics: IndexMap<String, serde_json::Value>,
}

/// Why an episode that was begun did not train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// Its client gave it up.
    Aborted,
    /// No LLM call for longer than its discard timeout.
    Idle,
    /// It ended without an LLM call.
    NoLlmCall,
    /// It still ran when ROLLING_POST timed out or the engine was stopped.
    Late,
    /// Its task had equal rewards and the collection method leaves such tasks out.
    Dummy,
    /// The cache of finished episodes was over its bound.
    OverCache,
    /// It has no row with a sampled token.
    NoResponse,
    /// All of its rows were cut by length and `mask_truncated` is set.
    Truncated,
    /// Its log-probabilities, loss or gradient were not finite.
    NonFinite,
    /// The engine died under it.
    EngineLost,
}

impl DropReason {
    /// All of them.
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

    /// Whether it is decided when the batch is trained; the others are counted where they are decided.
    pub fn is_of_the_update(self) -> bool {
        match self {
            Self::Dummy | Self::OverCache | Self::NoResponse | Self::Truncated | Self::NonFinite => true,
            Self::Aborted | Self::Idle | Self::NoLlmCall | Self::Late | Self::EngineLost => false,
        }
    }

    /// The wire name, such as `no_llm_call`.
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
    /// Why.
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
    /// Reason → train episodes of the batch that were begun and did not get as far as the pool. The control plane counts
    /// them, since it outlives engines; what the engine itself leaves out it adds to the step's metrics.
    #[serde(default)]
    pub dropped: IndexMap<DropReason, u64>,
}

/// The finished train episodes of the batch and what the stop rule makes of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolSnapshot {
    /// Grows with every change, so that a snapshot that arrives late is told from a newer one.
    pub revision: u64,
    /// The step whose batch this is.
    pub global_step: u64,
    /// Finished train episodes, in the order they ended.
    pub episodes: Vec<PooledEpisode>,
    /// Tasks with at least N episodes.
    pub completed_tasks: u64,
    /// Completed tasks whose rewards differ.
    pub completed_non_dummy_tasks: u64,
    /// Whether the stop rule holds.
    pub full: bool,
}

/// What one call changed in the pool: a whole pool in every answer would be bytes by the square of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolChange {
    /// The pool's revision after the call. Answers may overtake each other; the counts of the highest revision hold.
    pub revision: u64,
    /// The step whose batch this is.
    pub global_step: u64,
    /// The episode that entered.
    #[serde(default)]
    pub added: Option<PooledEpisode>,
    /// Episodes that left, to keep the pool bounded.
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
    /// The pool's revision with which it entered.
    pub entered: u64,
    /// The episode.
    pub episode_uuid: String,
    /// Its task.
    pub task_id: String,
    /// Who ran it.
    pub client_uuid: String,
    /// Its reward.
    pub reward: f64,
}

/// Answer of `POST /agree`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BatchState {
    /// The pool after the call.
    pub pool: PoolSnapshot,
}

/// Answer of `POST /episodes/{id}/end`. When it arrives, the episode is on disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndOutcome {
    /// Set where the episode entered nothing.
    #[serde(default)]
    pub dropped: Option<DropReason>,
    /// Training rows of the episode.
    #[serde(default)]
    pub rows: u64,
    /// LLM calls of the episode.
    #[serde(default)]
    pub llm_calls: u64,
    /// What became of the pool.
    pub change: PoolChange,
}

/// What the engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnginePhase {
    /// Loading.
    Booting,
    /// Sampling.
    Rolling,
    /// Updating the weights, or writing them.
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
}

/// How serious a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For information.
    Info,
    /// Something is lost or wrong; the engine goes on.
    Warn,
}

/// One line of `GET /events`, such as `{"log": {"level": "warn", "message": "slow disk"}}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineEvent {
    /// The phase or its detail changed. The first line of every stream tells the present one.
    Status {
        /// Where it is.
        phase: EnginePhase,
        /// A sentence, such as `loading weights 40%` or `exporting step 20`.
        #[serde(default)]
        detail: Option<String>,
        /// The step whose batch is sampled (or, while updating, was sampled).
        global_step: u64,
    },
    /// The pool changed otherwise than by a call, whose answer tells it.
    Pool {
        /// The pool as it is now.
        pool: PoolSnapshot,
    },
    /// An update is done; what it measured, by the names of `metrics.jsonl`.
    Metrics {
        /// The step at which the batch was sampled.
        global_step: u64,
        /// Name → value.
        metrics: IndexMap<String, f64>,
    },
    /// The load of sampling changed; at most twice a second.
    Load {
        /// The load now.
        load: EngineLoad,
    },
    /// Episodes left the batch without training.
    Dropped {
        /// Why.
        reason: DropReason,
        /// How many.
        count: u64,
    },
    /// A line for the server's log.
    Log {
        /// How serious it is.
        level: LogLevel,
        /// The line.
        message: String,
    },
    /// The engine is about to end because of this.
    Fatal {
        /// A sentence.
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
