//! Episodes: claim, use, end, abort.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::http::{Call, Retry, backoff, jitter};
use super::throttle::{self, BegunTasks};
use super::{ClientError, ModelApi, SwarmClient};
use crate::protocol::swarm::{
    CanContinueEpisodeAnswer, CanContinueEpisodeRequest, ClaimEpisodeAnswer, ClaimEpisodeRequest, EndEpisodeAnswer,
    EndEpisodeRequest, EpisodeType, ThrottlePolicy, WorkflowOutput,
};

/// Maximum lifetime of an episode in discard timeouts; ending it later aborts it.
const LIFETIME_IN_TIMEOUTS: f64 = 8.0;

/// Parameters of [`SwarmClient::begin_episode`].
#[derive(Clone, Debug)]
pub struct BeginEpisode {
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Maximum seconds without an LLM call; afterwards the server discards the episode.
    pub discard_episode_timeout: f64,
    /// Task id of the episode, shown to other clients; empty if not known yet.
    pub task_id: String,
    /// Policy that limits this client's share of a batch.
    pub throttle: Option<ThrottlePolicy>,
}

impl Default for BeginEpisode {
    fn default() -> Self {
        Self {
            episode_type: EpisodeType::Train,
            discard_episode_timeout: 240.0,
            task_id: String::new(),
            throttle: None,
        }
    }
}

/// Outcome of ending an episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOutcome {
    /// The server has saved it.
    Accepted,
    /// The server will not train it, for this reason: `no_llm_call` if the agent never called the model.
    Dropped(String),
    /// The server had lost it: it was idle for too long, the weights are being updated, or the engine restarted.
    Lost(String),
    /// It was older than eight discard timeouts and was aborted instead.
    Expired,
}

/// Outcome of a claim.
enum Claim {
    Claimed(Episode),
    NotRolling,
    NoSlot,
    /// Not sent: the client's share of the batch is used up.
    Throttled,
}

/// A claimed episode. If dropped before its end, it is aborted in the background (see [`SwarmClient::settle`]).
#[derive(Debug)]
pub struct Episode {
    swarm: SwarmClient,
    episode_uuid: String,
    model: ModelApi,
    claimed: Instant,
    lifetime: Duration,
    /// Whether nothing is left to abort.
    done: bool,
}

impl SwarmClient {
    /// Claims an episode. Waits without limit until the engine is ROLLING, the throttle allows the task and a slot is
    /// free.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::{BeginEpisode, SwarmClient};
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// use ajet_swarm::protocol::swarm::{EpisodeType, ThrottlePolicy};
    ///
    /// let eval = BeginEpisode { episode_type: EpisodeType::Eval, ..BeginEpisode::default() };
    /// let held_out = swarm.begin_episode(&eval).await?;
    /// # held_out.abort().await?;
    ///
    /// // One of two clients that share each batch; it takes at most half of the tasks.
    /// let policy = ThrottlePolicy {
    ///     ratio: 0.5,
    ///     expected_batch_size: 1,
    ///     expected_num_repeat: 2,
    ///     current_task_id: "task_1".into(),
    /// };
    /// let share = BeginEpisode { throttle: Some(policy), discard_episode_timeout: 60.0, ..BeginEpisode::default() };
    /// let episode = swarm.begin_episode(&share).await?;
    /// println!("OPENAI_BASE_URL={} OPENAI_API_KEY={}", episode.base_url(), episode.api_key());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::WentOffline`] if the engine goes offline meanwhile, [`ClientError::Throttle`] if the collection
    /// method does not support a throttle, [`ClientError::Claim`] for any other refusal.
    pub async fn begin_episode(&self, begin: &BeginEpisode) -> Result<Episode, ClientError> {
        let mut full = 0;
        loop {
            self.wait_until_rolling(|_| {}).await?;
            // Claimed in a separate task: if this future is dropped meanwhile, the episode arrives there, has no
            // receiver and aborts itself.
            let (swarm, wanted) = (self.clone(), begin.clone());
            let claim = self.inner.aborts.spawn(async move { swarm.claim_share(&wanted).await });
            match claim.await.map_err(|error| ClientError::Claim(error.to_string()))?? {
                Claim::Claimed(episode) => return Ok(episode),
                Claim::NotRolling => full = 0,
                Claim::NoSlot => full += 1,
                Claim::Throttled => {
                    sleep(jitter(Duration::from_secs(1))).await;
                    continue;
                }
            }
            sleep(backoff(full).min(Duration::from_secs(2))).await;
        }
    }

    /// Claims an episode, unless the throttle forbids it.
    async fn claim_share(&self, begin: &BeginEpisode) -> Result<Claim, ClientError> {
        let Some(policy) = &begin.throttle else {
            return self.claim(begin).await;
        };
        let _alone = self.inner.throttling.lock().await;
        if self.is_throttled(policy).await? {
            return Ok(Claim::Throttled);
        }
        let claim = self.claim(begin).await?;
        if matches!(claim, Claim::Claimed(_)) {
            self.begun().remember(&policy.current_task_id, policy);
        }
        Ok(claim)
    }

