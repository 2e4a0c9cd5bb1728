//! Random interleavings of every call of several clients, of what the engine does and of time, compared with a small
//! reference model after each.

mod clients;
mod comparison;
mod engine;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::{AfterEngine, Core, Effect, EndStep, SyncedConfig};
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{
    DropReason, EndOutcome, EngineEvent, EnginePhase, ForgetEpisode, Hello, PoolChange, PoolSnapshot, PooledEpisode,
};
use crate::protocol::swarm::{EndEpisodeRequest, EpisodeType};
use crate::server::http::error::Error;
use crate::server::swarm::clients::ACTIVE_SECONDS;
use crate::server::swarm::episodes::REMEMBER_SECONDS;
use crate::server::swarm::state::State;

const BATCH: usize = 2;
const REPEATS: usize = 2;
const SLOTS: usize = 3;
const IDLE: f64 = 10.0;
const POST: f64 = 15.0;
const SLOW_POLL: f64 = 6.0;

const METHODS: [CollectionMethod; 5] = [
    CollectionMethod::RolloutUntilFinishEnoughEpisodes,
    CollectionMethod::RolloutUntilFinishEnoughTasks,
    CollectionMethod::RolloutUntilFinishEnoughNonDummyTasks,
    CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight,
    CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight,
];

/// What may happen. Episodes are picked by a number, modulo how many there are.
#[derive(Clone, Debug)]
enum Op {
    Claim {
        client: u8,
        eval: bool,
    },
    BeginCall(usize),
    FinishCall {
        pick: usize,
        taken: bool,
    },
    End {
        pick: usize,
        foreign: bool,
        bad: bool,
        declare: bool,
        task: u8,
        reward: u8,
    },
    /// The engine answers an end that is under way; it may be dead by then, and have put the episode on disk before.
    EngineAnswers {
        pick: usize,
        fails: bool,
    },
    EndAgain(usize),
    Abort {
        pick: usize,
        foreign: bool,
        declare: bool,
    },
    AbortAgain(usize),
    Agree {
        client: u8,
        slow: bool,
    },
    Wait(f64),
    UpdateDone,
    /// A snapshot that was overtaken.
    StalePool,
    /// The engine dies, having put the ends that are under way on disk, or not.
    Crash {
        saved: bool,
    },
    Boots,
    Stop,
    Start,
}

fn op() -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    let seldom = || prop::bool::weighted(0.1);
    prop_oneof![
        8 => (0..3_u8, prop::bool::weighted(0.2)).prop_map(|(client, eval)| Op::Claim { client, eval }),
        6 => pick().prop_map(Op::BeginCall),
        6 => (pick(), prop::bool::weighted(0.9)).prop_map(|(pick, taken)| Op::FinishCall { pick, taken }),
        8 => (pick(), seldom(), seldom(), prop::bool::weighted(0.9), 0..3_u8, 0..2_u8).prop_map(
            |(pick, foreign, bad, declare, task, reward)| Op::End { pick, foreign, bad, declare, task, reward }
        ),
        8 => (pick(), seldom()).prop_map(|(pick, fails)| Op::EngineAnswers { pick, fails }),
        2 => pick().prop_map(Op::EndAgain),
        2 => (pick(), seldom(), any::<bool>()).prop_map(|(pick, foreign, declare)| Op::Abort { pick, foreign, declare }),
        1 => pick().prop_map(Op::AbortAgain),
        2 => (0..3_u8, any::<bool>()).prop_map(|(client, slow)| Op::Agree { client, slow }),
        4 => prop_oneof![20 => 0.0..8.0, 1 => Just(ACTIVE_SECONDS)].prop_map(Op::Wait),
        5 => Just(Op::UpdateDone),
        1 => Just(Op::StalePool),
        1 => any::<bool>().prop_map(|saved| Op::Crash { saved }),
        4 => Just(Op::Boots),
        1 => prop::bool::weighted(0.2).prop_map(|stop| if stop { Op::Stop } else { Op::Boots }),
        1 => Just(Op::Start),
    ]
}

/// An episode as the model sees it, running or gone.
#[derive(Clone, Debug)]
struct Episode {
    uuid: String,
    key: String,
    client: String,
    eval: bool,
    /// When it was claimed or last called; when it went, for one that is gone.
    last: f64,
    in_flight: u32,
    /// That the engine took.
    calls: u64,
    /// What its end said, where one is under way.
    end: Option<End>,
}

#[derive(Clone, Debug)]
struct End {
    task: String,
    reward: f64,
    declare: bool,
    generation: u64,
}

#[derive(Clone, Debug)]
struct Client {
    uuid: String,
    last: f64,
    agreed: bool,
}

/// The engine's side of it: the pool on disk, which outlives a crash.
#[derive(Clone, Debug, Default)]
struct Engine {
    pool: PoolSnapshot,
    alive: bool,
}

