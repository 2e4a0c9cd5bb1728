//! An episode's life: claimed, used, ended or aborted.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::http::{Call, Retry, backoff, jitter};
use super::throttle::{self, BegunTasks};
use super::{ClientError, ModelApi, SwarmClient};
use crate::protocol::swarm::{
    CanContinueEpisodeAnswer, CanContinueEpisodeRequest, ClaimEpisodeAnswer, ClaimEpisodeRequest, EndEpisodeRequest,
    EpisodeType, SuccessAnswer, ThrottlePolicy, WorkflowOutput,
};

/// An episode may live this many discard timeouts, whatever it does; ending it later aborts it.
const LIFETIME_IN_TIMEOUTS: f64 = 8.0;

/// What [`SwarmClient::begin_episode`] is asked for.
#[derive(Clone, Debug)]
pub struct BeginEpisode {
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Seconds without an LLM call after which the server discards the episode.
    pub discard_episode_timeout: f64,
    /// The episode's task, told to other clients; empty where it is not known yet.
    pub task_id: String,
    /// Keeps this client's share of a batch.
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

/// What became of an episode that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOutcome {
    /// The server has it.
    Accepted,
    /// The server had given it up by then: it was idle too long, or the engine updates its weights or was restarted.
    Lost(String),
    /// It was older than eight discard timeouts, so it was aborted instead.
    Expired,
}

/// What the server made of a claim.
enum Claim {
    Claimed(Episode),
    NotRolling,
    NoSlot,
    /// Not made: the client's share of the batch is used up.
    Throttled,
}

/// A claimed episode. Dropped before it ended, it is aborted in the background (see [`SwarmClient::settle`]).
#[derive(Debug)]
pub struct Episode {
    swarm: SwarmClient,
    episode_uuid: String,
    model: ModelApi,
    claimed: Instant,
    lifetime: Duration,
    /// Nothing is left to abort.
    done: bool,
}

impl SwarmClient {
    /// Claims an episode, waiting for as long as it takes: until the engine is ROLLING, the throttle allows the task
    /// and a slot is free.
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
    /// // One of two clients that share each batch: at most half of its tasks are this one's.
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
    /// [`ClientError::WentOffline`] where the engine goes away meanwhile, [`ClientError::Throttle`] where the
    /// collection method does not go with the throttle, [`ClientError::Claim`] for any other refusal.
    pub async fn begin_episode(&self, begin: &BeginEpisode) -> Result<Episode, ClientError> {
        let mut full = 0;
        loop {
            self.wait_until_rolling(|_| {}).await?;
            // Claimed in a task of its own: if this future is dropped meanwhile, the episode arrives there, finds
            // nobody and aborts itself.
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

    /// A claim, unless the throttle is against it.
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

    /// The lock is only poisoned by a panic while it is held, and nothing in `BegunTasks` panics.
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
            throttle_policy: begin.throttle.clone().or_else(|| told_task(&begin.task_id)),
        };
        // A claim whose answer is lost leaves a slot taken until the server discards it; giving up would cost the run.
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

    /// The body is the same for an end and an abort.
    async fn close(&self, path: &'static str, request: EndEpisodeRequest) -> Result<(), ClientError> {
        let call = Call::new(path, 30, Retry::Idempotent);
        let answer: SuccessAnswer = self.inner.http.post(call, &request).await?;
        match answer.success {
            true => Ok(()),
            false => Err(ClientError::Refused {
                call: path,
                status: 200,
                detail: format!("episode {} was not closed", request.episode_uuid),
            }),
        }
    }

    /// Gives up an episode by its id, which may be another client's: one that hangs, say. What is not there, or cannot
    /// be given up any more, is no error.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`].
    pub async fn abort_episode(&self, episode_uuid: &str) -> Result<(), ClientError> {
        let request = EndEpisodeRequest {
            client_uuid: self.client_uuid().to_string(),
            episode_uuid: episode_uuid.to_string(),
            workflow_output: WorkflowOutput {
                // Python's model of this body wants a number even where it is not looked at.
                reward: 0.0.into(),
                ..WorkflowOutput::default()
            },
            task_id: String::new(),
            declare_client_active: true,
        };
        self.close("/abort_episode", request).await
    }
}

/// The protocol has a claim's task in the throttle policy only; a server does not enforce that.
fn told_task(task_id: &str) -> Option<ThrottlePolicy> {
    (!task_id.is_empty()).then(|| ThrottlePolicy {
        ratio: 1.0,
        expected_batch_size: 1,
        expected_num_repeat: 1,
        current_task_id: task_id.to_owned(),
    })
}

impl Episode {
    /// Names the episode.
    pub fn uuid(&self) -> &str {
        &self.episode_uuid
    }

    /// The model API for this episode.
    pub fn model(&self) -> &ModelApi {
        &self.model
    }

    /// For any OpenAI client: its base URL.
    pub fn base_url(&self) -> &str {
        self.model.base_url()
    }

    /// For any OpenAI client: its key.
    pub fn api_key(&self) -> &str {
        self.model.api_key()
    }

    /// Whether going on makes sense: the episode is still ours and the engine still rolls.
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
    /// assert!(!episode.can_continue().await?, "an agent with many turns ahead can give up now");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] after several tries.
    pub async fn can_continue(&self) -> Result<bool, ClientError> {
        let call = Call::new("/can_continue_episode", 10, Retry::Idempotent);
        let request = CanContinueEpisodeRequest {
            client_uuid: self.swarm.client_uuid().to_string(),
            episode_uuid: self.episode_uuid.clone(),
        };
        let answer: CanContinueEpisodeAnswer = self.swarm.inner.http.post(call, &request).await?;
        Ok(answer.can_continue)
    }

    /// Reports the episode's reward. `task_id` groups the episodes of one task and goes into the metadata too.
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
    /// [`ClientError::Refused`] where the server does not take the output (a reward that is no finite number), in
    /// which case the episode is aborted; [`ClientError::Unreachable`].
    pub async fn end(mut self, task_id: &str, mut output: WorkflowOutput) -> Result<EndOutcome, ClientError> {
        if self.claimed.elapsed() > self.lifetime {
            tracing::warn!(
                "episode {} took {:.0} s, more than eight discard timeouts, and is aborted",
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
            Ok(()) => EndOutcome::Accepted,
            Err(ClientError::Refused { detail, .. }) if is_gone(&detail) => EndOutcome::Lost(detail),
            Err(error) => return Err(error),
        };
        self.done = true;
        Ok(outcome)
    }

    /// Gives the episode up: nothing of it is trained on and its slot is free again.
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
        // Without a runtime nobody can be told; the server then discards the episode when it has been idle.
        let (false, Ok(runtime)) = (self.done, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (swarm, episode_uuid) = (self.swarm.clone(), std::mem::take(&mut self.episode_uuid));
        let abort = async move {
            if let Err(error) = swarm.abort_episode(&episode_uuid).await {
                tracing::debug!("episode {episode_uuid} was dropped and could not be aborted: {error}");
            }
        };
        self.swarm.inner.aborts.spawn_on(abort, &runtime);
    }
}

/// Whether a refused end means that the server no longer knows the episode, as opposed to a wrong output.
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