    async fn is_throttled(&self, policy: &ThrottlePolicy) -> Result<bool, ClientError> {
        let pool = self.pool_information().await?;
        let method = self.collection_method(&pool);
        if !method.is_empty() && method != throttle::METHOD {
            return Err(ClientError::Throttle(method));
        }
        Ok(throttle::must_wait(policy, self.client_uuid(), &pool, &self.begun()))
    }

    /// Not poisoned: nothing in `BegunTasks` panics.
    fn begun(&self) -> MutexGuard<'_, BegunTasks> {
        self.inner.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn claim(&self, begin: &BeginEpisode) -> Result<Claim, ClientError> {
        let episode_type = match begin.episode_type {
            EpisodeType::Train => "train",
            EpisodeType::Eval => "eval",
        };
        let request = ClaimEpisodeRequest {
            client_uuid: self.client_uuid().to_string(),
            episode_type: episode_type.into(),
            discard_episode_timeout: begin.discard_episode_timeout,
            throttle_policy: begin.throttle.clone().or_else(|| task_policy(&begin.task_id)),
        };
        // A claim whose answer is lost occupies a slot until the server discards it; giving up would cost the whole
        // run.
        let call = Call::new("/claim_episode", 30, Retry::Idempotent);
        let answer: ClaimEpisodeAnswer = self.inner.http.post(call, &request).await?;
        if answer.success {
            let base_url = self.url().rebase(&answer.openai_base_url);
            return Ok(Claim::Claimed(Episode {
                model: ModelApi::sharing(self.inner.http.client(), base_url, answer.openai_api_key),
                swarm: self.clone(),
                episode_uuid: answer.episode_uuid,
                claimed: Instant::now(),
                lifetime: Duration::try_from_secs_f64(begin.discard_episode_timeout * LIFETIME_IN_TIMEOUTS)
                    .unwrap_or(Duration::MAX),
                done: false,
            }));
        }
        match answer.fail_cause {
            cause if cause.contains("No available episodes to claim") => Ok(Claim::NoSlot),
            cause if cause.contains("Engine not ready") => Ok(Claim::NotRolling),
            cause if cause.contains("syncing weights") || cause.contains("post-rolling") => Ok(Claim::NotRolling),
            cause => Err(ClientError::Claim(cause)),
        }
    }

    /// Sends an end or an abort, which have the same body. Returns why it will not be trained, if the server says so.
    async fn close(&self, path: &'static str, request: EndEpisodeRequest) -> Result<Option<String>, ClientError> {
        let call = Call::new(path, 30, Retry::Idempotent);
        let answer: EndEpisodeAnswer = self.inner.http.post(call, &request).await?;
        match answer.success {
            true => Ok(answer.dropped),
            false => Err(ClientError::Refused {
                call: path,
                status: 200,
                detail: format!("episode {} was not closed", request.episode_uuid),
            }),
        }
    }

    /// Aborts an episode by id, possibly of another client, such as a hanging one. Succeeds if it does not exist or can
    /// no longer be aborted.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn abort_episode(&self, episode_uuid: &str) -> Result<(), ClientError> {
        let request = EndEpisodeRequest {
            client_uuid: self.client_uuid().to_string(),
            episode_uuid: episode_uuid.to_string(),
            workflow_output: WorkflowOutput {
                // Python's model of this body requires a number even though it is ignored.
                reward: 0.0.into(),
                ..WorkflowOutput::default()
            },
            task_id: String::new(),
            declare_client_active: true,
        };
        self.close("/abort_episode", request).await.map(drop)
    }
}

/// Returns the throttle policy that carries a claim's task id, as the protocol requires; servers do not enforce it.
fn task_policy(task_id: &str) -> Option<ThrottlePolicy> {
    (!task_id.is_empty()).then(|| ThrottlePolicy {
        ratio: 1.0,
        expected_batch_size: 1,
        expected_num_repeat: 1,
        current_task_id: task_id.to_owned(),
    })
}

impl Episode {
    /// Returns the episode's id.
    pub fn uuid(&self) -> &str {
        &self.episode_uuid
    }

    /// Returns the model API of this episode.
    pub fn model(&self) -> &ModelApi {
        &self.model
    }

    /// Returns the base URL for any OpenAI client.
    pub fn base_url(&self) -> &str {
        self.model.base_url()
    }

    /// Returns the API key for any OpenAI client.
    pub fn api_key(&self) -> &str {
        self.model.api_key()
    }

