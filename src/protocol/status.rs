//! The status feed: what dashboards and the web page read. It is this server's own; Python servers do not have it.
//!
//! `GET /status` is everything that a screen needs in one answer, `GET /status/stream` the same as server-sent events
//! on every change. `GET /history`, `GET /runs`, `GET /episodes` and `GET /episodes/{id}` read the files of the
//! experiment, so they survive restarts and work while no engine runs. Times are Unix seconds, durations are seconds.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::engine::EndpointLoad;
use super::swarm::{EngineStatus, EpisodeType, VerboseLog};

/// Answer of `GET /status` and data of each event of `GET /status/stream`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The server itself.
    pub server: ServerInfo,
    /// The experiment of the running engine, or of the last one; null before the first start.
    #[serde(default)]
    pub experiment: Option<ExperimentInfo>,
    /// State of the engine and how it got there.
    pub engine: EngineState,
    /// Progress to the next update.
    #[serde(default)]
    pub batch: BatchProgress,
    /// Load and speed of sampling; null while no engine runs.
    #[serde(default)]
    pub sampling: Option<SamplingLoad>,
    /// Clients that take part in the batch.
    #[serde(default)]
    pub clients: Vec<ClientInfo>,
    /// Claimed episodes, in the order of their claims; at most [`RUNNING_EPISODES`].
    #[serde(default)]
    pub running: Vec<RunningEpisode>,
    /// Episodes that run: claimed ones that have begun an LLM call, also those not in `running`.
    #[serde(default)]
    pub running_total: u64,
    /// Episodes that are claimed and have not begun an LLM call yet.
    #[serde(default)]
    pub claimed_total: u64,
    /// Groups of the batch; while an update runs, of the batch that it trains on. At most [`GROUPS`].
    #[serde(default)]
    pub groups: Vec<TaskGroup>,
    /// Episodes that were begun and did not train since the engine started, by reason.
    #[serde(default)]
    pub dropped: IndexMap<String, u64>,
    /// Metrics of the last update, by the names of `metrics.jsonl`.
    #[serde(default)]
    pub latest_metrics: IndexMap<String, f64>,
    /// Metrics of the last evaluation (`eval/…`) with the step that was evaluated.
    #[serde(default)]
    pub latest_eval: Option<StepMetrics>,
    /// Recent lines of the log, oldest first; at most [`LOG_LINES`].
    #[serde(default)]
    pub log: Vec<VerboseLog>,
}

impl Status {
    /// Returns whether an evaluation runs: all claimed episodes are its.
    pub fn is_evaluating(&self) -> bool {
        let is_eval = |episode: &RunningEpisode| episode.episode_type == EpisodeType::Eval;
        let rolling = self.engine.status == EngineStatus::Rolling;
        rolling && !self.running.is_empty() && self.running.iter().all(is_eval)
    }
}

/// Maximum number of episodes in [`Status::running`].
pub const RUNNING_EPISODES: usize = 500;
/// Maximum number of groups in [`Status::groups`].
pub const GROUPS: usize = 500;
/// Maximum number of lines in [`Status::log`].
pub const LOG_LINES: usize = 200;
/// Maximum number of phases in [`EngineState::phases`].
pub const PHASES: usize = 300;

/// The server itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfo {
    /// Version of the program.
    pub version: String,
    /// When the server started.
    pub started: f64,
    /// Time of this answer by the server's clock.
    pub now: f64,
}

/// What is trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExperimentInfo {
    /// `ajet.project_name`.
    #[serde(default)]
    pub project: String,
    /// `ajet.experiment_name`.
    pub name: String,
    /// Directory of checkpoints and metrics, on the server.
    pub directory: String,
    /// `ajet.model.path`.
    pub model: String,
    /// Device of the model, such as `cpu` or `cuda:0`; empty until it is loaded.
    #[serde(default)]
    pub device: String,
    /// Number of parameters; 0 until the model is loaded.
    #[serde(default)]
    pub parameters: u64,
    /// Number of trained parameters, fewer than `parameters` with LoRA.
    #[serde(default)]
    pub trainable_parameters: u64,
}

