//! All rules of the control plane, without I/O: calls and engine events go in with the current time; answers and
//! [`Effect`]s come out. The server keeps the core in a mutex and runs the effects.
//!
//! `episode_life` claims, ends and aborts episodes; `model_calls` admits the requests of agents; `engine_life` follows
//! the engine's starts, events and crashes; `tick` does what time does, such as discarding idle episodes; `feed` shows
//! all of it.

mod engine_life;
mod episode_life;
mod feed;
mod model_calls;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod scale_test;
mod tick;

use std::collections::VecDeque;
use std::sync::Arc;

use indexmap::IndexMap;

use super::clients::ActiveClients;
use super::episodes::{Episode, Fate, Registry};
use super::feed::batch::BatchRecords;
use super::feed::histogram::Durations;
use super::feed::load::LoadMonitor;
use super::feed::phases::Phases;
use super::pool_information;
use super::pool_view::PoolView;
use super::state::{Event, State};
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{DropReason, EndEpisode, ForgetEpisode, PoolSnapshot};
use crate::protocol::status::{ExperimentInfo, StepMetrics};
use crate::protocol::swarm::{EndEpisodeRequest, EngineStatusAnswer, EpisodeStatus, EpisodeType, PoolInformation};
use crate::server::http::error::Error;

pub use feed::without_ages;

/// Maximum number of restarts of a crashed engine before an update succeeds.
const RESTARTS: u32 = 3;

/// Number of ends from which the rate of a batch is estimated.
const RECENT_ENDS: usize = 64;

/// A call to the engine. Effects are run in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// `POST /episodes/{id}/forget`.
    Forget {
        /// Episode id.
        uuid: String,
        /// Reason, and what the engine does not know of the episode.
        forget: ForgetEpisode,
    },
    /// `POST /agree`.
    Agree,
    /// `POST /update`.
    Update {
        /// Counts by reason of the batch's train episodes that never reached the pool.
        dropped: IndexMap<DropReason, u64>,
    },
    /// `POST /shutdown`: the run is complete.
    Shutdown,
}

/// Next action of `end_episode`.
#[derive(Debug)]
pub enum EndStep {
    /// The client has ended it before: nothing to do.
    AlreadyEnded,
    /// The same end is in progress; retry with this request when it has completed.
    Wait(Box<EndEpisodeRequest>),
    /// Call the engine, then [`Core::finish_end`] or [`Core::end_failed`].
    CallEngine(Box<EndEpisode>),
}

/// Next action after the end of an engine process.
#[derive(Debug, PartialEq, Eq)]
pub enum AfterEngine {
    /// Restart the engine.
    Restart,
    /// Stay offline.
    Over,
    /// Stay offline; the run is complete and must not be resumed.
    Complete,
}

/// Outcome of a boot.
#[derive(Debug, PartialEq, Eq)]
pub enum Boot {
    /// In progress.
    Pending,
    /// The engine is or was ready.
    Ready,
    /// The boot failed for this reason.
    Failed(String),
}

/// A synced training configuration.
#[derive(Clone, Debug)]
pub struct SyncedConfig {
    /// Parsed and validated.
    pub ajet: Ajet,
    /// Notice for its author, such as ignored keys.
    pub notice: Option<String>,
}

/// A state change delayed so that slow pollers can see the state before.
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
    /// Counts engine processes, to tell events of a replaced one apart.
    generation: u64,
    /// Whether the current engine was ever ready.
    was_ready: bool,
    restarts: u32,
    /// Restarts since this server started.
    total_restarts: u64,
    /// Why the server ends the current engine, where the process's exit does not say it.
    failure: Option<String>,
    /// Why the engine was restarted, until an update succeeds.
    crash: Option<String>,
    booting_since: Option<f64>,
    post_since: f64,
    state_since: f64,
    held: Option<Held>,
    /// Minimum duration in seconds of states for clients that poll slowly.
    slow_poll: f64,
    /// Whether a slow poller agreed to the end of this batch.
    slow_poller_agreed: bool,
    /// Whether a client waits for the boot's outcome, so that the state need not stay visible.
    boot_is_awaited: bool,
    /// Why the engine is being ended after the last allowed update.
    complete: Option<String>,
    pool: PoolView,
    episodes: Registry,
    clients: ActiveClients,
    /// Train episodes dropped since `start_engine`, by reason.
    dropped: IndexMap<DropReason, u64>,
    /// Those of this batch that the engine does not know of. Kept across restarts.
    dropped_before_pool: IndexMap<DropReason, u64>,
    latest_metrics: IndexMap<String, f64>,
    latest_eval: Option<StepMetrics>,
    /// When the server started.
    started: f64,
    phases: Phases,
    /// Load of the current engine.
    load: LoadMonitor,
    /// Durations since the server started.
    durations: Durations,
    /// The experiment of the current or last engine.
    experiment: Option<ExperimentInfo>,
    /// The batch of the update in progress.
    closed_batch: Option<Arc<BatchRecords>>,
    /// Times at which the last episodes of the batch ended.
    batch_ends: VecDeque<f64>,
    effects: Vec<Effect>,
}

