//! Every rule of the control plane in one place, without I/O: calls and engine events go in with the time, answers and
//! [`Effect`]s come out. The server holds it in a mutex and carries the effects out.

use indexmap::IndexMap;

use super::clients::ActiveClients;
use super::episodes::{Claim, EndCheck, Fate, KeyOwner, Registry};
use super::error::Error;
use super::pool_info;
use super::state::{Event, State};
use super::workflow_output::checked_reward;
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{DropReason, EndEpisode, EndOutcome, EngineEvent, EnginePhase, Hello, PoolSnapshot};
use crate::protocol::swarm::{
    ClaimEpisodeAnswer, ClaimEpisodeRequest, EndEpisodeRequest, EngineStatus, EngineStatusAnswer, EpisodeStatus,
    EpisodeType, PoolInformation,
};

/// Times that a crashed engine is started again before an update succeeds.
const RESTARTS: u32 = 3;

/// A call to the engine that a decision asks for. Effects are carried out in their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// `POST /episodes/{id}/forget`.
    Forget {
        /// The episode.
        uuid: String,
        /// Why.
        reason: DropReason,
    },
    /// `POST /agree`.
    Agree,
    /// `POST /update`.
    Update,
}

/// What `end_episode` leads to.
#[derive(Debug)]
pub enum EndStep {
    /// The client has ended it before: nothing to do.
    AlreadyEnded,
    /// The same end is on its way; ask again when it is through.
    Wait,
    /// Tell the engine, then [`Core::finish_end`] or [`Core::end_failed`].
    TellEngine(Box<EndEpisode>),
}

/// What the end of an engine process leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum AfterEngine {
    /// Start it again.
    Restart,
    /// It is over.
    Over,
}

/// A training configuration as it was synced.
#[derive(Clone, Debug)]
pub struct SyncedConfig {
    /// Parsed and checked.
    pub ajet: Ajet,
    /// What its author should know, such as unknown keys.
    pub notice: Option<String>,
}

/// A change of state that slow pollers must have time to see coming.
#[derive(Debug)]
struct Held {
    until: f64,
    change: HeldChange,
}

#[derive(Debug)]
enum HeldChange {
    Offline,
    Rolling { global_step: u64 },
}

/// State of the control plane.
#[derive(Debug)]
pub struct Core {
    state: State,
    detail: Option<String>,
    global_step: u64,
    synced: Option<SyncedConfig>,
    running: Option<SyncedConfig>,
    experiment_dir: Option<String>,
    /// Counts engine processes, so that news from one that was replaced is told apart.
    generation: u64,
    /// Whether the present engine was ever ready.
    was_ready: bool,
    restarts: u32,
    booting_since: Option<f64>,
    post_since: f64,
    held: Option<Held>,
    /// Seconds for which states stay visible to clients that poll slowly.
    slow_poll: f64,
    /// A client that polls slowly agreed to the end of this batch.
    slow_poller_agreed: bool,
    pool: PoolSnapshot,
    episodes: Registry,
    clients: ActiveClients,
    dropped: IndexMap<String, u64>,
    latest_metrics: IndexMap<String, f64>,
    effects: Vec<Effect>,
}

impl Core {
    /// Offline, with `slow_poll` seconds of patience for clients that poll a cached status.
    pub fn new(slow_poll: f64) -> Self {
        Self {
            state: State::Offline,
            detail: None,
            global_step: 0,
            synced: None,
            running: None,
            experiment_dir: None,
            generation: 0,
            was_ready: false,
            restarts: 0,
            booting_since: None,
            post_since: 0.0,
            held: None,
            slow_poll,
            slow_poller_agreed: false,
            pool: PoolSnapshot::default(),
            episodes: Registry::default(),
            clients: ActiveClients::default(),
            dropped: IndexMap::new(),
            latest_metrics: IndexMap::new(),
            effects: Vec::new(),
        }
    }

    /// What the engine is to be told, oldest first.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    // ---- configuration and life of the engine ----

    /// Keeps a configuration for the next start, or forgets the earlier one where the new one is wrong.
    ///
    /// # Errors
    ///
    /// Unless offline; or what is wrong with the configuration.
    pub fn sync_config(&mut self, config: Result<SyncedConfig, String>) -> Result<(), Error> {
        self.require_offline()?;
        let config = config.map_err(Error::Config);
        self.synced = config.as_ref().ok().cloned();
        config.map(|_| ())
    }