/// State of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineState {
    /// State, such as `ENGINE.ROLLING`.
    pub status: EngineStatus,
    /// What it is doing, or why it stopped.
    #[serde(default)]
    pub detail: Option<String>,
    /// When it entered this state.
    pub since: f64,
    /// Step of the current batch, from 1; 0 while offline.
    pub global_step: u64,
    /// `ajet.trainer_common.total_training_steps`, if limited.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// States since the server started, oldest first, the current one last; at most [`PHASES`].
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// Restarts of crashed engines since the server started.
    #[serde(default)]
    pub restarts: u64,
}

impl EngineState {
    /// Returns the number of updates that are done before the current batch; 0 while offline.
    pub fn updates_done(&self) -> u64 {
        self.global_step.saturating_sub(1)
    }
}

impl Default for EngineState {
    fn default() -> Self {
        Self {
            status: EngineStatus::Offline,
            detail: None,
            since: 0.0,
            global_step: 0,
            total_steps: None,
            phases: vec![],
            restarts: 0,
        }
    }
}

/// A state that the engine was in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phase {
    /// State.
    pub status: EngineStatus,
    /// When it was entered.
    pub since: f64,
    /// Step at that time.
    pub global_step: u64,
}

/// Progress of the current batch to the next update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchProgress {
    /// Active rule, such as `rollout_until_finish_enough_tasks`; empty before the first start.
    #[serde(default)]
    pub rule: String,
    /// What the rule counts: `episodes`, `tasks`, `tasks with different rewards` or `clients`.
    #[serde(default)]
    pub unit: String,
    /// Count so far.
    #[serde(default)]
    pub done: u64,
    /// Count at which the batch is full.
    #[serde(default)]
    pub target: u64,
    /// Finished train episodes of the batch.
    #[serde(default)]
    pub episodes: u64,
    /// Train episodes that fill a batch (tasks × repeats).
    #[serde(default)]
    pub episodes_target: u64,
    /// Expected episodes for each task.
    #[serde(default)]
    pub repeats: u64,
    /// Estimated seconds until the next update begins (while rolling) or ends (while updating); null if unknown.
    #[serde(default)]
    pub seconds_left: Option<f64>,
    /// Rewards of the batch's finished episodes; null before the first one.
    #[serde(default)]
    pub reward: Option<Distribution>,
}

/// Mean and spread of values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl BatchProgress {
    /// Returns how full the batch is, 0 to 1. Where the rule counts tasks, episodes of incomplete ones count as well.
    pub fn share(&self) -> f64 {
        let share = |done: u64, target: u64| done as f64 / target.max(1) as f64;
        let of_rule = share(self.done, self.target);
        let of_episodes = match self.unit == "tasks" {
            true => share(self.episodes, self.episodes_target),
            false => 0.0,
        };
        of_rule.max(of_episodes).min(1.0)
    }
}

impl Distribution {
    /// Returns the distribution of finite values; percentiles are interpolated linearly. `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let percentile = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self {
            count: values.len() as u64,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p10: percentile(0.1),
            p50: percentile(0.5),
            p90: percentile(0.9),
        })
    }
}

/// Load and speed of sampling. Rates and requests are means of the last ten seconds, so that they agree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplingLoad {
    /// LLM requests that are sampled at the same time: a mean, rounded up.
    pub running_requests: u64,
    /// LLM requests that are queued: a mean, rounded up.
    pub waiting_requests: u64,
    /// Share of the KV cache in use, 0 to 1.
    pub cache_usage: f64,
    /// Share of prompt tokens served from the prefix cache since the engine started, 0 to 1.
    pub prefix_hit_rate: f64,
    /// Sampled tokens per second.
    pub tokens_per_second: f64,
    /// Computed prompt tokens per second.
    pub prompt_tokens_per_second: f64,
    /// Finished episodes per second.
    pub episodes_per_second: f64,
    /// Seconds from a request to its first token, of the last requests; null before the first one.
    #[serde(default)]
    pub time_to_first_token: Option<Distribution>,
    /// Seconds per further token, of the last requests; null before the first one.
    #[serde(default)]
    pub time_per_token: Option<Distribution>,
    /// Resident memory of the engine, in bytes.
    pub memory_bytes: u64,
    /// Samplers elsewhere; empty if the engine samples alone.
    #[serde(default)]
    pub endpoints: Vec<EndpointLoad>,
}

