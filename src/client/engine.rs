//! Starting and stopping the engine, and agreeing to an update.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;

use super::http::{Call, Retry, jitter};
use super::{ClientError, SwarmClient};
use crate::config::{Strictness, load};
use crate::protocol::swarm::{
    AgreeSyncWeightRequest, CompareTrainConfigAnswer, EngineStatus, EngineStatusAnswer, PoolInformation,
    SuccessOrReason, SyncTrainConfigRequest,
};

/// Answer to a control call. Python servers call the reason `error`, and some answer `null` on success.
#[derive(Deserialize)]
struct ControlAnswer {
    success: bool,
    #[serde(default, rename = "failure_reason", alias = "error")]
    reason: Option<String>,
}

/// Interval between status requests while an engine boots or updates its weights.
const POLL: Duration = Duration::from_millis(400);

/// Time for which a Python server may stay OFFLINE after it accepted a start.
const OFFLINE_AFTER_START: Duration = Duration::from_secs(10);

/// Outcome of [`SwarmClient::auto_sync_train_config_and_start_engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The configuration was sent and the engine started with it.
    Fresh,
    /// An engine was already running; it keeps its configuration.
    AlreadyUp,
}

impl SwarmClient {
    /// Sends the training configuration for the next start.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// let refused = swarm.sync_train_config("ajet: {model: {path: 'builtin:tiny'}, data: {train_batch_size: many}}").await;
    /// assert!(refused.unwrap_err().to_string().contains("ajet.data.train_batch_size"));
    /// swarm.sync_train_config(config).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's message if a key is invalid or the engine is not OFFLINE.
    pub async fn sync_train_config(&self, yaml: &str) -> Result<(), ClientError> {
        let call = Call::new("/sync_train_config", 30, Retry::Idempotent);
        let yaml_as_string = yaml.to_string();
        let request = SyncTrainConfigRequest { yaml_as_string };
        self.control(call, &request, "the configuration was not accepted").await
    }

    /// Compares a training configuration with the engine's or, while it is offline, with that of the last start of the
    /// experiment that it resumes; returns `None` if the server cannot compare, such as Python's.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's message if a key is invalid, [`ClientError::Unreachable`].
    pub async fn compare_train_config(&self, yaml: &str) -> Result<Option<CompareTrainConfigAnswer>, ClientError> {
        let call = Call::new("/compare_train_config", 30, Retry::Idempotent);
        let yaml_as_string = yaml.to_string();
        match self
            .inner
            .http
            .post(call, &SyncTrainConfigRequest { yaml_as_string })
            .await
        {
            Err(ClientError::Refused { status: 404 | 405, .. }) => Ok(None),
            compared => compared.map(Some),
        }
    }

    /// Sends a control call; `otherwise` is the reason if the server gives none.
    async fn control(&self, call: Call, request: &impl Serialize, otherwise: &str) -> Result<(), ClientError> {
        let answer: Option<ControlAnswer> = self.inner.http.post(call, request).await?;
        match answer {
            Some(ControlAnswer { success: false, reason }) => Err(ClientError::Refused {
                call: call.path,
                status: 200,
                detail: reason
                    .filter(|reason| !reason.is_empty())
                    .unwrap_or_else(|| otherwise.into()),
            }),
            _ => Ok(()),
        }
    }

    /// Starts the engine and waits until it is ROLLING; `observe` receives every status in between.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// swarm.sync_train_config(config).await?;
    /// swarm.start_engine(|status| println!("{}", status.engine_status)).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the server refuses to start one, [`ClientError::Boot`] with the engine's message if
    /// the boot fails.
    pub async fn start_engine(&self, mut observe: impl FnMut(&EngineStatusAnswer)) -> Result<(), ClientError> {
        let call = Call::new("/start_engine", 600, Retry::Unsent);
        self.control(call, &json!({}), "the engine was not started").await?;
        let started = Instant::now();
        let mut booting = false;
        loop {
            let status = self.status().await?;
            observe(&status);
            match status.engine_status {
                EngineStatus::Rolling => return Ok(()),
                // Only our servers report a reason, and they are BOOTING from the moment they accept a start.
                EngineStatus::Offline
                    if booting || status.engine_status_detail.is_some() || started.elapsed() > OFFLINE_AFTER_START =>
                {
                    self.inner.seen_up.store(false, Ordering::Relaxed);
                    return Err(ClientError::Boot {
                        detail: detail_of(&status),
                    });
                }
                EngineStatus::Offline => {}
                _ => booting = true,
            }
            sleep(jitter(POLL)).await;
        }
    }

    /// Stops the engine; a last checkpoint is written first. Succeeds if no engine runs.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// use ajet_swarm::protocol::swarm::EngineStatus;
    ///
    /// swarm.stop_engine().await?;
    /// assert_eq!(swarm.status().await?.engine_status, EngineStatus::Offline);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's message.
    pub async fn stop_engine(&self) -> Result<(), ClientError> {
        let call = Call::new("/stop_engine", 600, Retry::Idempotent);
        self.control(call, &json!({}), "the engine was not stopped").await?;
        self.inner.seen_up.store(false, Ordering::Relaxed);
        *self.inner.last_status.lock().await = None;
        *self.own_method() = None;
        Ok(())
    }

