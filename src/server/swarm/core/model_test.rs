//! Random interleavings of every call of several clients, of what the engine does and of time, compared with a small
//! reference model after each.

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

    /// An episode that was counted as lost with its engine had been ended after all.
    fn was_saved(&mut self, uuid: &str) {
        let Some(at) = self.lost.iter().position(|episode| episode.uuid == uuid) else {
            return;
        };
        self.ended.push(self.lost.remove(at));
        for counts in [&mut self.dropped, &mut self.dropped_of_batch] {
            if let Some(count) = counts.get_mut(&DropReason::EngineLost) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
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

    fn enter(&mut self, client: &str) {
        if !self.refresh(client) {
            self.clients.push(Client {
                uuid: client.to_owned(),
                last: self.now,
                agreed: false,
            });
        }
    }

    fn refresh(&mut self, client: &str) -> bool {
        let now = self.now;
        let known = self.clients.iter_mut().find(|known| known.uuid == client);
        known.map(|known| known.last = now).is_some()
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

    /// The engine is told to close the batch, and does.
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

    fn claim(&mut self, client: u8, eval: bool) {
        let kind = if eval { "eval" } else { "train" };
        let client = format!("c{client}");
        let wanted = json!({"client_uuid": client, "episode_type": kind, "discard_episode_timeout": IDLE});
        let wanted = serde_json::from_value(wanted).unwrap();
        let answer = self.core.claim(wanted, String::new(), self.now).unwrap();
        let granted = self.state == State::Rolling && self.running.len() < SLOTS;
        assert_eq!(answer.success, granted, "{}", answer.fail_cause);
        assert_eq!(answer.fail_cause.is_empty(), granted);
        if granted {
            self.refresh(&client);
            self.running.push(Episode {
                uuid: answer.episode_uuid,
                key: answer.openai_api_key,
                client,
                eval,
                last: self.now,
                in_flight: 0,
                calls: 0,
                end: None,
            });
        }
    }

    fn begin_call(&mut self, pick: usize) {
        if let Some(at) = picked(&self.running, pick) {
            let episode = &mut self.running[at];
            let (uuid, kind) = self.core.begin_call(&episode.key, usize::MAX, self.now).unwrap();
            assert_eq!((uuid, kind == EpisodeType::Eval), (episode.uuid.clone(), episode.eval));
            (episode.in_flight, episode.last) = (episode.in_flight + 1, self.now);
            let client = episode.client.clone();
            self.refresh(&client);
        }
    }

    fn finish_call(&mut self, pick: usize, taken: bool) {
        if let Some(at) = picked(&self.running, pick).filter(|&at| self.running[at].in_flight > 0) {
            let episode = &mut self.running[at];
            if taken {
                self.core.count_call(&episode.uuid);
                episode.calls += 1;
            }
            self.core.finish_call(&episode.uuid, self.now);
            (episode.in_flight, episode.last) = (episode.in_flight - 1, self.now);
            let client = episode.client.clone();
            self.refresh(&client);
        }
    }

    fn end(&mut self, at: usize, foreign: bool, bad: bool, end: End) {
        let episode = self.running[at].clone();
        let client = if foreign { "stranger" } else { &episode.client };
        let reward = if bad { json!(null) } else { json!(end.reward) };
        match self
            .core
            .begin_end(request(&episode, client, &end.task, reward), self.now)
        {
            Ok(EndStep::CallEngine(told)) => {
                assert!(!foreign && !bad && episode.end.is_none());
                assert_eq!(
                    (told.episode_type == EpisodeType::Eval, told.reward),
                    (episode.eval, end.reward)
                );
                self.running[at].end = Some(end);
            }
            Ok(EndStep::Wait(_)) => assert!(!foreign && episode.end.is_some()),
            Ok(EndStep::AlreadyEnded) => panic!("it runs"),
            Err(Error::ForeignEpisode(_)) => assert!(foreign),
            Err(Error::Invalid(_)) => assert!(bad && !foreign && episode.end.is_none()),
            Err(error) => panic!("{error}"),
        }
    }

    /// An end that is under way, of a running episode or of one that was lost meanwhile, gets its answer.
    fn engine_answers(&mut self, pick: usize, fails: bool) {
        let under_way: Vec<usize> = (0..self.running.len())
            .filter(|&at| self.running[at].end.is_some())
            .collect();
        if under_way.is_empty() {
            return self.orphan_is_answered(pick);
        }
        let at = under_way[pick % under_way.len()];
        if fails {
            self.core.end_failed(&self.running[at].uuid);
            self.running[at].end = None;
            return;
        }
        let mut episode = self.running.remove(at);
        self.stale = self.engine.pool.clone();
        let outcome = self.engine_takes(&episode);
        if let Some(reason) = outcome.dropped {
            self.drop_as(&episode, reason);
        }
        let Some(end) = episode.end.take() else {
            unreachable!("it is under way")
        };
        self.core
            .finish_end(&episode.uuid, end.generation, end.declare, outcome, self.now);
        match !episode.eval && end.declare {
            true => self.enter(&episode.client),
            false => drop(self.refresh(&episode.client)),
        }
        episode.last = self.now;
        self.ended.push(episode);
        self.settle();
    }

    /// The engine has an end on disk; what it answers.
    fn engine_takes(&mut self, episode: &Episode) -> EndOutcome {
        let dropped = (episode.calls == 0).then_some(DropReason::NoLlmCall);
        let mut added = None;
        if let (Some(end), None, false) = (&episode.end, dropped, episode.eval) {
            added = Some(PooledEpisode {
                entered: self.engine.pool.revision + 1,
                episode_uuid: episode.uuid.clone(),
                task_id: end.task.clone(),
                client_uuid: episode.client.clone(),
                reward: end.reward,
            });
            self.engine.pool.episodes.extend(added.clone());
            self.pool_changed();
        }
        let pool = &self.engine.pool;
        let change = PoolChange {
            revision: pool.revision,
            global_step: pool.global_step,
            added,
            removed: Vec::new(),
            completed_tasks: pool.completed_tasks,
            completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
            full: pool.full,
        };
        EndOutcome {
            dropped,
            change,
            ..EndOutcome::default()
        }
    }

    /// The answer of an engine that is gone: it took the end, and what it says about its pool is of the past.
    fn orphan_is_answered(&mut self, pick: usize) {
        let Some(at) = picked(&self.orphans, pick) else { return };
        let orphan = self.orphans.remove(at);
        let trains = !orphan.eval && orphan.calls > 0;
        let outcome = EndOutcome {
            change: PoolChange {
                revision: 1000,
                global_step: self.step,
                added: trains.then(PooledEpisode::default),
                full: true,
                ..PoolChange::default()
            },
            ..EndOutcome::default()
        };
        let generation = orphan.end.as_ref().map_or(0, |end| end.generation);
        self.core.finish_end(&orphan.uuid, generation, true, outcome, self.now);
        if self.state == State::Booting && self.was_ready && trains {
            self.was_saved(&orphan.uuid);
        } else if let Some(at) = self.lost.iter().position(|episode| episode.uuid == orphan.uuid) {
            self.ended.push(self.lost.remove(at));
        }
    }

    fn abort(&mut self, at: usize, client: &str, declare: bool) {
        let mut request = request(&self.running[at], client, "", json!(0.0));
        request.declare_client_active = declare;
        self.core.abort(&request, self.now);
        if self.running[at].end.is_some() {
            return;
        }
        self.lose(at, DropReason::Aborted);
        if declare {
            self.enter(client);
        }
        self.settle();
    }

    fn agree(&mut self, client: u8, slow: bool) {
        let client = format!("c{client}");
        let answer = self.core.agree(&client, slow, self.now);
        let active = self.clients.iter_mut().find(|known| known.uuid == client);
        let accepted = self.state == State::Rolling && METHODS[3..].contains(&self.method) && active.is_some();
        assert_eq!(answer.is_ok(), accepted, "{answer:?}");
        if let (true, Some(active)) = (accepted, active) {
            active.agreed = true;
            self.slow_agreed |= slow;
            self.settle();
        }
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

    fn update_done(&mut self) {
        let waits = self.engine.pool.global_step == self.step;
        if self.state != State::WeightSyncing || !self.engine.alive || !waits {
            return;
        }
        self.crashes = 0;
        self.engine.pool = PoolSnapshot {
            revision: self.engine.pool.revision + 1,
            global_step: self.step + 1,
            ..PoolSnapshot::default()
        };
        match self.slow_agreed && self.now < self.post_since + SLOW_POLL {
            true => self.held = Some(self.post_since + SLOW_POLL),
            false => self.rolls_on(),
        }
        self.tell_pool(self.engine.pool.clone());
        let status = EngineEvent::Status {
            phase: EnginePhase::Rolling,
            detail: None,
            global_step: self.engine.pool.global_step,
        };
        self.core.engine_event(self.core.generation(), status, self.now);
    }

    fn rolls_on(&mut self) {
        self.step = self.engine.pool.global_step;
        self.slow_agreed = false;
        self.dropped_of_batch.clear();
        self.state = State::Rolling;
    }

    fn offline(&mut self) {
        self.state = State::Offline;
        self.step = 0;
        self.slow_agreed = false;
        self.held = None;
    }

    /// The ends that are under way get on disk before the engine goes; their answers may still come.
    fn save_ends(&mut self) {
        for episode in self.running.clone().into_iter().filter(|episode| episode.end.is_some()) {
            self.engine_takes(&episode);
            self.orphans.push(episode);
        }
    }

    /// The engine dies; what is in its pool is on disk.
    fn crash(&mut self, saved: bool) {
        if !self.engine.alive {
            return;
        }
        if saved {
            self.save_ends();
        }
        self.engine.alive = false;
        let restarts = self.was_ready && self.crashes < super::RESTARTS;
        let died = self.core.generation();
        let after = self.core.engine_ended(died, "it died", self.now);
        assert_eq!(after == AfterEngine::Restart, restarts);
        self.leave_rolling(Some(DropReason::EngineLost));
        // Effects for an engine that is dead are nobody's.
        self.core.take_effects();
        self.expected.clear();
        if restarts {
            let again = self.core.engine_ended(died, "it died", self.now);
            assert_eq!(again, AfterEngine::Over, "told once");
            self.crashes += 1;
            self.state = State::Booting;
            self.booting_since = self.now;
            self.held = None;
            self.slow_agreed = false;
            self.engine.alive = true;
        } else if self.state == State::Booting && self.now < self.booting_since + SLOW_POLL {
            self.held = Some(self.booting_since + SLOW_POLL);
        } else {
            self.offline();
        }
    }

    /// The engine has loaded, with the batch that was on disk.
    fn boots(&mut self) {
        if self.state != State::Booting || !self.engine.alive {
            return;
        }
        if self.engine.pool.global_step > self.step {
            self.dropped_of_batch.clear();
        }
        // A new process counts from the start.
        self.engine.pool.revision = self.engine.pool.episodes.len() as u64;
        for (number, episode) in self.engine.pool.episodes.iter_mut().enumerate() {
            episode.entered = number as u64 + 1;
        }
        for episode in self.engine.pool.episodes.clone() {
            self.was_saved(&episode.episode_uuid);
        }
        self.stale = PoolSnapshot::default();
        let hello = Hello {
            global_step: self.engine.pool.global_step,
            pool: self.engine.pool.clone(),
            ..Hello::default()
        };
        self.core.engine_ready(self.core.generation(), hello, self.now);
        self.was_ready = true;
        self.step = self.engine.pool.global_step;
        self.state = State::Rolling;
        self.settle();
    }

    fn stop(&mut self) {
        self.save_ends();
        self.core.stop(None, self.now);
        self.core.take_effects();
        self.expected.clear();
        self.leave_rolling(Some(DropReason::Late));
        self.engine.alive = false;
        self.offline();
    }

    fn start(&mut self) {
        let mut ajet = Ajet::default();
        ajet.data.train_batch_size = BATCH;
        ajet.rollout.num_repeat = REPEATS;
        ajet.rollout.max_env_worker = SLOTS;
        ajet.swarm_mode_sample_collection_method = self.method;
        ajet.swarm_mode_rolling_post_timeout = POST;
        let synced = self.core.sync_config(Ok(SyncedConfig { ajet, notice: None }));
        let started = self.core.start("/experiment".into(), self.now);
        assert_eq!(
            (synced.is_ok(), started.is_ok()),
            (self.state == State::Offline, self.state == State::Offline)
        );
        if started.is_ok() {
            self.state = State::Booting;
            self.booting_since = self.now;
            self.was_ready = false;
            self.crashes = 0;
            self.dropped.clear();
            self.dropped_of_batch.clear();
            self.slow_agreed = false;
            self.engine.alive = true;
            self.engine.pool = PoolSnapshot {
                global_step: 1,
                ..PoolSnapshot::default()
            };
        }
    }

    // ---- comparison ----

    fn compare(&mut self, after: &Op) {
        let status = self.core.status();
        assert_eq!(status.engine_status, self.state.status(), "after {after:?}");
        assert_eq!(status.global_step, self.step, "after {after:?}");
        self.compare_pool(after);
        self.compare_episodes(after);
        self.compare_effects(after);
    }

    fn compare_pool(&self, after: &Op) {
        let info = self.core.pool_information(self.now);
        let empty = PoolSnapshot::default();
        let pool = if self.state.episodes_run() {
            &self.engine.pool
        } else {
            &empty
        };
        let expected = |of: fn(&PooledEpisode) -> String| {
            let mut tasks = BTreeMap::<String, Vec<String>>::new();
            for episode in &pool.episodes {
                tasks.entry(episode.task_id.clone()).or_default().push(of(episode));
            }
            tasks
        };
        let sorted = |map: indexmap::IndexMap<String, Vec<String>>| map.into_iter().collect::<BTreeMap<_, _>>();
        let counted = (
            info.completed_episodes,
            info.completed_tasks,
            info.completed_non_dummy_tasks,
        );
        let counts = (
            pool.episodes.len() as u64,
            pool.completed_tasks,
            pool.completed_non_dummy_tasks,
        );
        assert_eq!(counted, counts, "after {after:?}");
        let details = expected(|episode| episode.episode_uuid.clone());
        assert_eq!(sorted(info.completed_tasks_details), details, "after {after:?}");
        let workers = expected(|episode| episode.client_uuid.clone());
        assert_eq!(sorted(info.completed_tasks_client_uuids), workers, "after {after:?}");
        let dropped: BTreeMap<String, u64> = info.dropped_episodes.into_iter().collect();
        let counted = self.dropped.iter().map(|(reason, n)| (reason.as_str().to_owned(), *n));
        assert_eq!(dropped, counted.collect(), "after {after:?}");
        let active = info.swarm_client_instruction.active_clients.into_iter();
        let active: Vec<_> = active
            .map(|client| (client.client_uuid, client.last_activity_at, client.allowed_sync_weight))
            .collect();
        let known = self
            .clients
            .iter()
            .map(|client| (client.uuid.clone(), client.last, client.agreed));
        assert_eq!(active, known.collect::<Vec<_>>(), "after {after:?}");
    }

    fn compare_episodes(&self, after: &Op) {
        let listed = self.core.buffer("").into_iter();
        let listed: Vec<_> = listed
            .map(|episode| (episode.episode_uuid, episode.llm_call_count))
            .collect();
        let running = self.running.iter().map(|episode| (episode.uuid.clone(), episode.calls));
        assert_eq!(listed, running.collect::<Vec<_>>(), "after {after:?}");
        for episode in &self.running {
            let may_go_on = self.state.episodes_run() && episode.end.is_none();
            assert_eq!(
                self.core.can_continue(&episode.uuid, &episode.client),
                may_go_on,
                "after {after:?}"
            );
            assert!(self.core.is_claimed(&episode.uuid) && !self.core.can_continue(&episode.uuid, "stranger"));
        }
        for episode in self.ended.iter().chain(&self.lost) {
            assert!(!self.core.is_claimed(&episode.uuid) && !self.core.can_continue(&episode.uuid, &episode.client));
            assert_eq!(
                self.core.check_key(&episode.key),
                Err(Error::EpisodeGone),
                "after {after:?}"
            );
        }
        let uuids: BTreeSet<_> = self
            .running
            .iter()
            .chain(&self.ended)
            .chain(&self.lost)
            .map(|e| &e.uuid)
            .collect();
        assert_eq!(
            uuids.len(),
            self.running.len() + self.ended.len() + self.lost.len(),
            "each is one thing"
        );
    }

    fn compare_effects(&mut self, after: &Op) {
        // Discards of one tick have no order of their own.
        let sorted = |mut effects: Vec<Effect>| {
            effects.sort_by_key(|effect| format!("{effect:?}"));
            effects
        };
        let (effects, expected) = (self.core.take_effects(), std::mem::take(&mut self.expected));
        let update = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Update { .. }));
        let last = update.is_none_or(|at| at + 1 == effects.len());
        assert!(last, "the update comes last: {effects:?}");
        assert_eq!(sorted(effects), sorted(expected), "after {after:?}");
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
