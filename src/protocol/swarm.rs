//! The swarm API: requests of clients to `ajet-swarm start` and its answers, JSON over HTTP/1.1.
//!
//! Field names are fixed by the AgentJet Python clients. Python's models reject `null` for strings, lists and
//! maps, so empty ones are `""`, `[]` and `{}`; the few nullable fields are `Option` without `skip_serializing_if`.
//! Unknown fields of requests are ignored, for older and newer clients.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Parses a server's answer. A null counts as a missing field: Python servers send `"global_step": null` before their
/// first step.
///
/// # Errors
/// Fails if the body is not JSON of this type.
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

/// Default port of `start`.
pub const DEFAULT_PORT: u16 = 10086;

/// Environment variable with the access token of a server.
pub const TOKEN_VARIABLE: &str = "AJET_SWARM_TOKEN";

/// Header with the version of our own clients, which a server answers without the delays that slow pollers need.
pub const CLIENT_HEADER: &str = "x-ajet-client";

/// Part of the detail of an engine that is OFFLINE because all updates are done.
pub const UPDATES_DONE: &str = "updates of ajet.trainer_common.total_training_steps are done";

/// Detail of an engine that is OFFLINE because its server is shutting down. The server may be restarted.
pub const SERVER_ENDS: &str = "the server is shutting down";

/// Prefix of every episode key, by which keys are found in logs and redacted.
pub const EPISODE_KEY_PREFIX: &str = "sk-ajet-";

/// State of the training engine, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EngineStatus {
    /// No engine is running.
    #[serde(rename = "ENGINE.OFFLINE")]
    Offline,
    /// An engine is loading its model.
    #[serde(rename = "ENGINE.BOOTING")]
    Booting,
    /// Episodes can be claimed.
    #[serde(rename = "ENGINE.ROLLING")]
    Rolling,
    /// The batch is full; running episodes may end, but none can be claimed.
    #[serde(rename = "ENGINE.ROLLING_POST")]
    RollingPost,
    /// The weights are being updated.
    #[serde(rename = "ENGINE.WEIGHT_SYNCING")]
    WeightSyncing,
    /// A checkpoint is being written. Only Python servers report it; ours report `WeightSyncing` with a detail.
    #[serde(rename = "ENGINE.WEIGHT_EXPORTING")]
    WeightExporting,
    /// The server cannot be reached. Shown by clients, never sent.
    #[serde(rename = "ENGINE.CANNOT_CONNECT")]
    CannotConnect,
}

impl EngineStatus {
    /// States that our servers report.
    pub const OF_SERVERS: [Self; 5] = [
        Self::Offline,
        Self::Booting,
        Self::Rolling,
        Self::RollingPost,
        Self::WeightSyncing,
    ];

    /// Returns the name on the wire, such as `ENGINE.ROLLING`.
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
    /// State of the engine.
    pub engine_status: EngineStatus,
    /// Current activity, or why the engine stopped.
    #[serde(default)]
    pub engine_status_detail: Option<String>,
    /// Step whose batch is being sampled, from 1; 0 while offline.
    #[serde(default)]
    pub global_step: u64,
}

/// Body of `POST /sync_train_config`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SyncTrainConfigRequest {
    /// Complete training configuration as YAML.
    pub yaml_as_string: String,
}

/// Answer of `POST /compare_train_config`, whose body is that of `POST /sync_train_config`. Python servers do not have
/// it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareTrainConfigAnswer {
    /// Source of the other configuration.
    #[serde(default)]
    pub compared_with: ComparedWith,
    /// Directory of the running experiment, or of the one that a start would continue.
    #[serde(default)]
    pub experiment_dir: String,
    /// Keys whose values differ.
    #[serde(default)]
    pub differences: Vec<ConfigDifference>,
}

/// What a configuration was compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparedWith {
    /// The running engine.
    Engine,
    /// The last start of an experiment that is not running.
    Experiment,
    /// Nothing: a start would begin a new experiment.
    #[default]
    Nothing,
}

/// A configuration key whose values differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigDifference {
    /// Dotted path of the key, such as `ajet.model.path`.
    #[serde(default)]
    pub key: String,
    /// Value in the configuration that was sent.
    #[serde(default)]
    pub given: serde_json::Value,
    /// Value in the configuration that it was compared with.
    #[serde(default)]
    pub present: serde_json::Value,
}

