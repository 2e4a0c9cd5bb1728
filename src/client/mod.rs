//! [`SwarmClient`]: begins and ends episodes, starts and stops the engine of a swarm server.
//!
//! All clients are equal: any may start or stop the engine, any number may share a batch, and one that dies loses only
//! its own running episodes. Clones share their connections. All calls are cancel-safe: a dropped future leaves no
//! episode claimed.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # fn main() { example(async |url, config| {
//! use ajet_swarm::client::{BeginEpisode, SwarmClient};
//! use ajet_swarm::protocol::openai::{ChatMessage, ChatRequest};
//! use ajet_swarm::protocol::swarm::WorkflowOutput;
//!
//! // The server's URL, such as http://localhost:10086, and the training configuration as YAML.
//! let swarm = SwarmClient::new(url)?;
//! swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
//!
//! let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
//! // Any OpenAI client in any language works: give it `episode.base_url()` and `episode.api_key()`.
//! let request = ChatRequest {
//!     messages: vec![ChatMessage::new("user", "1 + 1 =")],
//!     ..ChatRequest::default()
//! };
//! let answer = episode.model().chat(&request).await?;
//! let right = answer.choices[0].message.content == "2";
//! let output = WorkflowOutput { reward: f64::from(right).into(), ..WorkflowOutput::default() };
//! episode.end("task_1", output).await?;
//! # Ok(()) }) }
//! ```

mod chat;
mod chat_stream;
pub mod checkpoints;
mod code;
mod engine;
mod episode;
mod error;
pub mod fetch;
mod http;
mod observe;
mod records;
pub mod throttle;
mod url;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::task::TaskTracker;

pub use chat::ModelApi;
pub use chat_stream::ChatStream;
pub use code::{Sources, SourcesError, pack as pack_sources};
pub use engine::Started;
pub use episode::{BeginEpisode, EndOutcome, Episode};
pub use error::ClientError;
pub use http::{backoff, http_client, retry_after, root_cause};
pub use observe::EventStream;
pub use url::{ServerUrl, blank_token, with_token};

use crate::protocol::swarm::{
    EngineStatus, EngineStatusAnswer, EpisodeBufferAnswer, EpisodeStatus, ExperimentDirAnswer, Health, PoolInformation,
    ReplayLatestLlmCallAnswer, VerboseLog, VerboseLogsAnswer,
};
use http::{Call, Http, Retry};
use throttle::BegunTasks;

/// Maximum age of a cached status while many callers wait for a change.
const STATUS_FRESH: Duration = Duration::from_millis(200);

/// Client of one swarm server.
#[derive(Clone, Debug)]
pub struct SwarmClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    http: Http,
    client_uuid: String,
    /// Whether the engine was up once, so that OFFLINE means that it went away.
    seen_up: AtomicBool,
    begun: Mutex<BegunTasks>,
    /// Collection method of the engine that this client started.
    own_method: Mutex<Option<String>>,
    /// Held from reading the pool to the claim, so that concurrent claims do not all see an unused share.
    throttling: tokio::sync::Mutex<()>,
    last_status: tokio::sync::Mutex<Option<(Instant, EngineStatusAnswer)>>,
    /// Background aborts of dropped episodes.
    aborts: TaskTracker,
}

impl SwarmClient {
    /// Creates a client of the server at `url`: `http://host:port`, followed by `/t/TOKEN` if the server requires a
    /// token. Does not connect yet.
    ///
    /// ```
    /// use ajet_swarm::client::SwarmClient;
    /// let swarm = SwarmClient::new("http://gpu-box:10086/t/a-secret-token")?;
    /// assert!(!format!("{swarm:?}").contains("a-secret-token"), "tokens are not shown");
    /// # Ok::<(), ajet_swarm::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Url`], [`ClientError::Setup`].
    pub fn new(url: &str) -> Result<Self, ClientError> {
        Ok(Self {
            inner: Arc::new(Inner {
                http: Http::new(ServerUrl::parse(url)?)?,
                client_uuid: uuid::Uuid::new_v4().to_string(),
                seen_up: AtomicBool::new(false),
                begun: Mutex::default(),
                own_method: Mutex::default(),
                throttling: tokio::sync::Mutex::default(),
                last_status: tokio::sync::Mutex::default(),
                aborts: TaskTracker::new(),
            }),
        })
    }

    /// Returns this client's id.
    pub fn client_uuid(&self) -> &str {
        &self.inner.client_uuid
    }

    /// Returns the server's URL.
    pub fn url(&self) -> &ServerUrl {
        &self.inner.http.url
    }

