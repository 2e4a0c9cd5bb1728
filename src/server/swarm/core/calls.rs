//! What clients and agents ask for, and what time alone changes.

use serde_json::Value;

use super::{Core, EndStep, HeldChange};
use crate::config::schema::CollectionMethod;
use crate::protocol::engine::{DropReason, EndEpisode, EndOutcome};
use crate::protocol::openai::ChatMessage;
use crate::protocol::swarm::{ClaimEpisodeAnswer, ClaimEpisodeRequest, EndEpisodeRequest, EngineStatus, EpisodeType};
use crate::server::http::error::Error;
use crate::server::model_api::responses::{Kept, resolve_references};
use crate::server::swarm::episode_outcome::checked_reward;
use crate::server::swarm::episodes::{Claim, EndCheck, Fate, KeyOwner};
use crate::server::swarm::state::{Event, State};

/// Seconds that an episode may wait for an LLM call: a year.
const LONGEST_DISCARD_TIMEOUT: f64 = 31_536_000.0;

/// Most bytes, about, of the responses that are kept for all episodes.
const KEPT_BYTES: usize = 256 * 1024 * 1024;

/// Longest id of a client or a task.
const ID_BYTES: usize = 1024;

impl Core {
    /// `claim_episode`; a refusal is an answer too, with the phrases that clients match on.
    ///
    /// # Errors
    ///
    /// A type other than `train` or `eval`, or a timeout that is not a positive number.
    pub fn claim(
        &mut self,
        request: ClaimEpisodeRequest,
        base_url: String,
        now: f64,
    ) -> Result<ClaimEpisodeAnswer, Error> {
        let kind = match request.episode_type.as_str() {
            "train" => EpisodeType::Train,
            "eval" => EpisodeType::Eval,
            other => {
                let sentence = format!("episode_type must be \"train\" or \"eval\", got {other:?}");
                return Err(Error::Invalid(sentence));
            }
        };
        check_id("client_uuid", &request.client_uuid)?;
        let task_id = request
            .throttle_policy
            .map(|policy| policy.current_task_id)
            .unwrap_or_default();
        check_id("throttle_policy.current_task_id", &task_id)?;
        let timeout = request.discard_episode_timeout;
        if !(timeout > 0.0 && timeout <= LONGEST_DISCARD_TIMEOUT) {
            let sentence = format!(
                "discard_episode_timeout must be more than 0 and at most {LONGEST_DISCARD_TIMEOUT} seconds, got {timeout}"
            );
            return Err(Error::Invalid(sentence));
        }
        let refused = |fail_cause: String| ClaimEpisodeAnswer {
            client_uuid: request.client_uuid.clone(),
            fail_cause,
            ..ClaimEpisodeAnswer::default()
        };
        if self.state != State::Rolling {
            return Ok(refused(self.not_ready()));
        }
        let slots = self.slots();
        let claim = Claim {
            client_uuid: request.client_uuid.clone(),
            kind,
            discard_timeout: timeout,
            task_id,
            global_step: self.global_step,
        };
        let Some(episode) = self.episodes.claim(claim, slots, now) else {
            let sentence = format!("No available episodes to claim. All {slots} slots are taken; try again shortly.");
            return Ok(refused(sentence));
        };
        self.clients.refresh(&episode.client_uuid, now);
        Ok(ClaimEpisodeAnswer {
            success: true,
            client_uuid: episode.client_uuid.clone(),
            episode_uuid: episode.uuid.clone(),
            openai_base_url: base_url,
            openai_api_key: episode.key.clone(),
            fail_cause: String::new(),
        })
    }

    /// `end_episode`, up to the point where the engine must be told.
    ///
    /// # Errors
    ///
    /// Where the wire protocol refuses an end; the episode is left as it was.
    pub fn begin_end(&mut self, request: EndEpisodeRequest, now: f64) -> Result<EndStep, Error> {
        let uuid = request.episode_uuid.clone();
        let check = self.episodes.check_end(&uuid, &request.client_uuid);
        if check == EndCheck::AlreadyEnded {
            self.clients.refresh(&request.client_uuid, now);
            return Ok(EndStep::AlreadyEnded);
        }
        if !self.state.episodes_run() {
            return Err(match self.is_started_again() {
                true => Error::StartedAgain,
                false => Error::NotRolling(self.where_it_is()),
            });
        }
        match check {
            EndCheck::NotFound => {
                return Err(match self.episodes.why_lost(&uuid) {
                    Some(why) => Error::EpisodeLost { uuid, why },
                    None => Error::EpisodeNotFound(uuid),
                });
            }
            EndCheck::Foreign => return Err(Error::ForeignEpisode(uuid)),
            EndCheck::Ending => return Ok(EndStep::Wait(Box::new(request))),
            EndCheck::Running | EndCheck::AlreadyEnded => {}
        }
        check_id("task_id", &request.task_id)?;
        let reward = checked_reward(&request)?;
        let Some(episode) = self.episodes.get(&uuid) else {
            return Err(Error::EpisodeNotFound(uuid));
        };
        let end = EndEpisode {
            episode_type: episode.kind,
            client_uuid: request.client_uuid,
            task_id: request.task_id,
            reward,
            is_success: request.workflow_output.is_success,
            claimed_at_step: episode.claimed_at_step,
            metadata: request.workflow_output.metadata,
            log_metrics: request.workflow_output.log_metrics,
        };
        self.episodes.set_ending(&uuid, true);
        Ok(EndStep::TellEngine(Box::new(end)))
    }