    /// The configuration that `start_engine` would start with.
    ///
    /// # Errors
    ///
    /// Unless offline; or none was synced.
    pub fn config_to_start(&self) -> Result<&SyncedConfig, Error> {
        self.require_offline()?;
        self.synced.as_ref().ok_or(Error::NoConfig)
    }

    /// `start_engine`: BOOTING. Returns the new engine's generation.
    ///
    /// # Errors
    ///
    /// As [`Self::config_to_start`].
    pub fn start(&mut self, experiment_dir: String, now: f64) -> Result<u64, Error> {
        self.running = Some(self.config_to_start()?.clone());
        self.experiment_dir = Some(experiment_dir);
        self.restarts = 0;
        self.dropped.clear();
        self.latest_metrics.clear();
        self.detail = Some("starting the engine".into());
        self.transition(Event::StartAccepted, now);
        Ok(self.generation)
    }

    /// `stop_engine`, or the server ends: OFFLINE. News of the engine that is being stopped is ignored from here on.
    pub fn stop(&mut self, detail: Option<String>, now: f64) {
        self.generation += 1;
        self.lose_episodes(DropReason::Late, now);
        self.detail = detail;
        self.transition(Event::EngineGone, now);
    }

    /// An engine process ended, for `reason`.
    pub fn engine_ended(&mut self, generation: u64, reason: &str, now: f64) -> AfterEngine {
        if generation != self.generation {
            return AfterEngine::Over;
        }
        self.lose_episodes(DropReason::EngineLost, now);
        let may_restart = self.config().is_some_and(|config| config.engine.restart_on_crash);
        if self.was_ready && may_restart && self.restarts < RESTARTS {
            self.restarts += 1;
            self.detail = Some(format!("{reason}; starting it again ({} of {RESTARTS})", self.restarts));
            self.transition(Event::EngineRestarts, now);
            return AfterEngine::Restart;
        }
        self.detail = Some(reason.to_owned());
        match self.booting_since {
            Some(since) if self.state == State::Booting && now < since + self.slow_poll => {
                self.held = Some(Held {
                    until: since + self.slow_poll,
                    change: HeldChange::Offline,
                });
            }
            _ => self.transition(Event::EngineGone, now),
        }
        AfterEngine::Over
    }

    /// The number of the present engine process.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether an engine of this generation still boots.
    pub fn boots(&self, generation: u64) -> bool {
        generation == self.generation && self.state == State::Booting
    }

    /// The engine serves: ROLLING, with the batch it resumed.
    pub fn engine_ready(&mut self, generation: u64, hello: Hello, now: f64) {
        if !self.boots(generation) {
            return;
        }
        self.was_ready = true;
        self.global_step = hello.global_step.max(1);
        self.pool = hello.pool;
        self.detail = None;
        self.transition(Event::EngineReady, now);
        self.settle(now);
    }

    /// A line of the engine's event stream.
    pub fn engine_event(&mut self, generation: u64, event: EngineEvent, now: f64) {
        if generation != self.generation {
            return;
        }
        match event {
            EngineEvent::Status {
                phase,
                detail,
                global_step,
            } => self.engine_status(phase, detail, global_step, now),
            EngineEvent::Pool { pool } => self.take_pool(pool),
            EngineEvent::Metrics { metrics, .. } => self.latest_metrics = metrics,
            // Aborts, discards and ends without a call are counted where they are decided.
            EngineEvent::Dropped { reason, count }
                if matches!(
                    reason,
                    DropReason::Dummy | DropReason::OverCache | DropReason::Truncated | DropReason::NonFinite
                ) =>
            {
                self.count_dropped(reason, count);
            }
            EngineEvent::Dropped { .. } | EngineEvent::Log { .. } | EngineEvent::Fatal { .. } => {}
        }
        self.settle(now);
    }

    fn engine_status(&mut self, phase: EnginePhase, detail: Option<String>, global_step: u64, now: f64) {
        let updated = phase == EnginePhase::Rolling && self.state == State::WeightSyncing;
        if updated && global_step > self.global_step {
            self.restarts = 0;
            let visible_until = self.post_since + self.slow_poll;
            if self.slow_poller_agreed && now < visible_until {
                self.held = Some(Held {
                    until: visible_until,
                    change: HeldChange::Rolling { global_step },
                });
            } else {
                self.roll_on(global_step, now);
            }
        }
        let concerns_present_state = match phase {
            EnginePhase::Booting => self.state == State::Booting && self.held.is_none(),
            EnginePhase::Rolling => self.state.episodes_run(),
            EnginePhase::WeightSyncing => self.state == State::WeightSyncing,
        };
        if concerns_present_state {
            self.detail = detail;
        }
    }

