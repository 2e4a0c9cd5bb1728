//! [`SwarmClient`]: what a program needs to take part in a swarm: begin and end episodes, start and stop the engine.
//!
//! Every client is equal: any may start or stop the engine, any number may share one batch, and one that dies loses
//! only its own running episodes. Clones share their connections. All calls are cancel-safe: a future that is dropped
//! leaves nothing claimed.
//!
//! ```no_run
//! # async fn example() -> Result<(), ajet_swarm::client::ClientError> {
//! use ajet_swarm::client::{BeginEpisode, SwarmClient};
//! use ajet_swarm::protocol::openai::{ChatMessage, ChatRequest};
//! use ajet_swarm::protocol::swarm::WorkflowOutput;
//!
//! let swarm = SwarmClient::new("http://localhost:10086")?;
//! swarm.auto_sync_train_config_and_start_engine("ajet: {model: {path: 'builtin:tiny'}}", false, |_| {}).await?;
//!
//! let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
//! // Any OpenAI client does, in any language: give it `episode.base_url()` and `episode.api_key()`.
//! let request = ChatRequest {
//!     messages: vec![ChatMessage { role: "user".into(), content: "1 + 1 =".into(), ..ChatMessage::default() }],
//!     ..ChatRequest::default()
//! };
//! let answer = episode.model().chat(&request).await?;
//! let right = answer.choices[0].message.content == "2";
//! let output = WorkflowOutput { reward: f64::from(right).into(), ..WorkflowOutput::default() };
//! episode.end("task_1", output).await?;
//! # Ok(())
//! # }
//! ```

mod chat;
mod code;
mod engine;
mod episode;
mod error;
mod http;
pub mod throttle;
mod url;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::task::TaskTracker;

pub use chat::ModelApi;
pub use engine::Started;
pub use episode::{BeginEpisode, EndOutcome, Episode};
pub use error::ClientError;
pub use http::http_client;
pub use url::ServerUrl;

use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, ExperimentDirAnswer, Health, PoolInformation};
use http::{Call, Http, Retry};
use throttle::BegunTasks;

/// How long a status is taken for the present one where many wait for a change.
const STATUS_FRESH: Duration = Duration::from_millis(200);

/// A client of one swarm server.
#[derive(Clone, Debug)]
pub struct SwarmClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    http: Http,
    client_uuid: String,
    /// The engine was up once, so that OFFLINE means it went away, not that it has yet to come.
    seen_up: AtomicBool,
    begun: Mutex<BegunTasks>,
    last_status: tokio::sync::Mutex<Option<(Instant, EngineStatusAnswer)>>,
    /// Aborts of episodes that were dropped.
    aborts: TaskTracker,
}

impl SwarmClient {
    /// A client of the server at `url`: `http://host:port`, with `/t/TOKEN` after it where the server asks for a
    /// token. Does not connect yet.
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
                last_status: tokio::sync::Mutex::default(),
                aborts: TaskTracker::new(),
            }),
        })
    }

    /// Names this client to the server.
    pub fn client_uuid(&self) -> &str {
        &self.inner.client_uuid
    }

    /// The server.
    pub fn url(&self) -> &ServerUrl {
        &self.inner.http.url
    }

    /// Whether a swarm server answers at all.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after one try.
    pub async fn health(&self) -> Result<(), ClientError> {
        // A refused connection is the answer here, so it is asked for once.
        let call = Call::new("/health", 5, Retry::Unsent);
        self.inner.http.get_once::<Health>(call).await.map(|_| ())
    }

    /// Where the engine is.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several tries.
    pub async fn status(&self) -> Result<EngineStatusAnswer, ClientError> {
        let call = Call::new("/get_engine_status", 10, Retry::Idempotent);
        let status: EngineStatusAnswer = self.inner.http.get(call).await?;
        if status.engine_status != EngineStatus::Offline {
            self.inner.seen_up.store(true, Ordering::Relaxed);
        }
        Ok(status)
    }

    /// As [`SwarmClient::status`], at most 0.2 s old: hundreds of episodes that wait poll as one.
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

    /// The batch that is being filled: finished and running episodes, the stop rule's progress, active clients, and
    /// (from our servers) the last update's metrics.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several tries.
    pub async fn pool_information(&self) -> Result<PoolInformation, ClientError> {
        let call = Call::new("/get_current_batch_rollout_pool_information", 10, Retry::Idempotent);
        self.inner.http.get(call).await
    }

    /// Where checkpoints and metrics are on the server's machine; `None` before the first start.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several tries.
    pub async fn experiment_dir(&self) -> Result<Option<String>, ClientError> {
        let call = Call::new("/get_server_experiment_dir", 10, Retry::Idempotent);
        let answer: ExperimentDirAnswer = self.inner.http.get(call).await?;
        Ok(answer.server_experiment_dir)
    }

    /// Puts a line into the server's verbose log, which `overwatch` shows.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn push_verbose_log(&self, tag: &str, message: &str) -> Result<(), ClientError> {
        let call = Call::new("/push_verbose_log", 10, Retry::Unsent);
        let body = json!({ "tag": tag, "message": message });
        self.inner.http.post::<serde_json::Value>(call, &body).await.map(|_| ())
    }

    /// Waits for the aborts of all episodes that were dropped so far. Call it before the program ends; what was not
    /// aborted, the server discards when it has been idle.
    pub async fn settle(&self) {
        self.inner.aborts.close();
        self.inner.aborts.wait().await;
        self.inner.aborts.reopen();
    }
}