impl Core {
    /// Creates an offline core; states stay visible for `slow_poll` seconds to clients that poll a cached status.
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
            total_restarts: 0,
            failure: None,
            crash: None,
            booting_since: None,
            post_since: 0.0,
            state_since: 0.0,
            held: None,
            slow_poll,
            slow_poller_agreed: false,
            boot_is_awaited: false,
            complete: None,
            pool: PoolView::default(),
            episodes: Registry::default(),
            clients: ActiveClients::default(),
            dropped: IndexMap::new(),
            dropped_before_pool: IndexMap::new(),
            latest_metrics: IndexMap::new(),
            latest_eval: None,
            started: 0.0,
            phases: Phases::start(State::Offline.status(), 0.0),
            load: LoadMonitor::default(),
            durations: Durations::default(),
            experiment: None,
            closed_batch: None,
            batch_ends: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Sets when the server started.
    pub fn started_at(mut self, now: f64) -> Self {
        (self.started, self.state_since) = (now, now);
        self.phases = Phases::start(self.state.status(), now);
        self
    }

    /// Returns the engine's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the pending effects, oldest first.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the answer of `get_engine_status`.
    pub fn status(&self) -> EngineStatusAnswer {
        EngineStatusAnswer {
            engine_status: self.state.status(),
            engine_status_detail: self.status_detail(),
            global_step: self.global_step,
        }
    }

    /// Returns for how many seconds to withhold the status from slow pollers, so that they do not wait for the end of a
    /// batch that may be over within `interval` seconds.
    pub fn withhold_status_for(&self, interval: f64, now: f64) -> Option<f64> {
        let passing = matches!(self.state, State::RollingPost | State::WeightSyncing) && !self.slow_poller_agreed;
        Some(self.state_since + interval - now).filter(|left| passing && *left > 0.0)
    }

    fn status_detail(&self) -> Option<String> {
        match (&self.crash, &self.detail) {
            (Some(crash), Some(detail)) => Some(format!("{crash}; {detail}")),
            (Some(said), None) | (None, Some(said)) => Some(said.clone()),
            (None, None) => self.running.as_ref()?.notice.clone(),
        }
    }

    /// Returns the answer of `get_server_experiment_dir`.
    pub fn experiment_dir(&self) -> Option<String> {
        self.experiment_dir.clone()
    }

    /// Returns `ajet.model.path` of the running engine.
    pub fn model(&self) -> Option<String> {
        self.config().map(|config| config.model.path.clone())
    }

    /// Returns the answer of `get_episode_buffer`.
    pub fn buffer(&self, base_url: &str) -> Vec<EpisodeStatus> {
        let episodes = self.episodes.iter();
        episodes
            .map(|episode| pool_information::listing(episode, base_url))
            .collect()
    }

    /// Returns the answer of `get_current_batch_rollout_pool_information`.
    pub fn pool_information(&self, now: f64) -> PoolInformation {
        let mut info = pool_information::assemble(self.config(), &self.pool, &self.episodes, now);
        info.engine_status = Some(self.state.status());
        info.global_step = self.global_step;
        info.booting_start_time = self.booting_since;
        info.training_model_path = self.model();
        info.swarm_client_instruction.active_clients = self.clients.list();
        info.dropped_episodes = self.dropped.iter().map(|(r, n)| (r.as_str().to_owned(), *n)).collect();
        info.latest_metrics = self.latest_metrics.clone();
        info
    }

    /// Returns the maximum number of claimed episodes.
    pub fn slots(&self) -> usize {
        self.config().map_or(0, Ajet::max_claimed_episodes)
    }

    /// Returns the number of restarts of crashed engines.
    pub fn restarts(&self) -> u64 {
        self.total_restarts
    }

    /// The configuration of the engine, while there is one.
    pub fn running_config(&self) -> Option<Ajet> {
        self.config().filter(|_| self.state != State::Offline).cloned()
    }

    fn config(&self) -> Option<&Ajet> {
        self.running.as_ref().map(|config| &config.ajet)
    }

    /// Checks that no engine runs.
    ///
    /// # Errors
    ///
    /// Fails if one does.
    pub fn require_offline(&self) -> Result<(), Error> {
        match self.state {
            State::Offline => Ok(()),
            state => Err(Error::NotOffline(state.status())),
        }
    }