/// Answer of `POST /sync_train_code`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SyncTrainCodeAnswer {
    /// Whether the snapshot was stored.
    pub success: bool,
    /// Where the snapshot is stored and how to use it.
    #[serde(default)]
    pub message: String,
    /// Directory of the snapshot on the server's machine.
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

/// Answer of calls without a result.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SuccessAnswer {
    /// Whether the call succeeded.
    pub success: bool,
}

/// Answer of `POST /end_episode`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EndEpisodeAnswer {
    /// Whether the episode has ended.
    pub success: bool,
    /// Why the episode will not be trained on, such as `no_llm_call`, if that is already known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Answer of calls without a result, with the reason of a failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SuccessOrReason {
    /// Whether the call succeeded.
    pub success: bool,
    /// Why the call failed; empty on success.
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
    /// Absolute path of the experiment directory; null only before the first start.
    pub server_experiment_dir: Option<String>,
}

/// Purpose of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EpisodeType {
    /// Trains the model.
    #[default]
    Train,
    /// Evaluates the model: its reward is recorded and not trained on.
    Eval,
}

impl EpisodeType {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }
}

/// Limit that a client sets on its own share of a batch (`throttle_policy` of a claim).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottlePolicy {
    /// The client may have up to `expected_batch_size × ratio` distinct tasks in the pool.
    #[serde(default = "default_throttle_ratio")]
    pub ratio: f64,
    /// Number of tasks per batch that the client expects.
    pub expected_batch_size: u64,
    /// Number of episodes per task that the client expects.
    pub expected_num_repeat: u64,
    /// Task of the episode to claim.
    #[serde(default)]
    pub current_task_id: String,
}

fn default_throttle_ratio() -> f64 {
    1.5
}

/// Body of `POST /claim_episode`. `episode_type` is a string, so that an invalid one gets a clear error message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimEpisodeRequest {
    /// Id of the client.
    pub client_uuid: String,
    /// `train` or `eval`.
    pub episode_type: String,
    /// Seconds without an LLM call after which the episode is discarded.
    pub discard_episode_timeout: f64,
    /// Set if the client limits its share of the batch.
    #[serde(default)]
    pub throttle_policy: Option<ThrottlePolicy>,
}

/// Answer of `POST /claim_episode`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClaimEpisodeAnswer {
    /// Whether an episode was claimed.
    pub success: bool,
    /// Id of the client, as in the request.
    #[serde(default)]
    pub client_uuid: String,
    /// Id of the episode.
    #[serde(default)]
    pub episode_uuid: String,
    /// Base URL of the model API; clients replace scheme, host and port by those under which they reach the server.
    #[serde(default)]
    pub openai_base_url: String,
    /// API key of the episode for the model API.
    #[serde(default)]
    pub openai_api_key: String,
    /// Why no episode was claimed, with phrases that clients match on.
    #[serde(default)]
    pub fail_cause: String,
}

/// Result of an agent's run. `reward` may be any JSON value here, so that all but a finite number get a clear error
/// message.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkflowOutput {
    /// The episode's reward.
    #[serde(default)]
    pub reward: serde_json::Value,
    /// Whether the agent reached its goal, if known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// Metadata of any form; a `task_id` in it must equal the request's.
    #[serde(default)]
    pub metadata: IndexMap<String, serde_json::Value>,
    /// Numbers, lists of numbers or objects of them, averaged into the step's metrics.
    #[serde(default)]
    pub log_metrics: IndexMap<String, serde_json::Value>,
}

/// Body of `POST /end_episode` and `POST /abort_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EndEpisodeRequest {
    /// Id of the client.
    pub client_uuid: String,
    /// Id of the episode.
    pub episode_uuid: String,
    /// Result of the episode.
    #[serde(default)]
    pub workflow_output: WorkflowOutput,
    /// Id of the task; empty for an abort.
    #[serde(default)]
    pub task_id: String,
    /// Whether the call makes the client an active one.
    #[serde(default = "yes")]
    pub declare_client_active: bool,
}

fn yes() -> bool {
    true
}

/// Body of `POST /can_continue_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CanContinueEpisodeRequest {
    /// Id of the client.
    pub client_uuid: String,
    /// Id of the episode.
    pub episode_uuid: String,
}