    /// Returns whether the episode still belongs to this client and the engine is still rolling.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::{BeginEpisode, SwarmClient};
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    /// assert!(episode.can_continue().await?);
    /// swarm.stop_engine().await?;
    /// assert!(!episode.can_continue().await?, "an agent with many turns ahead can stop now");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several attempts.
    pub async fn can_continue(&self) -> Result<bool, ClientError> {
        let call = Call::new("/can_continue_episode", 10, Retry::Idempotent);
        let request = CanContinueEpisodeRequest {
            client_uuid: self.swarm.client_uuid().to_string(),
            episode_uuid: self.episode_uuid.clone(),
        };
        let answer: CanContinueEpisodeAnswer = self.swarm.inner.http.post(call, &request).await?;
        Ok(answer.can_continue)
    }

    /// Ends the episode with its reward. `task_id` groups the episodes of a task and is also put into the metadata.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::{BeginEpisode, SwarmClient};
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// use ajet_swarm::client::EndOutcome;
    /// use ajet_swarm::protocol::swarm::WorkflowOutput;
    ///
    /// let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    /// # episode.model().chat(&serde_json::from_str(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap()).await?;
    /// // … the agent runs …
    /// let output = WorkflowOutput { reward: 0.5.into(), is_success: Some(true), ..WorkflowOutput::default() };
    /// assert_eq!(episode.end("task_1", output).await?, EndOutcome::Accepted);
    /// # assert_eq!(swarm.pool_information().await?.completed_tasks_rewards["task_1"], [0.5]);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the server rejects the output (such as a reward that is not a finite number), in
    /// which case the episode is aborted; [`ClientError::Unreachable`].
    pub async fn end(mut self, task_id: &str, mut output: WorkflowOutput) -> Result<EndOutcome, ClientError> {
        if self.claimed.elapsed() > self.lifetime {
            tracing::warn!(
                "aborting episode {}, which took {:.0} s, more than eight discard timeouts",
                self.episode_uuid,
                self.claimed.elapsed().as_secs_f64()
            );
            self.abort().await?;
            return Ok(EndOutcome::Expired);
        }
        output.metadata.insert("task_id".into(), task_id.into());
        let request = EndEpisodeRequest {
            client_uuid: self.swarm.client_uuid().to_string(),
            episode_uuid: self.episode_uuid.clone(),
            workflow_output: output,
            task_id: task_id.to_string(),
            declare_client_active: true,
        };
        let ended = self.swarm.close("/end_episode", request).await;
        let outcome = match ended {
            Ok(None) => EndOutcome::Accepted,
            Ok(Some(reason)) => EndOutcome::Dropped(reason),
            Err(ClientError::Refused { detail, .. }) if is_gone(&detail) => EndOutcome::Lost(detail),
            Err(error) => return Err(error),
        };
        self.done = true;
        Ok(outcome)
    }

    /// Aborts the episode: it is not trained on and its slot is free again.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { example(async |url, config| {
    /// # use ajet_swarm::client::{BeginEpisode, SwarmClient};
    /// # let swarm = SwarmClient::new(url)?;
    /// # swarm.auto_sync_train_config_and_start_engine(config, false, |_| {}).await?;
    /// let episode = swarm.begin_episode(&BeginEpisode::default()).await?;
    /// episode.abort().await?;
    /// assert_eq!(swarm.pool_information().await?.dropped_episodes["aborted"], 1);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn abort(mut self) -> Result<(), ClientError> {
        let aborted = self.swarm.abort_episode(&self.episode_uuid).await;
        self.done = true;
        aborted
    }
}

impl Drop for Episode {
    fn drop(&mut self) {
        // Without a runtime, no request can be sent; the server then discards the episode when it has been idle.
        let (false, Ok(runtime)) = (self.done, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (swarm, episode_uuid) = (self.swarm.clone(), std::mem::take(&mut self.episode_uuid));
        let abort = async move {
            if let Err(error) = swarm.abort_episode(&episode_uuid).await {
                tracing::debug!("cannot abort the dropped episode {episode_uuid}: {error}");
            }
        };
        self.swarm.inner.aborts.spawn_on(abort, &runtime);
    }
}

/// Returns whether a refused end means that the server no longer knows the episode, as opposed to an invalid output.
fn is_gone(detail: &str) -> bool {
    [
        "WEIGHT_SYNCING",
        "not found",
        "not rolling",
        "not in claimed",
        "Engine is",
    ]
    .iter()
    .any(|phrase| detail.to_lowercase().contains(&phrase.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_episode_is_told_from_a_wrong_output() {
        for (detail, gone) in [
            ("Engine is in state ENGINE.WEIGHT_SYNCING", true),
            ("Episode 0a1b not found.", true),
            ("Engine is not rolling.", true),
            ("the reward is NaN, but it must be a finite number", false),
            ("workflow_output.metadata.task_id is 'a', but task_id is 'b'", false),
        ] {
            assert_eq!(is_gone(detail), gone, "{detail}");
        }
    }
}