    /// Whether ROLLING is probably near, so that a claim is better held than refused.
    pub fn may_roll_soon(&self) -> bool {
        matches!(self.state, State::RollingPost | State::WeightSyncing) || self.is_started_again()
    }

    /// Status and detail, as clients print them that do not print the status.
    fn where_it_is(&self) -> String {
        let status = self.state.status();
        match self.status_detail() {
            Some(detail) => format!("[{status}]: {detail}"),
            None => format!("[{status}]."),
        }
    }

    /// Why nothing can be claimed. Clients match on the phrases.
    fn not_ready(&self) -> String {
        let status = self.state.status();
        let advice = match status {
            EngineStatus::Booting if self.is_started_again() => {
                "The engine crashed and is started again; wait as when Engine is syncing weights."
            }
            EngineStatus::WeightSyncing | EngineStatus::WeightExporting => {
                "Engine is syncing weights; try again when it is [ENGINE.ROLLING]."
            }
            EngineStatus::RollingPost => {
                "Engine is in post-rolling phase: the batch is full and its last episodes are ending; \
                 try again when it is [ENGINE.ROLLING]."
            }
            EngineStatus::Booting => "The engine is loading its model; try again when it is [ENGINE.ROLLING].",
            _ => "Start it with sync_train_config and start_engine.",
        };
        let detail = self
            .status_detail()
            .map_or_else(String::new, |detail| format!(" ({detail})"));
        format!("Engine not ready. Current status: [{status}]. {advice}{detail}")
    }

    /// Whether an engine boots in the place of one that crashed. Clients are to wait, as for a weight sync.
    fn is_started_again(&self) -> bool {
        self.state == State::Booting && self.crash.is_some()
    }

    /// The engine of this generation has the episode on disk. What one that is gone says about its batch is of the past.
    pub fn finish_end(&mut self, uuid: &str, generation: u64, declare_active: bool, outcome: EndOutcome, now: f64) {
        if generation != self.generation {
            return self.ended_by_past_engine(uuid, &outcome);
        }
        if let Some(episode) = self.episodes.remove(uuid, Fate::Ended, now) {
            if let Some(reason) = outcome.dropped {
                self.drop_episode(&episode, reason);
            }
            if episode.kind == EpisodeType::Train && declare_active {
                self.clients.enter(&episode.client_uuid, now);
            } else {
                self.clients.refresh(&episode.client_uuid, now);
            }
        }
        if self.collects(outcome.change.global_step) {
            self.pool.apply(outcome.change);
        }
        self.settle(now);
    }

    /// The answer of an engine that took an end right before it crashed or was stopped.
    fn ended_by_past_engine(&mut self, uuid: &str, outcome: &EndOutcome) {
        let crashed = self.was_ready && self.state == State::Booting;
        match crashed && outcome.change.added.is_some() {
            true => self.was_saved(uuid),
            false => drop(self.episodes.was_ended(uuid)),
        }
    }

    /// The engine did not take the end: the episode is claimed as before.
    pub fn end_failed(&mut self, uuid: &str) {
        self.episodes.set_ending(uuid, false);
    }

    /// `abort_episode`: the slot is free again, what the episode recorded is forgotten. Whoever asks: clients are equal,
    /// and one may clean up after another. What is not there to be aborted is as good as aborted.
    pub fn abort(&mut self, request: &EndEpisodeRequest, now: f64) {
        let uuid = &request.episode_uuid;
        // An end that is on its way wins over an abort.
        let running = self.episodes.get(uuid).is_some_and(|episode| !episode.is_ending());
        if !self.state.episodes_run() || !running {
            return;
        }
        self.lose(uuid, DropReason::Aborted, now);
        if request.declare_client_active && check_id("client_uuid", &request.client_uuid).is_ok() {
            self.clients.enter(&request.client_uuid, now);
        }
        self.settle(now);
    }

    /// `can_continue_episode`.
    pub fn can_continue(&self, uuid: &str, client_uuid: &str) -> bool {
        self.state.episodes_run() && self.episodes.check_end(uuid, client_uuid) == EndCheck::Running
    }

    /// Whether an episode is claimed, by anyone.
    pub fn is_claimed(&self, uuid: &str) -> bool {
        self.episodes.get(uuid).is_some()
    }

