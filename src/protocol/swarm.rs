//! The swarm API: what clients and `ajet-swarm start` say to each other, JSON over HTTP/1.1.
//!
//! Field names are fixed by the AgentJet Python clients. Python's models reject `null` where a string, list or map is
//! meant, so those are `""`, `[]` and `{}` when empty; the few nullable fields are `Option` without `skip_serializing_if`.
//! Unknown fields in a request are ignored, since older and newer clients exist.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Reads a server's answer. A null is as good as a missing field: Python servers have both, such as `"global_step": null`
/// before their first step.
///
/// # Errors
/// It is not such an answer.
pub fn understand<A: DeserializeOwned>(body: &[u8]) -> serde_json::Result<A> {
    serde_json::from_slice(body).or_else(|_| {
        let mut answer = serde_json::from_slice(body)?;
        drop_nulls(&mut answer);
        serde_json::from_value(answer)
    })
}

fn drop_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        serde_json::Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(drop_nulls);
        }
        _ => {}
    }
}

/// The port that `start` listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 10086;

/// Environment variable that holds a server's token.
pub const TOKEN_VARIABLE: &str = "AJET_SWARM_TOKEN";

/// Header by which our own clients name their version; servers answer them without the waits that slow pollers need.
pub const CLIENT_HEADER: &str = "x-ajet-client";

/// What the detail of an engine that went OFFLINE contains where that is the regular end of the run.
pub const UPDATES_DONE: &str = "updates of ajet.trainer_common.total_training_steps are done";

/// Detail of an engine that is OFFLINE because its server ends. The server may come back.
pub const SERVER_ENDS: &str = "the server is shutting down";

/// Prefix of every episode key, by which agents are recognised in logs and redacted.
pub const EPISODE_KEY_PREFIX: &str = "sk-ajet-";

/// State of the training engine, as told to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EngineStatus {
    /// No engine runs.
    #[serde(rename = "ENGINE.OFFLINE")]
    Offline,
    /// An engine loads its model.
    #[serde(rename = "ENGINE.BOOTING")]
    Booting,
    /// Episodes may be claimed.
    #[serde(rename = "ENGINE.ROLLING")]
    Rolling,
    /// The batch is full; running episodes may end, no new one begins.
    #[serde(rename = "ENGINE.ROLLING_POST")]
    RollingPost,
    /// The weights are being updated.
    #[serde(rename = "ENGINE.WEIGHT_SYNCING")]
    WeightSyncing,
    /// Declared by Python servers while a checkpoint is written; ours reports `WeightSyncing` with a detail instead.
    #[serde(rename = "ENGINE.WEIGHT_EXPORTING")]
    WeightExporting,
    /// Never on the wire: what a client shows when the server cannot be reached.
    #[serde(rename = "ENGINE.CANNOT_CONNECT")]
    CannotConnect,
}

impl EngineStatus {
    /// Those that our servers are in.
    pub const OF_SERVERS: [Self; 5] = [
        Self::Offline,
        Self::Booting,
        Self::Rolling,
        Self::RollingPost,
        Self::WeightSyncing,
    ];

    /// The wire name, such as `ENGINE.ROLLING`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offline => "ENGINE.OFFLINE",
            Self::Booting => "ENGINE.BOOTING",
            Self::Rolling => "ENGINE.ROLLING",
            Self::RollingPost => "ENGINE.ROLLING_POST",
            Self::WeightSyncing => "ENGINE.WEIGHT_SYNCING",
            Self::WeightExporting => "ENGINE.WEIGHT_EXPORTING",
            Self::CannotConnect => "ENGINE.CANNOT_CONNECT",
        }
    }
}

impl std::fmt::Display for EngineStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Answer of `GET /health`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// Answer of `GET /get_engine_status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EngineStatusAnswer {
    /// Where the engine is.
    pub engine_status: EngineStatus,
    /// A sentence on what it is doing or why it stopped.
    #[serde(default)]
    pub engine_status_detail: Option<String>,
    /// 0 while offline, 1 while the first batch is sampled.
    #[serde(default)]
    pub global_step: u64,
}

/// Body of `POST /sync_train_config`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SyncTrainConfigRequest {
    /// The whole training configuration as YAML.
    pub yaml_as_string: String,
}

/// Ours: answer of `POST /compare_train_config`, whose body is that of `POST /sync_train_config`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareTrainConfigAnswer {
    /// What the configuration was compared with.
    #[serde(default)]
    pub compared_with: ComparedWith,
    /// Directory of the experiment that runs, or that a start would continue.
    #[serde(default)]
    pub experiment_dir: String,
    /// The keys whose values differ.
    #[serde(default)]
    pub differences: Vec<ConfigDifference>,
}