/// The reference: the rules of the wire protocol with vectors and no cleverness.
struct World {
    core: Core,
    method: CollectionMethod,
    now: f64,
    state: State,
    step: u64,
    post_since: f64,
    booting_since: f64,
    /// Until when a failed boot or an update that is done is kept from clients that poll slowly.
    held: Option<f64>,
    slow_agreed: bool,
    was_ready: bool,
    crashes: u32,
    running: Vec<Episode>,
    ended: Vec<Episode>,
    lost: Vec<Episode>,
    /// Ends that were under way when their episode was lost with the batch.
    orphans: Vec<Episode>,
    clients: Vec<Client>,
    dropped: BTreeMap<DropReason, u64>,
    /// Those of the batch.
    dropped_of_batch: BTreeMap<DropReason, u64>,
    expected: Vec<Effect>,
    engine: Engine,
    stale: PoolSnapshot,
}

impl World {
    fn new(method: CollectionMethod) -> Self {
        Self {
            core: Core::new(SLOW_POLL),
            method,
            now: 1000.0,
            state: State::Offline,
            step: 0,
            post_since: 0.0,
            booting_since: 0.0,
            held: None,
            slow_agreed: false,
            was_ready: false,
            crashes: 0,
            running: Vec::new(),
            ended: Vec::new(),
            lost: Vec::new(),
            orphans: Vec::new(),
            clients: Vec::new(),
            dropped: BTreeMap::new(),
            dropped_of_batch: BTreeMap::new(),
            expected: Vec::new(),
            engine: Engine::default(),
            stale: PoolSnapshot::default(),
        }
    }

    // ---- rules ----

    /// Completed and non-dummy tasks of the engine's pool.
    fn counts(&self) -> (usize, usize) {
        let mut tasks = BTreeMap::<&str, Vec<f64>>::new();
        for episode in &self.engine.pool.episodes {
            tasks.entry(&episode.task_id).or_default().push(episode.reward);
        }
        let completed = tasks.values().filter(|rewards| rewards.len() >= REPEATS);
        let non_dummy = completed
            .clone()
            .filter(|rewards| rewards.contains(&0.0) && rewards.contains(&1.0));
        (completed.count(), non_dummy.count())
    }

    /// What the engine's pool has become.
    fn pool_changed(&mut self) {
        let (completed, non_dummy) = self.counts();
        let pool = &mut self.engine.pool;
        (pool.completed_tasks, pool.completed_non_dummy_tasks) = (completed as u64, non_dummy as u64);
        pool.revision += 1;
        pool.full |= match self.method {
            CollectionMethod::RolloutUntilFinishEnoughEpisodes => pool.episodes.len() >= BATCH * REPEATS,
            CollectionMethod::RolloutUntilFinishEnoughTasks => completed >= BATCH,
            CollectionMethod::RolloutUntilFinishEnoughNonDummyTasks => non_dummy >= BATCH,
            _ => false,
        };
    }

    /// Only what was to train can be missed.
    fn drop_as(&mut self, episode: &Episode, reason: DropReason) {
        for counts in [&mut self.dropped, &mut self.dropped_of_batch] {
            if !episode.eval {
                *counts.entry(reason).or_default() += 1;
            }
        }
    }

    fn lose(&mut self, at: usize, reason: DropReason) {
        let mut episode = self.running.remove(at);
        episode.last = self.now;
        self.drop_as(&episode, reason);
        let uuid = episode.uuid.clone();
        let forget = ForgetEpisode {
            reason,
            episode_type: if episode.eval {
                EpisodeType::Eval
            } else {
                EpisodeType::Train
            },
            client_uuid: episode.client.clone(),
            task_id: String::new(),
            claimed_at_step: self.step,
        };
        self.expected.push(Effect::Forget { uuid, forget });
        self.lost.push(episode);
    }

    /// The batch is over, well or not.
    fn leave_rolling(&mut self, reason: Option<DropReason>) {
        for mut episode in std::mem::take(&mut self.running) {
            reason.into_iter().for_each(|reason| self.drop_as(&episode, reason));
            episode.last = self.now;
            self.lost.push(episode);
        }
        self.clients.clear();
    }

    fn settle(&mut self) {
        let agreed = match self.method {
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight => self.clients.iter().any(|client| client.agreed),
            CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight => {
                !self.clients.is_empty() && self.clients.iter().all(|client| client.agreed)
            }
            _ => false,
        };
        if self.state == State::Rolling && (agreed || self.engine.pool.full) {
            if !self.engine.pool.full {
                self.expected.push(Effect::Agree);
            }
            self.state = State::RollingPost;
            self.post_since = self.now;
        }
        if self.state == State::RollingPost && self.running.is_empty() {
            self.state = State::WeightSyncing;
            self.leave_rolling(None);
            let dropped = self.dropped_of_batch.clone().into_iter().collect();
            self.expected.push(Effect::Update { dropped });
        }
    }