    fn roll_on(&mut self, global_step: u64, now: f64) {
        self.global_step = global_step;
        self.detail = None;
        self.transition(Event::UpdateDone, now);
    }

    // ---- episodes ----

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
        let timeout = request.discard_episode_timeout;
        if !(timeout > 0.0 && timeout.is_finite()) {
            let sentence = format!("discard_episode_timeout must be a positive number of seconds, got {timeout}");
            return Err(Error::Invalid(sentence));
        }
        let refused = |fail_cause: String| ClaimEpisodeAnswer {
            client_uuid: request.client_uuid.clone(),
            fail_cause,
            ..ClaimEpisodeAnswer::default()
        };
        if self.state != State::Rolling {
            return Ok(refused(not_ready(self.state.status())));
        }
        let slots = self.config().map_or(0, Ajet::max_claimed_episodes);
        let claim = Claim {
            client_uuid: request.client_uuid.clone(),
            kind,
            discard_timeout: timeout,
            task_id: request
                .throttle_policy
                .map(|policy| policy.current_task_id)
                .unwrap_or_default(),
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
            return Err(Error::NotRolling(self.state.status()));
        }
        match check {
            EndCheck::NotFound => return Err(Error::EpisodeNotFound(uuid)),
            EndCheck::Foreign => return Err(Error::ForeignEpisode(uuid)),
            EndCheck::Ending => return Ok(EndStep::Wait),
            EndCheck::Running | EndCheck::AlreadyEnded => {}
        }
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

    /// The engine has the episode on disk.
    pub fn finish_end(&mut self, uuid: &str, declare_active: bool, outcome: EndOutcome, now: f64) {
        if let Some(reason) = outcome.dropped {
            self.count_dropped(reason, 1);
        }
        if let Some(episode) = self.episodes.remove(uuid, Fate::Ended, now) {
            if episode.kind == EpisodeType::Train && declare_active {
                self.clients.enter(&episode.client_uuid, now);
            } else {
                self.clients.refresh(&episode.client_uuid, now);
            }
        }
        self.take_pool(outcome.pool);
        self.settle(now);
    }

    /// The engine did not take the end: the episode is claimed as before.
    pub fn end_failed(&mut self, uuid: &str) {
        self.episodes.set_ending(uuid, false);
    }