    /// Counts a train episode that does not reach the pool.
    fn drop_episode(&mut self, episode: &Episode, reason: DropReason) {
        tracing::debug!(episode = episode.uuid, "dropped the episode: {}", reason.as_str());
        if episode.kind == EpisodeType::Train {
            self.count_dropped(reason, 1);
            *self.dropped_before_pool.entry(reason).or_default() += 1;
        }
    }

    fn count_dropped(&mut self, reason: DropReason, count: u64) {
        *self.dropped.entry(reason).or_default() += count;
    }

    fn lose(&mut self, uuid: &str, reason: DropReason, now: f64) {
        if let Some(episode) = self.episodes.remove(uuid, Fate::Lost(reason), now) {
            self.drop_episode(&episode, reason);
            let forget = ForgetEpisode {
                reason,
                episode_type: episode.kind,
                client_uuid: episode.client_uuid,
                task_id: episode.task_id,
                claimed_at_step: episode.claimed_at_step,
            };
            self.effects.push(Effect::Forget {
                uuid: episode.uuid,
                forget,
            });
        }
    }

    /// Loses all episodes because the engine ends, without calling it.
    fn lose_episodes(&mut self, reason: DropReason, now: f64) {
        for episode in self.episodes.clear(reason, now) {
            self.drop_episode(&episode, reason);
        }
    }

    /// Returns whether pool news of this step are current.
    fn collects(&self, global_step: u64) -> bool {
        match self.state {
            State::Rolling | State::RollingPost => global_step == self.global_step,
            State::WeightSyncing => global_step > self.global_step,
            State::Offline | State::Booting => false,
        }
    }

    fn take_pool(&mut self, pool: PoolSnapshot) {
        if self.collects(pool.global_step) {
            self.pool.replace(pool);
        }
    }

    /// Makes the transitions whose conditions now hold.
    fn settle(&mut self, now: f64) {
        if self.state == State::Rolling {
            let closed = match self.config().map(|config| config.swarm_mode_sample_collection_method) {
                Some(CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight) => self.clients.any_agreed(),
                Some(CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight) => self.clients.all_agreed(),
                _ => false,
            };
            let full = self.pool.is_full() && self.pool.global_step() == self.global_step;
            if closed && !full {
                self.effects.push(Effect::Agree);
            }
            if closed || full {
                self.post_since = now;
                self.transition(Event::BatchFull, now);
            }
        }
        if self.state == State::RollingPost && self.episodes.is_empty() {
            let dropped = self.dropped_before_pool.clone();
            self.effects.push(Effect::Update { dropped });
            self.detail = Some("updating the weights".into());
            self.transition(Event::LastEpisodeGone, now);
        }
    }

    fn transition(&mut self, event: Event, now: f64) {
        let (before, lasted) = (self.state, now - self.state_since);
        match before.after(event) {
            Ok(after) => self.state = after,
            Err(illegal) => {
                tracing::error!("{illegal}");
                return;
            }
        }
        if self.state != before {
            self.state_since = now;
            tracing::info!("{} → {}", before.status(), self.state.status());
        }
        if before.episodes_run() && !self.state.episodes_run() {
            self.closed_batch = (self.state == State::WeightSyncing).then(|| Arc::new(self.open_batch()));
            self.batch_ends.clear();
            self.episodes.clear(DropReason::EngineLost, now);
            self.clients.clear();
            self.pool = self.pool.emptied();
        }
        match event {
            Event::StartAccepted | Event::EngineRestarts => {
                self.generation += 1;
                self.was_ready &= event == Event::EngineRestarts;
                self.failure = None;
                self.booting_since = Some(now);
                self.pool = PoolView::default();
                self.held = None;
                self.slow_poller_agreed = false;
                self.complete = None;
                self.load = LoadMonitor::default();
            }
            Event::UpdateDone => {
                self.slow_poller_agreed = false;
                self.durations.update.observe(lasted);
            }
            Event::EngineGone => {
                self.crash = None;
                self.global_step = 0;
                self.booting_since = None;
                self.running = None;
                self.held = None;
                self.boot_is_awaited = false;
                self.complete = None;
            }
            Event::EngineReady => {
                self.booting_since = None;
                self.boot_is_awaited = false;
            }
            Event::BatchFull | Event::LastEpisodeGone => {}
        }
        if self.state != before {
            self.phases.enter(self.state.status(), self.global_step, now);
        }
    }

    /// Notes that an episode ended.
    fn note_end(&mut self, episode: &Episode, now: f64) {
        self.load.episode_ended(now);
        self.durations.episode.observe(now - episode.claimed_at);
        if episode.kind == EpisodeType::Eval {
            return;
        }
        if self.batch_ends.len() >= RECENT_ENDS {
            self.batch_ends.pop_front();
        }
        self.batch_ends.push_back(now);
    }
}