    /// The engine closes the batch that the clients agreed on.
    fn carry_out_agreement(&mut self) {
        if self.expected.contains(&Effect::Agree) {
            self.engine.pool.full = true;
            self.engine.pool.revision += 1;
            self.tell_pool(self.engine.pool.clone());
        }
    }

    fn tell_pool(&mut self, pool: PoolSnapshot) {
        let generation = self.core.generation();
        self.core.engine_event(generation, EngineEvent::Pool { pool }, self.now);
    }

    // ---- operations ----

    fn apply(&mut self, op: Op) {
        match op {
            Op::Claim { client, eval } => self.claim(client, eval),
            Op::BeginCall(pick) => self.begin_call(pick),
            Op::FinishCall { pick, taken } => self.finish_call(pick, taken),
            Op::End {
                pick,
                foreign,
                bad,
                declare,
                task,
                reward,
            } => {
                if let Some(at) = picked(&self.running, pick) {
                    let end = End {
                        task: format!("t{task}"),
                        reward: f64::from(reward),
                        declare,
                        generation: self.core.generation(),
                    };
                    self.end(at, foreign, bad, end);
                }
            }
            Op::EngineAnswers { pick, fails } => self.engine_answers(pick, fails),
            Op::EndAgain(pick) => {
                if let Some(at) = picked(&self.ended, pick) {
                    let episode = self.ended[at].clone();
                    let request = request(&episode, &episode.client, "t", json!(null));
                    let step = self.core.begin_end(request, self.now);
                    assert!(matches!(step, Ok(EndStep::AlreadyEnded)), "{step:?}");
                    self.refresh(&episode.client);
                    assert_eq!(
                        self.core.begin_call(&episode.key, usize::MAX, self.now),
                        Err(Error::EpisodeGone)
                    );
                }
            }
            Op::Abort { pick, foreign, declare } => {
                if let Some(at) = picked(&self.running, pick) {
                    let client = if foreign {
                        "stranger".to_owned()
                    } else {
                        self.running[at].client.clone()
                    };
                    self.abort(at, &client, declare);
                }
            }
            Op::AbortAgain(pick) => {
                if let Some(at) = picked(&self.lost, pick) {
                    let episode = self.lost[at].clone();
                    let request = request(&episode, &episode.client, "", json!(0.0));
                    self.core.abort(&request, self.now);
                    assert!(self.core.begin_end(request, self.now).is_err(), "it is lost");
                }
            }
            Op::Agree { client, slow } => self.agree(client, slow),
            Op::Wait(seconds) => self.wait(seconds),
            Op::UpdateDone => self.update_done(),
            Op::StalePool => self.tell_pool(self.stale.clone()),
            Op::Crash { saved } => self.crash(saved),
            Op::Boots => self.boots(),
            Op::Stop => self.stop(),
            Op::Start => self.start(),
        }
        self.carry_out_agreement();
    }

    fn wait(&mut self, seconds: f64) {
        self.now += seconds;
        self.core.tick(self.now);
        let now = self.now;
        self.clients.retain(|client| now - client.last < ACTIVE_SECONDS);
        for gone in [&mut self.ended, &mut self.lost] {
            gone.retain(|episode| now - episode.last < REMEMBER_SECONDS);
        }
        let late = self.state == State::RollingPost && now - self.post_since >= POST;
        for at in (0..self.running.len()).rev() {
            let episode = &self.running[at];
            let idle = episode.in_flight == 0 && now - episode.last >= IDLE;
            if (idle || late) && episode.end.is_none() {
                self.lose(at, if idle { DropReason::Idle } else { DropReason::Late });
            }
        }
        if self.held.is_some_and(|until| now >= until) {
            self.held = None;
            match self.state {
                State::Booting => self.offline(),
                _ => self.rolls_on(),
            }
        }
        self.settle();
    }
}

fn picked<T>(from: &[T], pick: usize) -> Option<usize> {
    (!from.is_empty()).then(|| pick % from.len())
}

fn request(episode: &Episode, client: &str, task: &str, reward: serde_json::Value) -> EndEpisodeRequest {
    serde_json::from_value(json!({
        "client_uuid": client, "episode_uuid": episode.uuid, "task_id": task,
        "workflow_output": {"reward": reward, "metadata": {"task_id": task}},
    }))
    .unwrap()
}

proptest! {
    #[test]
    fn every_interleaving_goes_by_the_rules(
        method in prop::sample::select(&METHODS[..]),
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let mut world = World::new(method);
        for op in [Op::Start, Op::Boots].into_iter().chain(ops) {
            world.apply(op.clone());
            world.compare(&op);
        }
    }
}