/// A client that takes part in the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientInfo {
    /// Id of the client.
    pub client_uuid: String,
    /// Time of its last request.
    pub last_activity: f64,
    /// Its claimed episodes.
    pub running: u64,
    /// Its finished episodes of the batch.
    pub finished: u64,
    /// Whether it agreed to end the batch.
    pub agreed: bool,
}

/// A claimed episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningEpisode {
    /// Id.
    pub episode_uuid: String,
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Task, or empty if the claim did not name it.
    #[serde(default)]
    pub task_id: String,
    /// Id of its client.
    pub client_uuid: String,
    /// When it was claimed.
    pub claimed: f64,
    /// Seconds since its last LLM call began or ended; 0 while one is in flight.
    pub idle: f64,
    /// Idle seconds after which it is discarded.
    pub patience: f64,
    /// LLM calls so far.
    pub llm_calls: u64,
    /// LLM calls in flight.
    pub calls_in_flight: u64,
    /// Sampled tokens so far.
    #[serde(default)]
    pub completion_tokens: u64,
}

impl RunningEpisode {
    /// Returns whether it has begun an LLM call; before, it is only claimed.
    pub fn has_begun(&self) -> bool {
        self.llm_calls > 0 || self.calls_in_flight > 0
    }
}

/// Episodes of one task in a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskGroup {
    /// Task.
    pub task_id: String,
    /// Its finished episodes, in the order they ended.
    pub episodes: Vec<GroupEpisode>,
    /// Its claimed episodes.
    pub running: u64,
    /// Whether the rewards differ, without which nothing is learnt from it.
    pub has_signal: bool,
}

/// A finished episode in its group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupEpisode {
    /// Id.
    pub episode_uuid: String,
    /// Id of its client.
    pub client_uuid: String,
    /// Reward.
    pub reward: f64,
}

/// Metrics of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepMetrics {
    /// The step.
    pub global_step: u64,
    /// Values by name.
    pub metrics: IndexMap<String, f64>,
}

/// Answer of `GET /history?run=&since=&keys=&limit=`: metrics by step.
///
/// `run` is an experiment's name (default: the current one), `since` the first step, `keys` names separated by commas
/// (a trailing `*` matches any ending; default: all), `limit` the maximum number of steps. More steps than the limit
/// are paged: ask again with `since` = `next`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// Experiment.
    pub run: String,
    /// Steps in ascending order; an updated and an evaluated step are one entry.
    pub steps: Vec<StepMetrics>,
    /// First step of the next page; null at the end.
    #[serde(default)]
    pub next: Option<u64>,
}

/// Answer of `GET /runs`: experiments beside the current one, by time of their last change, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runs {
    /// Experiments.
    pub runs: Vec<Run>,
}

/// An experiment on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Name of its directory.
    pub name: String,
    /// `ajet.model.path`, if known.
    #[serde(default)]
    pub model: Option<String>,
    /// Last step with metrics.
    pub last_step: u64,
    /// Time of the last change.
    pub changed: f64,
    /// Whether the running engine trains it.
    pub current: bool,
    /// Mean reward of the last update, if any.
    #[serde(default)]
    pub reward_mean: Option<f64>,
}

/// Answer of `GET /episodes?run=&type=&step=&task=&client=&sort=&offset=&limit=`: finished episodes.
///
/// `type` is `train` or `eval`; `sort` is `ended` (default), `reward`, `tokens` or `calls`, with a leading `-` for
/// descending (default `-ended`); `limit` is at most 500 (default 100).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Episodes {
    /// Episodes of this page.
    pub episodes: Vec<EpisodeSummary>,
    /// Episodes that match, on all pages.
    pub total: u64,
}