/// What a configuration was compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparedWith {
    /// The engine that runs.
    Engine,
    /// The last start of an experiment that is not running.
    Experiment,
    /// Nothing: a start would begin a new experiment.
    #[default]
    Nothing,
}

/// A key of the configuration with two values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDifference {
    /// Dotted, such as `ajet.model.path`.
    #[serde(default)]
    pub key: String,
    /// In the configuration that was sent.
    #[serde(default)]
    pub given: serde_json::Value,
    /// In the one that it was compared with.
    #[serde(default)]
    pub present: serde_json::Value,
}

/// Answer of `POST /sync_train_code`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SyncTrainCodeAnswer {
    /// Whether the snapshot was stored.
    pub success: bool,
    /// What was done with it, and what was not.
    #[serde(default)]
    pub message: String,
    /// Where it is on the server's machine.
    #[serde(default)]
    pub temp_ajet_code_path: String,
}

/// Ours: answer of `GET /sync_train_code`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SyncedCodeAnswer {
    /// The stored snapshots, the oldest first.
    #[serde(default)]
    pub snapshots: Vec<SyncedSnapshot>,
    /// What cargo and the compiler said in the last build of the selected snapshot; empty before.
    #[serde(default)]
    pub build_log: String,
}

/// Ours: a stored snapshot of training code.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SyncedSnapshot {
    /// Where it is on the server's machine.
    pub path: String,
    /// Number of files.
    #[serde(default)]
    pub files: u64,
    /// Their total size in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// SHA-256 of the archive, in hexadecimal digits.
    #[serde(default)]
    pub sha256: String,
    /// Whether its engine is built.
    #[serde(default)]
    pub is_built: bool,
    /// Whether the next engine runs it.
    #[serde(default)]
    pub is_selected: bool,
}

/// Answer of the calls that only succeed or fail.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SuccessAnswer {
    /// Whether the call did what it was asked.
    pub success: bool,
}

/// Answer of `POST /end_episode`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EndEpisodeAnswer {
    /// Whether the episode has ended.
    pub success: bool,
    /// Why it will not be trained, such as `no_llm_call`, where that is known by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Answer of calls that say why they failed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SuccessOrReason {
    /// Whether the call did what it was asked.
    pub success: bool,
    /// Empty on success.
    #[serde(default)]
    pub failure_reason: String,
}

/// Answer of `POST /start_engine`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StartEngineAnswer {
    /// Whether an engine was started.
    pub success: bool,
    /// Process id of the engine.
    #[serde(default)]
    pub pid: Option<u32>,
}

/// Answer of `GET /get_server_experiment_dir`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExperimentDirAnswer {
    /// Absolute path; null only before the first start.
    pub server_experiment_dir: Option<String>,
}

/// What an episode is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EpisodeType {
    /// Its reward and tokens train the model.
    #[default]
    Train,
    /// Its reward is recorded, it trains nothing.
    Eval,
}

/// How a client keeps its own share of a batch (`throttle_policy` of a claim).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottlePolicy {
    /// Own distinct tasks in the pool may reach `expected_batch_size × ratio`.
    #[serde(default = "default_throttle_ratio")]
    pub ratio: f64,
    /// Tasks a batch, as the client expects.
    pub expected_batch_size: u64,
    /// Episodes a task, as the client expects.
    pub expected_num_repeat: u64,
    /// The task about to be begun.
    #[serde(default)]
    pub current_task_id: String,
}

fn default_throttle_ratio() -> f64 {
    1.5
}

/// Body of `POST /claim_episode`. The type is a string here so that a wrong one gets our sentence, not a parser's.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimEpisodeRequest {
    /// Who asks.
    pub client_uuid: String,
    /// `train` or `eval`.
    pub episode_type: String,
    /// Seconds without an LLM call after which the episode is discarded.
    pub discard_episode_timeout: f64,
    /// Present when the client throttles itself.
    #[serde(default)]
    pub throttle_policy: Option<ThrottlePolicy>,
}

/// Answer of `POST /claim_episode`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClaimEpisodeAnswer {
    /// Whether an episode was claimed.
    pub success: bool,
    /// Echo of the request's.
    #[serde(default)]
    pub client_uuid: String,
    /// The episode.
    #[serde(default)]
    pub episode_uuid: String,
    /// Base URL of the model API; clients replace scheme and authority by those they know us under.
    #[serde(default)]
    pub openai_base_url: String,
    /// Key that names the episode to the model API.
    #[serde(default)]
    pub openai_api_key: String,
    /// Why not, with the phrases that clients match on.
    #[serde(default)]
    pub fail_cause: String,
}