    /// `abort_episode`: the slot is free again, what the episode recorded is forgotten.
    ///
    /// # Errors
    ///
    /// The episode is another client's.
    pub fn abort(&mut self, request: &EndEpisodeRequest, now: f64) -> Result<(), Error> {
        if !self.state.episodes_run() {
            return Ok(());
        }
        let uuid = &request.episode_uuid;
        match self.episodes.check_end(uuid, &request.client_uuid) {
            EndCheck::Foreign => return Err(Error::ForeignEpisode(uuid.clone())),
            // An end that is on its way, or through, wins over an abort.
            EndCheck::Ending | EndCheck::AlreadyEnded | EndCheck::NotFound => return Ok(()),
            EndCheck::Running => {}
        }
        self.lose(uuid, DropReason::Aborted, now);
        if request.declare_client_active {
            self.clients.enter(&request.client_uuid, now);
        }
        self.settle(now);
        Ok(())
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

    /// An LLM request is through, well or not.
    pub fn finish_call(&mut self, uuid: &str, now: f64) {
        self.episodes.finish_call(uuid, now);
        if let Some(episode) = self.episodes.get(uuid) {
            self.clients.refresh(&episode.client_uuid, now);
        }
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
            return Err(format!(
                "Engine is not rolling. Current status: [{}].",
                self.state.status()
            ));
        }
        let Some(
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
            | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight,
        ) = method
        else {
            let method = method.map_or("", pool_info::method_name);
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

    // ---- what clients may see ----

    /// Answer of `get_engine_status`.
    pub fn status(&self) -> EngineStatusAnswer {
        let notice = || self.running.as_ref().and_then(|config| config.notice.clone());
        EngineStatusAnswer {
            engine_status: self.state.status(),
            engine_status_detail: self.detail.clone().or_else(notice),
            global_step: self.global_step,
        }
    }

    /// Answer of `get_server_experiment_dir`.
    pub fn experiment_dir(&self) -> Option<String> {
        self.experiment_dir.clone()
    }

    /// `ajet.model.path` of the running engine.
    pub fn model(&self) -> Option<String> {
        self.config().map(|config| config.model.path.clone())
    }

    /// Answer of `get_episode_buffer`.
    pub fn buffer(&self, base_url: &str) -> Vec<EpisodeStatus> {
        let episodes = self.episodes.iter();
        episodes.map(|episode| pool_info::listing(episode, base_url)).collect()
    }

    /// Answer of `get_current_batch_rollout_pool_information`.
    pub fn pool_information(&self, now: f64) -> PoolInformation {
        let mut info = pool_info::assemble(self.config(), &self.pool, &self.episodes, now);
        info.engine_status = Some(self.state.status());
        info.global_step = self.global_step;
        info.booting_start_time = self.booting_since;
        info.training_model_path = self.model();
        info.swarm_client_instruction.active_clients = self.clients.list();
        info.dropped_episodes = self.dropped.clone();
        info.latest_metrics = self.latest_metrics.clone();
        info
    }

    // ---- within ----

    fn config(&self) -> Option<&Ajet> {
        self.running.as_ref().map(|config| &config.ajet)
    }

    fn require_offline(&self) -> Result<(), Error> {
        match self.state {
            State::Offline => Ok(()),
            state => Err(Error::NotOffline(state.status())),
        }
    }

    fn count_dropped(&mut self, reason: DropReason, count: u64) {
        *self.dropped.entry(reason.as_str().to_owned()).or_default() += count;
    }

    fn lose(&mut self, uuid: &str, reason: DropReason, now: f64) {
        if self.episodes.remove(uuid, Fate::Lost, now).is_some() {
            self.count_dropped(reason, 1);
            self.effects.push(Effect::Forget {
                uuid: uuid.to_owned(),
                reason,
            });
        }
    }

    /// The engine is gone, or going: nothing to tell it.
    fn lose_episodes(&mut self, reason: DropReason, now: f64) {
        let lost = self.episodes.clear(now);
        if lost > 0 {
            self.count_dropped(reason, lost);
        }
    }

    /// Snapshots arrive with answers and with events, not always in their order.
    fn take_pool(&mut self, pool: PoolSnapshot) {
        let of_this_batch = self.state.episodes_run() && pool.global_step == self.global_step;
        let of_the_next = self.state == State::WeightSyncing && pool.global_step > self.global_step;
        if pool.revision > self.pool.revision && (of_this_batch || of_the_next) {
            self.pool = pool;
        }
    }

    /// Carries out the transitions whose condition now holds.
    fn settle(&mut self, now: f64) {
        if self.state == State::Rolling {
            let closed = match self.config().map(|config| config.swarm_mode_sample_collection_method) {
                Some(CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight) => self.clients.any_agreed(),
                Some(CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight) => self.clients.all_agreed(),
                _ => false,
            };
            let full = self.pool.full && self.pool.global_step == self.global_step;
            if closed && !full {
                self.effects.push(Effect::Agree);
            }
            if closed || full {
                self.post_since = now;
                self.transition(Event::BatchFull, now);
            }
        }
        if self.state == State::RollingPost && self.episodes.is_empty() {
            self.effects.push(Effect::Update);
            self.detail = Some("updating the weights".into());
            self.transition(Event::LastEpisodeGone, now);
        }
    }

    fn transition(&mut self, event: Event, now: f64) {
        let before = self.state;
        match before.after(event) {
            Ok(after) => self.state = after,
            Err(illegal) => {
                tracing::error!("{illegal}");
                return;
            }
        }
        if self.state != before {
            tracing::info!("{} → {}", before.status(), self.state.status());
        }
        if before.episodes_run() && !self.state.episodes_run() {
            self.episodes.clear(now);
            self.clients.clear();
            let revision = self.pool.revision;
            self.pool = PoolSnapshot {
                revision,
                ..PoolSnapshot::default()
            };
        }
        match event {
            Event::StartAccepted | Event::EngineRestarts => {
                self.generation += 1;
                self.was_ready &= event == Event::EngineRestarts;
                self.booting_since = Some(now);
                self.pool = PoolSnapshot::default();
                self.held = None;
            }
            Event::UpdateDone => self.slow_poller_agreed = false,
            Event::EngineGone => {
                self.global_step = 0;
                self.booting_since = None;
                self.running = None;
                self.held = None;
                self.slow_poller_agreed = false;
            }
            Event::EngineReady | Event::BatchFull | Event::LastEpisodeGone => {}
        }
    }
}

/// Why nothing can be claimed. Clients match on the phrases.
fn not_ready(status: EngineStatus) -> String {
    let advice = match status {
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
    format!("Engine not ready. Current status: [{status}]. {advice}")
}