/// Answer of `POST /can_continue_episode`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CanContinueEpisodeAnswer {
    /// Whether the episode still belongs to the client and the engine is still rolling.
    pub can_continue: bool,
}

/// Body of `POST /is_episode_claimed`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IsEpisodeClaimedRequest {
    /// Id of the episode.
    pub episode_uuid: String,
    /// Delete the episode if it is not claimed.
    #[serde(default)]
    pub unregister_if_not_claimed: bool,
}

/// Body of `POST /agree_sync_weight`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgreeSyncWeightRequest {
    /// Id of the client that agrees.
    pub client_uuid: String,
}

/// One episode as `POST /get_episode_buffer` lists it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeStatus {
    /// Id of the episode.
    pub episode_uuid: String,
    /// `registered` or `claimed`.
    pub episode_status: String,
    /// `train` or `eval`.
    #[serde(default)]
    pub episode_type: EpisodeType,
    /// Base URL of the model API.
    #[serde(default)]
    pub openai_base_url: String,
    /// Always empty in a list.
    #[serde(default)]
    pub openai_api_key: String,
    /// Id of the client that runs it.
    #[serde(default)]
    pub client_uuid: String,
    /// Always empty; an internal address of Python servers.
    #[serde(default)]
    pub zmq_listen_result_addr: String,
    /// Time of the last activity in Unix seconds.
    #[serde(default)]
    pub latest_activity_timestamp: f64,
    /// Seconds without activity after which the episode is discarded.
    pub discard_episode_timeout: f64,
    /// Number of LLM calls so far.
    #[serde(default)]
    pub llm_call_count: u64,
    /// Always empty; Python clients expect it.
    #[serde(default)]
    pub debug_log: Vec<String>,
    /// Id of the task, if the claim's throttle policy named it.
    #[serde(default)]
    pub optional_task_id: String,
}

/// Answer of `POST /get_episode_buffer`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeBufferAnswer {
    /// All running episodes.
    pub buffer: Vec<EpisodeStatus>,
}

/// A running episode in the pool information. Python clients expect all values as strings.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunningEpisodeDetail {
    /// Always `claimed`.
    #[serde(default)]
    pub episode_status: String,
    /// Time since the last activity, such as `1.2s`.
    #[serde(default)]
    pub time_since_last_activity: String,
    /// Discard timeout, such as `240.0s`.
    #[serde(default)]
    pub discard_episode_timeout: String,
    /// Number of LLM calls so far, such as `3`.
    #[serde(default)]
    pub llm_call_count: String,
    /// Id of the client that runs it.
    #[serde(default)]
    pub client_uuid: String,
    /// Id of the task, if known.
    #[serde(default)]
    pub optional_task_id: String,
}

impl RunningEpisodeDetail {
    /// Returns whether it has begun an LLM call; before, it is only claimed.
    pub fn has_begun(&self) -> bool {
        self.llm_call_count != "0"
    }
}

/// A client that takes part in the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ActiveClient {
    /// Id of the client.
    pub client_uuid: String,
    /// Time of its last activity in Unix seconds.
    #[serde(default)]
    pub last_activity_at: f64,
    /// Whether it agreed to end the batch.
    #[serde(default)]
    pub allowed_sync_weight: bool,
}

/// The clients that take part in the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SwarmClientInstruction {
    /// All active clients.
    #[serde(default)]
    pub active_clients: Vec<ActiveClient>,
}