/// What an agent's run came to. `reward` is loosely typed on purpose: anything but a finite number is refused with a
/// sentence of ours.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkflowOutput {
    /// The episode's reward.
    #[serde(default)]
    pub reward: serde_json::Value,
    /// Whether the agent reached its goal, where that is known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// Anything; `task_id` in it must equal the request's.
    #[serde(default)]
    pub metadata: IndexMap<String, serde_json::Value>,
    /// Numbers, lists of numbers or objects to be averaged into the step's metrics.
    #[serde(default)]
    pub log_metrics: IndexMap<String, serde_json::Value>,
}

/// Body of `POST /end_episode` and `POST /abort_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EndEpisodeRequest {
    /// Who ends it.
    pub client_uuid: String,
    /// Which episode.
    pub episode_uuid: String,
    /// What came of it.
    #[serde(default)]
    pub workflow_output: WorkflowOutput,
    /// The task it belongs to; empty for an abort.
    #[serde(default)]
    pub task_id: String,
    /// Whether this call makes the client an active one.
    #[serde(default = "yes")]
    pub declare_client_active: bool,
}

fn yes() -> bool {
    true
}

/// Body of `POST /can_continue_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CanContinueEpisodeRequest {
    /// Who asks.
    pub client_uuid: String,
    /// Which episode.
    pub episode_uuid: String,
}

/// Answer of `POST /can_continue_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CanContinueEpisodeAnswer {
    /// Whether the episode is still this client's and the engine still rolls.
    pub can_continue: bool,
}

/// Body of `POST /is_episode_claimed`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IsEpisodeClaimedRequest {
    /// Which episode.
    pub episode_uuid: String,
    /// Drop the record if nobody claimed it.
    #[serde(default)]
    pub unregister_if_not_claimed: bool,
}

/// Body of `POST /agree_sync_weight`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgreeSyncWeightRequest {
    /// Who agrees.
    pub client_uuid: String,
}

/// One episode as `POST /get_episode_buffer` lists it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeStatus {
    /// The episode.
    pub episode_uuid: String,
    /// `registered` or `claimed`.
    pub episode_status: String,
    /// `train` or `eval`.
    #[serde(default)]
    pub episode_type: EpisodeType,
    /// As in the claim.
    #[serde(default)]
    pub openai_base_url: String,
    /// Always blank in a listing.
    #[serde(default)]
    pub openai_api_key: String,
    /// Who runs it.
    #[serde(default)]
    pub client_uuid: String,
    /// Always blank; a Python server's private address.
    #[serde(default)]
    pub zmq_listen_result_addr: String,
    /// Unix seconds.
    #[serde(default)]
    pub latest_activity_timestamp: f64,
    /// Seconds.
    pub discard_episode_timeout: f64,
    /// LLM calls so far.
    #[serde(default)]
    pub llm_call_count: u64,
    /// Always empty; kept for Python.
    #[serde(default)]
    pub debug_log: Vec<String>,
    /// The task, where the claim's throttle policy named it.
    #[serde(default)]
    pub optional_task_id: String,
}

/// Answer of `POST /get_episode_buffer`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeBufferAnswer {
    /// Every episode that runs.
    pub buffer: Vec<EpisodeStatus>,
}

/// A running episode in the pool information. Python wants every value as a string.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunningEpisodeDetail {
    /// `claimed`.
    #[serde(default)]
    pub episode_status: String,
    /// Such as `1.2s`.
    #[serde(default)]
    pub time_since_last_activity: String,
    /// Such as `240.0s`.
    #[serde(default)]
    pub discard_episode_timeout: String,
    /// Such as `3`.
    #[serde(default)]
    pub llm_call_count: String,
    /// Who runs it.
    #[serde(default)]
    pub client_uuid: String,
    /// The task, where known.
    #[serde(default)]
    pub optional_task_id: String,
}

/// A client that takes part in the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ActiveClient {
    /// The client.
    pub client_uuid: String,
    /// Unix seconds.
    #[serde(default)]
    pub last_activity_at: f64,
    /// Whether it agreed to the update.
    #[serde(default)]
    pub allowed_sync_weight: bool,
}

/// The clients that take part in the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SwarmClientInstruction {
    /// Every active client.
    #[serde(default)]
    pub active_clients: Vec<ActiveClient>,
}