    /// An LLM request with this key begins. [`Self::finish_call`] must follow.
    ///
    /// # Errors
    ///
    /// The key is unknown, or its episode gone.
    pub fn begin_call(&mut self, key: &str, now: f64) -> Result<(String, EpisodeType), Error> {
        let uuid = match self.episodes.owner_of(key) {
            KeyOwner::Running(uuid) => uuid.to_owned(),
            KeyOwner::Gone => return Err(Error::EpisodeGone),
            KeyOwner::Unknown => return Err(Error::KeyUnknown),
        };
        let Some(episode) = self.episodes.begin_call(&uuid, now) else {
            return Err(Error::EpisodeGone);
        };
        self.clients.refresh(&episode.client_uuid, now);
        Ok((uuid, episode.kind))
    }

    /// The engine answers an LLM request, as opposed to refusing it.
    pub fn count_call(&mut self, uuid: &str) {
        self.episodes.count_call(uuid);
    }

    /// An LLM request is through, well or not.
    pub fn finish_call(&mut self, uuid: &str, now: f64) {
        self.episodes.finish_call(uuid, now);
        if let Some(episode) = self.episodes.get(uuid) {
            self.clients.refresh(&episode.client_uuid, now);
        }
    }

    /// Keeps an answer of the Responses API, as long as its episode runs.
    pub fn keep_response(&mut self, uuid: &str, response: Kept) {
        self.episodes.keep_response(uuid, response, KEPT_BYTES);
    }

    /// The conversation up to and with an answer that was kept.
    pub fn conversation(&self, uuid: &str, response: &str) -> Option<Vec<ChatMessage>> {
        self.episodes.get(uuid)?.kept_responses.conversation(response)
    }

    /// Puts items of the episode's kept answers in the place of references to them.
    ///
    /// # Errors
    ///
    /// A reference to no item.
    pub fn resolve_references(&self, uuid: &str, input: &mut Value) -> Result<(), Error> {
        let episode = self.episodes.get(uuid).ok_or(Error::EpisodeGone)?;
        resolve_references(input, &episode.kept_responses)
    }

    /// An answer that is kept for the episode of this key.
    ///
    /// # Errors
    ///
    /// The key opens nothing, or the answer is not known.
    pub fn kept_response(&self, key: &str, id: &str) -> Result<Value, Error> {
        self.check_key(key)?;
        let KeyOwner::Running(uuid) = self.episodes.owner_of(key) else {
            return Err(Error::EpisodeGone);
        };
        let kept = self
            .episodes
            .get(uuid)
            .and_then(|episode| episode.kept_responses.response(id));
        kept.ok_or_else(|| Error::NoSuchPath(format!("response `{id}`")))
    }

    /// Whether a key opens the model API at all.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn check_key(&self, key: &str) -> Result<(), Error> {
        match self.episodes.owner_of(key) {
            KeyOwner::Running(_) => Ok(()),
            KeyOwner::Gone => Err(Error::EpisodeGone),
            KeyOwner::Unknown => Err(Error::KeyUnknown),
        }
    }

    /// `agree_sync_weight`; `Err` holds the reason why the agreement does not count.
    ///
    /// # Errors
    ///
    /// Under another collection method, while not rolling, or from a client that is not active.
    pub fn agree(&mut self, client_uuid: &str, polls_slowly: bool, now: f64) -> Result<(), String> {
        let method = self.config().map(|config| config.swarm_mode_sample_collection_method);
        if self.state != State::Rolling {
            return Err(format!("Engine is not rolling. Current status: {}", self.where_it_is()));
        }
        let Some(
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
            | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight,
        ) = method
        else {
            let method = method.map_or("", CollectionMethod::name);
            return Err(format!("the batch ends by [{method}], not by agreement"));
        };
        if !self.clients.agree(client_uuid) {
            return Err("this client is not active; a client becomes active when it ends or aborts an episode".into());
        }
        self.slow_poller_agreed |= polls_slowly;
        self.settle(now);
        Ok(())
    }

    /// What time alone changes: idle episodes, clients that left, a post-rolling phase that takes too long, held
    /// changes of state. To be called at least every second.
    pub fn tick(&mut self, now: f64) {
        self.episodes.forget_old(now);
        self.clients.expire(now);
        for uuid in self.episodes.idle(now) {
            self.lose(&uuid, DropReason::Idle, now);
        }
        let timeout = self.config().map(|config| config.swarm_mode_rolling_post_timeout);
        if self.state == State::RollingPost && timeout.is_some_and(|timeout| now - self.post_since >= timeout) {
            for uuid in self.episodes.unended() {
                self.lose(&uuid, DropReason::Late, now);
            }
        }
        if let Some(held) = self.held.take_if(|held| now >= held.until) {
            match held.change {
                HeldChange::Offline => self.transition(Event::EngineGone, now),
                HeldChange::Rolling { global_step } => self.roll_on(global_step, now),
            }
        }
        self.settle(now);
    }
}

/// Ids are kept and listed, so they are not taken at any length.
fn check_id(name: &str, id: &str) -> Result<(), Error> {
    match id.len() <= ID_BYTES {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{name} has {} bytes, {ID_BYTES} are allowed",
            id.len()
        ))),
    }
}
