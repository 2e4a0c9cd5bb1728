//! Episodes from their claim to their end or abort, and the agreement of clients to end the batch.

use super::{Core, EndStep};
use crate::config::schema::CollectionMethod;
use crate::protocol::engine::{DropReason, EndEpisode, EndOutcome};
use crate::protocol::swarm::{ClaimEpisodeAnswer, ClaimEpisodeRequest, EndEpisodeRequest, EngineStatus, EpisodeType};
use crate::server::http::error::Error;
use crate::server::swarm::episode_outcome::checked_reward;
use crate::server::swarm::episodes::{Claim, EndCheck, Fate};
use crate::server::swarm::state::State;

/// Maximum discard timeout of an episode in seconds: a year.
const MAX_DISCARD_TIMEOUT: f64 = 31_536_000.0;

/// Maximum length of a client's or task's id, in bytes.
const ID_BYTES: usize = 1024;

impl Core {
    /// Implements `claim_episode`; a refusal is an answer too, with the phrases that clients match on.
    ///
    /// # Errors
    ///
    /// Fails for a type other than `train` or `eval`, or an invalid timeout.
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
        if !(timeout > 0.0 && timeout <= MAX_DISCARD_TIMEOUT) {
            let sentence = format!(
                "discard_episode_timeout must be more than 0 and at most {MAX_DISCARD_TIMEOUT} seconds, got {timeout}"
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

    /// Begins `end_episode`, up to the call of the engine.
    ///
    /// # Errors
    ///
    /// Fails where the wire protocol refuses an end; the episode is unchanged.
    pub fn begin_end(&mut self, request: EndEpisodeRequest, now: f64) -> Result<EndStep, Error> {
        let uuid = request.episode_uuid.clone();
        let check = self.episodes.check_end(&uuid, &request.client_uuid);
        if check == EndCheck::AlreadyEnded {
            self.clients.refresh(&request.client_uuid, now);
            return Ok(EndStep::AlreadyEnded);
        }
        if !self.state.episodes_run() {
            return Err(match self.is_restarting() {
                true => Error::EngineRestarting,
                false => Error::NotRolling(self.status_and_detail()),
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
        Ok(EndStep::CallEngine(Box::new(end)))
    }

    /// Returns whether ROLLING is probably near, so that a claim is held rather than refused.
    pub fn may_roll_soon(&self) -> bool {
        matches!(self.state, State::RollingPost | State::WeightSyncing) || self.is_restarting()
    }

    /// Returns status and detail, for clients that do not print the status.
    pub(super) fn status_and_detail(&self) -> String {
        let status = self.state.status();
        match self.status_detail() {
            Some(detail) => format!("[{status}]: {detail}"),
            None => format!("[{status}]."),
        }
    }

    /// Returns why no episode can be claimed. Clients match on the phrases.
    fn not_ready(&self) -> String {
        let status = self.state.status();
        let advice = match status {
            EngineStatus::Booting if self.is_restarting() => {
                "The engine is restarting after a crash; wait as when Engine is syncing weights."
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

    /// Returns whether a crashed engine is being restarted. Clients must wait, as for a weight sync.
    fn is_restarting(&self) -> bool {
        self.state == State::Booting && self.crash.is_some()
    }

    /// Completes an end when the engine of this generation has the episode on disk. A past engine's news of its batch
    /// is ignored.
    pub fn finish_end(&mut self, uuid: &str, generation: u64, declare_active: bool, outcome: EndOutcome, now: f64) {
        if generation != self.generation {
            return self.ended_by_past_engine(uuid, &outcome);
        }
        if let Some(episode) = self.episodes.remove(uuid, Fate::Ended, now) {
            self.note_end(&episode, now);
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

    /// Handles the answer of an engine that saved an episode right before it crashed or was stopped.
    fn ended_by_past_engine(&mut self, uuid: &str, outcome: &EndOutcome) {
        let crashed = self.was_ready && self.state == State::Booting;
        match crashed && outcome.change.added.is_some() {
            true => self.was_saved(uuid),
            false => drop(self.episodes.was_ended(uuid)),
        }
    }

    /// Handles a failed end: the episode is claimed as before.
    pub fn end_failed(&mut self, uuid: &str) {
        self.episodes.set_ending(uuid, false);
    }

    /// Implements `abort_episode`: frees the slot and deletes the episode's calls. Any client may abort, since clients
    /// may clean up after each other. Aborting an unknown episode succeeds.
    pub fn abort(&mut self, request: &EndEpisodeRequest, now: f64) {
        let uuid = &request.episode_uuid;
        // An end in progress wins over an abort.
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

    /// Implements `can_continue_episode`.
    pub fn can_continue(&self, uuid: &str, client_uuid: &str) -> bool {
        self.state.episodes_run() && self.episodes.check_end(uuid, client_uuid) == EndCheck::Running
    }

    /// Returns whether an episode is claimed, by any client.
    pub fn is_claimed(&self, uuid: &str) -> bool {
        self.episodes.get(uuid).is_some()
    }

    /// Implements `agree_sync_weight`; `Err` holds the reason why the agreement does not count.
    ///
    /// # Errors
    ///
    /// Fails under another collection method, while not rolling, or for an inactive client.
    pub fn agree(&mut self, client_uuid: &str, polls_slowly: bool, now: f64) -> Result<(), String> {
        let method = self.config().map(|config| config.swarm_mode_sample_collection_method);
        if self.state != State::Rolling {
            return Err(format!(
                "Engine is not rolling. Current status: {}",
                self.status_and_detail()
            ));
        }
        let Some(
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
            | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight,
        ) = method
        else {
            let method = method.map_or("", CollectionMethod::name);
            return Err(format!(
                "the collection method [{method}] ends a batch without agreement"
            ));
        };
        if !self.clients.agree(client_uuid) {
            return Err("this client is not active; a client becomes active when it ends or aborts an episode".into());
        }
        self.slow_poller_agreed |= polls_slowly;
        self.settle(now);
        Ok(())
    }
}

/// Checks the length of an id, since ids are stored and listed.
fn check_id(name: &str, id: &str) -> Result<(), Error> {
    match id.len() <= ID_BYTES {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{name} must have at most {ID_BYTES} bytes, got {}",
            id.len()
        ))),
    }
}