/// Answer of `GET /get_current_batch_rollout_pool_information`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolInformation {
    /// Wire name of the stop rule.
    #[serde(default)]
    pub sample_collection_method: String,
    /// Finished train episodes of the batch.
    #[serde(default)]
    pub completed_episodes: u64,
    /// B·N.
    #[serde(default)]
    pub completed_episode_target: u64,
    /// Tasks with at least N episodes.
    #[serde(default)]
    pub completed_tasks: u64,
    /// B.
    #[serde(default)]
    pub completed_task_target: u64,
    /// Completed tasks whose rewards differ.
    #[serde(default)]
    pub completed_non_dummy_tasks: u64,
    /// B.
    #[serde(default)]
    pub completed_non_dummy_task_target: u64,
    /// N.
    #[serde(default)]
    pub task_expected_num_repeat: u64,
    /// Task → its finished episodes.
    #[serde(default)]
    pub completed_tasks_details: IndexMap<String, Vec<String>>,
    /// Task → the rewards of its finished episodes, in the same order.
    #[serde(default)]
    pub completed_tasks_rewards: IndexMap<String, Vec<f64>>,
    /// Task → the clients of its finished episodes, in the same order.
    #[serde(default)]
    pub completed_tasks_client_uuids: IndexMap<String, Vec<String>>,
    /// Episode → what it is doing; null, not `{}`, when nothing runs (Python clients branch on it).
    #[serde(default)]
    pub running_episode_details: Option<IndexMap<String, RunningEpisodeDetail>>,
    /// Where the engine is.
    #[serde(default)]
    pub engine_status: Option<EngineStatus>,
    /// As in the status.
    #[serde(default)]
    pub global_step: u64,
    /// Unix seconds.
    #[serde(default)]
    pub booting_start_time: Option<f64>,
    /// `ajet.model.path` of the running engine.
    #[serde(default)]
    pub training_model_path: Option<String>,
    /// Who takes part.
    #[serde(default)]
    pub swarm_client_instruction: SwarmClientInstruction,
    /// Ours: reason → episodes that were begun and did not train, since the engine started.
    #[serde(default)]
    pub dropped_episodes: IndexMap<String, u64>,
    /// Ours: the metrics of the last update, by the names of `metrics.jsonl`.
    #[serde(default)]
    pub latest_metrics: IndexMap<String, f64>,
}

/// Body of `POST /push_verbose_log`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PushVerboseLogRequest {
    /// What the message is about.
    #[serde(default)]
    pub tag: String,
    /// The message.
    #[serde(default)]
    pub message: String,
}

/// One verbose log line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerboseLog {
    /// Unix seconds.
    pub timestamp: f64,
    /// What the message is about.
    pub tag: String,
    /// The message.
    pub message: String,
}

/// Answer of `GET /get_verbose_logs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VerboseLogsAnswer {
    /// Those of the last 30 s, 50 at most.
    pub entries: Vec<VerboseLog>,
}

/// Answer of `POST /replay_latest_llm_call`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplayLatestLlmCallAnswer {
    /// The last chat request.
    pub input: serde_json::Value,
    /// Its answer.
    pub output: serde_json::Value,
}

/// Answer of `GET /v1/episode/conversations`: what an episode's agents and the model said to each other so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeConversations {
    /// The episode.
    pub episode_uuid: String,
    /// Answers that the model gave, in all conversations.
    #[serde(default)]
    pub llm_calls: u64,
    /// Index in `conversations` of the one with the most messages, of equal ones the latest; null before the first answer.
    #[serde(default)]
    pub main: Option<usize>,
    /// One for each answer that no later request continues, in the order of these answers.
    #[serde(default)]
    pub conversations: Vec<RecordedConversation>,
    /// Shorter conversations that are not in `conversations`, because the answer would be larger than 32 MiB.
    #[serde(default)]
    pub left_out: u64,
}

impl EpisodeConversations {
    /// The messages of the main conversation.
    pub fn into_main(mut self) -> Option<Vec<serde_json::Value>> {
        let main = self.main.filter(|main| *main < self.conversations.len())?;
        Some(self.conversations.swap_remove(main).messages)
    }
}

/// One conversation of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedConversation {
    /// The `model` of its requests, by which the agents of one episode may tell themselves apart.
    #[serde(default)]
    pub model: String,
    /// The functions on offer in its last request.
    #[serde(default)]
    pub tools: Vec<serde_json::Value>,
    /// OpenAI's messages, the model's last answer included. Thinking is `reasoning_content`.
    #[serde(default)]
    pub messages: Vec<serde_json::Value>,
    /// The model's answers among `messages`, oldest first.
    #[serde(default)]
    pub answers: Vec<RecordedAnswer>,
}

/// One answer of the model in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedAnswer {
    /// Its index in `messages`.
    pub message: usize,
    /// Tokens that the model was given.
    pub prompt_tokens: u64,
    /// Tokens that the model sampled.
    pub completion_tokens: u64,
    /// `stop` or `tool_calls`, or `length` where a token limit cut it.
    pub finish_reason: String,
    /// When its request came, in Unix seconds.
    pub begun: f64,
    /// Seconds from its request to its last token.
    pub seconds: f64,
}

/// Body of every error outside `/v1`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// A sentence.
    pub detail: String,
}