/// Answer of `GET /get_current_batch_rollout_pool_information`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolInformation {
    /// Name of the collection method.
    #[serde(default)]
    pub sample_collection_method: String,
    /// Number of finished train episodes of the batch.
    #[serde(default)]
    pub completed_episodes: u64,
    /// Episodes per batch, B·N.
    #[serde(default)]
    pub completed_episode_target: u64,
    /// Number of tasks with at least N episodes.
    #[serde(default)]
    pub completed_tasks: u64,
    /// Tasks per batch, B.
    #[serde(default)]
    pub completed_task_target: u64,
    /// Number of completed tasks whose rewards differ.
    #[serde(default)]
    pub completed_non_dummy_tasks: u64,
    /// Tasks per batch, B.
    #[serde(default)]
    pub completed_non_dummy_task_target: u64,
    /// Episodes per task, N.
    #[serde(default)]
    pub task_expected_num_repeat: u64,
    /// Finished episodes by task.
    #[serde(default)]
    pub completed_tasks_details: IndexMap<String, Vec<String>>,
    /// Rewards of the finished episodes by task, in the same order.
    #[serde(default)]
    pub completed_tasks_rewards: IndexMap<String, Vec<f64>>,
    /// Clients of the finished episodes by task, in the same order.
    #[serde(default)]
    pub completed_tasks_client_uuids: IndexMap<String, Vec<String>>,
    /// Running episodes by id; null instead of `{}` if there is none, since Python clients check for null.
    #[serde(default)]
    pub running_episode_details: Option<IndexMap<String, RunningEpisodeDetail>>,
    /// State of the engine.
    #[serde(default)]
    pub engine_status: Option<EngineStatus>,
    /// Step whose batch is being sampled, as in the status.
    #[serde(default)]
    pub global_step: u64,
    /// Start of the boot in Unix seconds.
    #[serde(default)]
    pub booting_start_time: Option<f64>,
    /// `ajet.model.path` of the running engine.
    #[serde(default)]
    pub training_model_path: Option<String>,
    /// Active clients of the batch.
    #[serde(default)]
    pub swarm_client_instruction: SwarmClientInstruction,
    /// Number of episodes since the engine started that were not trained on, by reason. Python servers do not send it.
    #[serde(default)]
    pub dropped_episodes: IndexMap<String, u64>,
    /// Metrics of the last update, by the names of `metrics.jsonl`. Python servers do not send them.
    #[serde(default)]
    pub latest_metrics: IndexMap<String, f64>,
}

/// Body of `POST /push_verbose_log`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PushVerboseLogRequest {
    /// Subject of the message.
    #[serde(default)]
    pub tag: String,
    /// The message.
    #[serde(default)]
    pub message: String,
}

/// One verbose log line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerboseLog {
    /// Time in Unix seconds.
    pub timestamp: f64,
    /// Subject of the message.
    pub tag: String,
    /// The message.
    pub message: String,
}

/// Answer of `GET /get_verbose_logs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct VerboseLogsAnswer {
    /// Lines of the last 30 s, at most 50.
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

/// Answer of `GET /v1/episode/conversations`: the conversations of an episode's agents with the model so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeConversations {
    /// Id of the episode.
    pub episode_uuid: String,
    /// Number of the model's answers in all conversations.
    #[serde(default)]
    pub llm_calls: u64,
    /// Index in `conversations` of the longest one, the latest of equally long ones; null before the first answer.
    #[serde(default)]
    pub main: Option<usize>,
    /// One conversation for each answer that no later request continues, in the order of these answers.
    #[serde(default)]
    pub conversations: Vec<RecordedConversation>,
    /// Number of shorter conversations that are omitted because the answer would exceed 32 MiB.
    #[serde(default)]
    pub left_out: u64,
}

impl EpisodeConversations {
    /// Returns the messages of the main conversation.
    pub fn into_main(mut self) -> Option<Vec<serde_json::Value>> {
        let main = self.main.filter(|main| *main < self.conversations.len())?;
        Some(self.conversations.swap_remove(main).messages)
    }
}

/// One conversation of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedConversation {
    /// `model` of its requests, by which the agents of one episode can be distinguished.
    #[serde(default)]
    pub model: String,
    /// Tools of its last request.
    #[serde(default)]
    pub tools: Vec<serde_json::Value>,
    /// Messages in OpenAI's format, including the model's last answer. Thinking is in `reasoning_content`.
    #[serde(default)]
    pub messages: Vec<serde_json::Value>,
    /// The model's answers in `messages`, oldest first.
    #[serde(default)]
    pub answers: Vec<RecordedAnswer>,
}

/// One answer of the model in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedAnswer {
    /// Index in `messages`.
    pub message: usize,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u64,
    /// Number of sampled tokens.
    pub completion_tokens: u64,
    /// `stop` or `tool_calls`, or `length` if a token limit ended it.
    pub finish_reason: String,
    /// Time of its request in Unix seconds.
    pub begun: f64,
    /// Seconds from the request to the last token.
    pub seconds: f64,
}

/// Body of every error outside `/v1`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The error message.
    pub detail: String,
}