/// A finished episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EpisodeSummary {
    /// Id.
    pub episode_uuid: String,
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Step of its batch.
    pub global_step: u64,
    /// Task.
    #[serde(default)]
    pub task_id: String,
    /// Id of its client.
    pub client_uuid: String,
    /// Reward.
    pub reward: f64,
    /// Whether the agent reached its goal, if known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// `metadata.tag` of the client, if any.
    #[serde(default)]
    pub tag: Option<String>,
    /// Answered LLM calls.
    pub llm_calls: u64,
    /// Prompt tokens of all calls.
    pub prompt_tokens: u64,
    /// Sampled tokens.
    pub completion_tokens: u64,
    /// Seconds from the first call's request to the end.
    #[serde(default)]
    pub seconds: f64,
    /// When it ended.
    pub ended: f64,
    /// Why it did not train, if it was dropped.
    #[serde(default)]
    pub dropped: Option<String>,
    /// Whether its transcript is kept.
    pub has_transcript: bool,
}

/// Answer of `GET /episodes/{id}?run=&tokens=true`: a running or finished episode with all that was said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeDetail {
    /// What `GET /episodes` says of it; of a running episode reward and end are 0.
    pub summary: EpisodeSummary,
    /// Whether it still runs.
    pub running: bool,
    /// The client's own metrics of the episode, parts of its reward among them (`reward/…`).
    #[serde(default)]
    pub log_metrics: IndexMap<String, Value>,
    /// Conversations in OpenAI's format, each with the model's last answer; thinking is `reasoning_content`.
    pub conversations: Vec<TranscriptConversation>,
    /// Training rows with their tokens; empty unless `tokens=true`.
    #[serde(default)]
    pub rows: Vec<TokenRow>,
}

/// One conversation of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptConversation {
    /// The `model` of its requests.
    #[serde(default)]
    pub model: String,
    /// Functions on offer in its last request.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// OpenAI's messages.
    pub messages: Vec<Value>,
}

/// A training row. The lists have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenRow {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Text of each token, with invalid UTF-8 replaced.
    pub texts: Vec<String>,
    /// Whether the model sampled it and it is trained on.
    pub mask: Vec<bool>,
    /// Log-probability with which it was sampled; 0 where not trained.
    pub logprobs: Vec<f32>,
    /// Advantage of each token; null before the update.
    #[serde(default)]
    pub advantages: Option<Vec<f32>>,
    /// Whether the last turn was cut by a token limit.
    pub truncated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: the bar stood still for most of a batch, since no task was complete.
    #[test]
    fn episodes_of_incomplete_tasks_move_the_progress() {
        for (unit, done, episodes, share) in [
            ("tasks", 0, 64, 0.5),
            ("tasks", 12, 64, 0.75),
            ("tasks with different rewards", 4, 200, 0.25),
            ("clients", 0, 64, 0.0),
            ("episodes", 16, 16, 1.0),
            ("tasks", 3, 500, 1.0),
        ] {
            let batch = BatchProgress {
                unit: unit.into(),
                done,
                target: 16,
                episodes,
                episodes_target: 128,
                ..BatchProgress::default()
            };
            assert_eq!(batch.share(), share, "{done} {unit}");
        }
        assert_eq!(BatchProgress::default().share(), 0.0);
    }

    #[test]
    fn percentiles_are_interpolated_and_values_that_are_no_numbers_left_out() {
        let of = |values: &[f64]| Distribution::of(values.iter().copied());
        let figures = |values: &[f64]| of(values).map(|d| (d.count, d.mean, d.p10, d.p50, d.p90));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[f64::NAN]), None);
        assert_eq!(figures(&[3.0, f64::INFINITY]), Some((1, 3.0, 3.0, 3.0, 3.0)));
        assert_eq!(figures(&[10.0, 0.0]), Some((2, 5.0, 1.0, 5.0, 9.0)));
        assert_eq!(figures(&[4.0, 0.0, 2.0]), Some((3, 2.0, 0.4, 2.0, 3.6)));
    }
}
