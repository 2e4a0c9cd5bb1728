//! Every rule of the control plane in one place, without I/O: calls and engine events go in with the time, answers and
//! [`Effect`]s come out. The server holds it in a mutex and carries the effects out.

mod calls;
mod engine_life;
#[cfg(test)]
mod model_test;

use indexmap::IndexMap;

use super::clients::ActiveClients;
use super::episodes::{Fate, Registry};
use super::error::Error;
use super::pool_info;
use super::state::{Event, State};
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{DropReason, EndEpisode, PoolSnapshot};
use crate::protocol::swarm::{EngineStatusAnswer, EpisodeStatus, PoolInformation};

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
