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

/// What became of a call. Python servers name the reason `error`, and some answer `null` where all went well.
#[derive(Deserialize)]
struct Steered {
    success: bool,
    #[serde(default, rename = "failure_reason", alias = "error")]
    reason: Option<String>,
}

/// Between two looks at the status of an engine that boots or updates its weights.
const POLL: Duration = Duration::from_millis(400);

/// A Python server stays OFFLINE for a moment after it accepted a start.
const OFFLINE_AFTER_START: Duration = Duration::from_secs(10);

/// What [`SwarmClient::auto_sync_train_config_and_start_engine`] found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The configuration was sent and the engine started with it.
    Fresh,
    /// An engine was up already; it goes on with the configuration it has.
    AlreadyUp,
}

impl SwarmClient {
    /// Sends the training configuration that the next start takes.
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
    /// [`ClientError::Refused`] with the server's words where a key is wrong or the engine is not OFFLINE.
    pub async fn sync_train_config(&self, yaml: &str) -> Result<(), ClientError> {
        let call = Call::new("/sync_train_config", 30, Retry::Idempotent);
        let yaml_as_string = yaml.to_string();
        let request = SyncTrainConfigRequest { yaml_as_string };
        self.steer(call, &request, "the configuration was not taken").await
    }

    /// How a training configuration differs from the engine's or, while it is offline, from the last start of the
    /// experiment that it continues; `None` from a server that does not tell, such as Python's.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the server's words where a key is wrong, [`ClientError::Unreachable`].
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

    /// A call that the server does or does not do; `otherwise` is the reason where it gives none.
    async fn steer(&self, call: Call, request: &impl Serialize, otherwise: &str) -> Result<(), ClientError> {
        let answer: Option<Steered> = self.inner.http.post(call, request).await?;
        match answer {
            Some(Steered { success: false, reason }) => Err(ClientError::Refused {
                call: call.path,
                status: 200,
                detail: reason
                    .filter(|reason| !reason.is_empty())
                    .unwrap_or_else(|| otherwise.into()),
            }),
            _ => Ok(()),
        }
    }

    /// Starts the engine and waits until it is ROLLING; `observe` sees every status on the way.
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
    /// [`ClientError::Refused`] where the server will not start one, [`ClientError::Boot`] with the engine's own words
    /// where it does not come up.
    pub async fn start_engine(&self, mut observe: impl FnMut(&EngineStatusAnswer)) -> Result<(), ClientError> {
        let call = Call::new("/start_engine", 600, Retry::Unsent);
        self.steer(call, &json!({}), "the engine was not started").await?;
        let started = Instant::now();
        let mut booting = false;
        loop {
            let status = self.status().await?;
            observe(&status);
            match status.engine_status {
                EngineStatus::Rolling => return Ok(()),
                // A reason is only given by our servers, which are BOOTING from the moment they accept a start.
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

    /// Stops the engine; a last checkpoint is written first. No error where none runs.
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
    /// [`ClientError::Refused`] with the server's words.
    pub async fn stop_engine(&self) -> Result<(), ClientError> {
        let call = Call::new("/stop_engine", 600, Retry::Idempotent);
        self.steer(call, &json!({}), "the engine was not stopped").await?;
        self.inner.seen_up.store(false, Ordering::Relaxed);
        *self.inner.last_status.lock().await = None;
        *self.own_method() = None;
        Ok(())
    }

    /// Wire name of the stop rule by which the engine collects its batches: that of the configuration which this client
    /// started it with, or else what the server tells. A Python server tells the last run's until the first update.
    pub fn collection_method(&self, pool: &PoolInformation) -> String {
        let own = self.own_method().clone();
        own.unwrap_or_else(|| pool.sample_collection_method.clone())
    }

    /// The lock is only held for an assignment or a copy, so it is not poisoned.
    fn own_method(&self) -> MutexGuard<'_, Option<String>> {
        self.inner.own_method.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the engine to ROLLING whatever state it is in: OFFLINE, the configuration is sent and the engine
    /// started; up already, it is left as it is; on its way, it is waited for. `force_restart` stops it first.
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
            EngineStatus::Offline => {
                self.sync_train_config(yaml).await?;
                self.start_engine(observe).await?;
                *self.own_method() = collection_method_of(yaml);
                Ok(Started::Fresh)
            }
            EngineStatus::Rolling | EngineStatus::RollingPost => Ok(Started::AlreadyUp),
            _ => {
                self.wait_until_rolling(&mut observe).await?;
                Ok(Started::AlreadyUp)
            }
        }
    }

    /// Waits until the engine is ROLLING; `observe` sees every status on the way. An engine that is OFFLINE and has
    /// never been seen otherwise is waited for too, since any client may start it.
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
    /// [`ClientError::WentOffline`] where the engine was up before, [`ClientError::Unreachable`].
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

    /// Agrees to a weight update (under the two collection methods that ask clients), again and again until the
    /// server accepts it or has stopped rolling. Returns whether it was accepted.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::SwarmClient;
    /// # let swarm = SwarmClient::new(url)?;
    /// # let config = config.replace("finish_enough_tasks", "any_client_agree_sync_weight");
    /// swarm.auto_sync_train_config_and_start_engine(&config, false, |_| {}).await?;
    /// // As many episodes as this client wants in the batch.
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
            tracing::debug!("the server does not take the agreement yet: {}", answer.failure_reason);
            if self.status().await?.engine_status != EngineStatus::Rolling {
                return Ok(false);
            }
            sleep(jitter(Duration::from_secs(2))).await;
        }
    }
}

fn collection_method_of(yaml: &str) -> Option<String> {
    let config = load(yaml, Strictness::Synced).ok()?;
    let method = serde_json::to_value(config.ajet.swarm_mode_sample_collection_method).ok()?;
    method.as_str().map(str::to_owned)
}

fn detail_of(status: &EngineStatusAnswer) -> String {
    let detail = status.engine_status_detail.clone().filter(|detail| !detail.is_empty());
    detail.unwrap_or_else(|| "the server gives no reason; its log tells more".into())
}