    /// Checks that a swarm server answers.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after one attempt.
    pub async fn health(&self) -> Result<(), ClientError> {
        // A refused connection is a valid result here, so there is no retry.
        let call = Call::new("/health", 5, Retry::Unsent);
        self.inner.http.get_once::<Health>(call).await.map(|_| ())
    }

    /// Returns the engine's status.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// use ajet_swarm::protocol::swarm::EngineStatus;
    ///
    /// let swarm = SwarmClient::new(url)?;
    /// let status = swarm.status().await?;
    /// assert_eq!((status.engine_status, status.global_step), (EngineStatus::Offline, 0));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn status(&self) -> Result<EngineStatusAnswer, ClientError> {
        let call = Call::new("/get_engine_status", 10, Retry::Idempotent);
        let status: EngineStatusAnswer = self.inner.http.get(call).await?;
        if status.engine_status != EngineStatus::Offline {
            self.inner.seen_up.store(true, Ordering::Relaxed);
        }
        Ok(status)
    }

    /// As [`SwarmClient::status`], but up to 0.2 s old, so that hundreds of waiting episodes share a request.
    async fn recent_status(&self) -> Result<EngineStatusAnswer, ClientError> {
        let mut last = self.inner.last_status.lock().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < STATUS_FRESH
        {
            return Ok(status.clone());
        }
        let status = self.status().await?;
        *last = Some((Instant::now(), status.clone()));
        Ok(status)
    }

    /// Returns the current batch: finished and running episodes, progress of the stop rule, active clients, and (from
    /// our servers) the metrics of the last update.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let pool = swarm.pool_information().await?;
    /// println!("{} of {} tasks are complete", pool.completed_tasks, pool.completed_task_target);
    /// # assert_eq!((pool.completed_tasks, pool.completed_task_target), (0, 1));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn pool_information(&self) -> Result<PoolInformation, ClientError> {
        let call = Call::new("/get_current_batch_rollout_pool_information", 10, Retry::Idempotent);
        self.inner.http.get(call).await
    }

    /// Returns the server's directory of checkpoints and metrics; `None` before the first start.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn experiment_dir(&self) -> Result<Option<String>, ClientError> {
        let call = Call::new("/get_server_experiment_dir", 10, Retry::Idempotent);
        let answer: ExperimentDirAnswer = self.inner.http.get(call).await?;
        Ok(answer.server_experiment_dir)
    }

    /// Lists the running episodes of all clients, without their keys.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn running_episodes(&self) -> Result<Vec<EpisodeStatus>, ClientError> {
        let call = Call::new("/get_episode_buffer", 10, Retry::Idempotent);
        let answer: EpisodeBufferAnswer = self.inner.http.post(call, &json!({})).await?;
        Ok(answer.buffer)
    }

    /// Returns the latest chat request of any agent with its answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] before the first one, [`ClientError::Unreachable`].
    pub async fn replay_latest_llm_call(&self) -> Result<ReplayLatestLlmCallAnswer, ClientError> {
        let call = Call::new("/replay_latest_llm_call", 10, Retry::Idempotent);
        self.inner.http.post(call, &json!({})).await
    }

    /// Returns the lines sent to the verbose log in the last 30 s, at most 50.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn verbose_logs(&self) -> Result<Vec<VerboseLog>, ClientError> {
        let call = Call::new("/get_verbose_logs", 10, Retry::Idempotent);
        let answer: VerboseLogsAnswer = self.inner.http.get(call).await?;
        Ok(answer.entries)
    }

    /// Sends a line to the server's verbose log, which `overwatch` shows.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// swarm.push_verbose_log("judge", "the answer is not a number").await?;
    /// let logs = swarm.verbose_logs().await?;
    /// assert_eq!(logs[0].message, "the answer is not a number");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn push_verbose_log(&self, tag: &str, message: &str) -> Result<(), ClientError> {
        let call = Call::new("/push_verbose_log", 10, Retry::Unsent);
        let body = json!({ "tag": tag, "message": message });
        self.inner.http.post::<serde_json::Value>(call, &body).await.map(|_| ())
    }

    /// Waits for the aborts of all dropped episodes. Call it before the program ends; the server discards episodes that
    /// were not aborted once they have been idle.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::{BeginEpisode, SwarmClient};
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    /// drop(episode); // as an error or a cancelled future does
    /// swarm.settle().await;
    /// assert!(swarm.running_episodes().await?.is_empty());
    /// # Ok(()) }) }
    /// ```
    pub async fn settle(&self) {
        self.inner.aborts.close();
        self.inner.aborts.wait().await;
        self.inner.aborts.reopen();
    }
}