    /// Returns the wire name of the engine's collection method: that of the configuration with which this client
    /// started it, or else the server's. Until the first update, a Python server reports that of the previous run.
    pub fn collection_method(&self, pool: &PoolInformation) -> String {
        let own = self.own_method().clone();
        own.unwrap_or_else(|| pool.sample_collection_method.clone())
    }

    /// Not poisoned: the lock is only held for an assignment or a copy.
    fn own_method(&self) -> MutexGuard<'_, Option<String>> {
        self.inner.own_method.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the engine to ROLLING from any state: if OFFLINE, sends the configuration and starts the engine; if
    /// running, leaves it unchanged; if in transition, waits. `force_restart` stops it first.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// use ajet_swarm::client::Started;
    ///
    /// let first = swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let second = swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let forced = swarm.auto_sync_train_config_and_start_engine(config, true, |_| {}).await?;
    /// assert_eq!([first, second, forced], [Started::Fresh, Started::AlreadyUp, Started::Fresh]);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Those of [`SwarmClient::sync_train_config`], [`SwarmClient::start_engine`] and [`SwarmClient::stop_engine`].
    pub async fn auto_sync_train_config_and_start_engine(
        &self,
        yaml: &str,
        force_restart: bool,
        mut observe: impl FnMut(&EngineStatusAnswer),
    ) -> Result<Started, ClientError> {
        let mut status = self.status().await?.engine_status;
        if force_restart && status != EngineStatus::Offline {
            self.stop_engine().await?;
            status = EngineStatus::Offline;
        }
        match status {
            EngineStatus::Offline => match self.sync_and_start(yaml, &mut observe).await {
                // Another client was faster.
                Err(ClientError::Refused { .. }) if self.status().await?.engine_status != EngineStatus::Offline => {
                    self.wait_until_rolling(&mut observe).await?;
                    Ok(Started::AlreadyUp)
                }
                started => started.map(|()| Started::Fresh),
            },
            EngineStatus::Rolling | EngineStatus::RollingPost => Ok(Started::AlreadyUp),
            _ => {
                self.wait_until_rolling(&mut observe).await?;
                Ok(Started::AlreadyUp)
            }
        }
    }

    async fn sync_and_start(&self, yaml: &str, observe: impl FnMut(&EngineStatusAnswer)) -> Result<(), ClientError> {
        self.sync_train_config(yaml).await?;
        self.start_engine(observe).await?;
        *self.own_method() = collection_method_of(yaml);
        Ok(())
    }

    /// Waits until the engine is ROLLING; `observe` receives every status in between. Also waits while an engine that
    /// was never seen up is OFFLINE, since any client may start it.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// // Another client starts the engine meanwhile.
    /// # let other = SwarmClient::new(url)?;
    /// # let start = other.auto_sync_train_config_and_start_engine(config, false, |_| {});
    /// # let (started, status) = tokio::join!(start, swarm.wait_until_rolling(|_| {}));
    /// # started?;
    /// # assert_eq!(status?.global_step, 1);
    /// let status = swarm.wait_until_rolling(|status| println!("{}", status.engine_status)).await?;
    /// assert_eq!(status.global_step, 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::WentOffline`] if the engine was up before, [`ClientError::Unreachable`].
    pub async fn wait_until_rolling(
        &self,
        mut observe: impl FnMut(&EngineStatusAnswer),
    ) -> Result<EngineStatusAnswer, ClientError> {
        loop {
            let status = self.recent_status().await?;
            observe(&status);
            match status.engine_status {
                EngineStatus::Rolling => return Ok(status),
                EngineStatus::Offline if self.inner.seen_up.load(Ordering::Relaxed) => {
                    return Err(ClientError::WentOffline {
                        url: self.url().to_string(),
                        detail: detail_of(&status),
                    });
                }
                _ => sleep(jitter(POLL)).await,
            }
        }
    }

    /// Agrees to a weight update (under the two collection methods that ask clients), retrying until the server accepts
    /// it or has stopped rolling. Returns whether it was accepted.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// # let config = config.replace("finish_enough_tasks", "any_client_agree_sync_weight");
    /// swarm.auto_sync_train_config_and_start_engine(&config, false, |_| {}).await?;
    /// // After as many episodes as this client wants in the batch:
    /// # swarm.begin_episode(&ajet_swarm::client::BeginEpisode::default()).await?.abort().await?;
    /// assert!(swarm.agree_sync_weight().await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn agree_sync_weight(&self) -> Result<bool, ClientError> {
        let call = Call::new("/agree_sync_weight", 30, Retry::Idempotent);
        let client_uuid = self.client_uuid().to_string();
        let body = AgreeSyncWeightRequest { client_uuid };
        loop {
            let answer: SuccessOrReason = self.inner.http.post(call, &body).await?;
            if answer.success {
                return Ok(true);
            }
            tracing::debug!(
                "the server does not accept the agreement yet: {}",
                answer.failure_reason
            );
            if self.status().await?.engine_status != EngineStatus::Rolling {
                return Ok(false);
            }
            sleep(jitter(Duration::from_secs(2))).await;
        }
    }
}

fn collection_method_of(yaml: &str) -> Option<String> {
    let config = load(yaml, Strictness::Synced).ok()?;
    Some(config.ajet.swarm_mode_sample_collection_method.name().to_owned())
}

fn detail_of(status: &EngineStatusAnswer) -> String {
    let detail = status.engine_status_detail.clone().filter(|detail| !detail.is_empty());
    detail.unwrap_or_else(|| "the server gives no reason; see its log".into())
}
