//! Random interleavings of every call, compared with a small reference model after each.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::{AfterEngine, Core, Effect, EndStep, SyncedConfig};
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{
    DropReason, EndOutcome, EngineEvent, EnginePhase, Hello, PoolChange, PoolSnapshot, PooledEpisode,
};
use crate::protocol::swarm::{EndEpisodeRequest, EpisodeType};
use crate::server::error::Error;
use crate::server::state::State;

const TARGET: usize = 4;
const SLOTS: usize = 3;
const IDLE: f64 = 10.0;
const POST: f64 = 15.0;

/// What may happen. Episodes are picked by a number, modulo how many there are.
#[derive(Clone, Debug)]
enum Op {
    Claim {
        client: u8,
        eval: bool,
    },
    BeginCall(usize),
    FinishCall(usize),
    /// Tells the engine, which answers at once, or with a later [`Op::EngineAnswers`].
    End {
        pick: usize,
        foreign: bool,
        bad: bool,
        slow: bool,
    },
    EngineAnswers(usize),
    EndAgain(usize),
    Abort {
        pick: usize,
        foreign: bool,
    },
    Wait(f64),
    UpdateDone,
    /// A snapshot that was overtaken.
    StalePool,
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3_u8, prop::bool::weighted(0.2)).prop_map(|(client, eval)| Op::Claim { client, eval }),
        3 => any::<usize>().prop_map(Op::BeginCall),
        3 => any::<usize>().prop_map(Op::FinishCall),
        4 => (any::<usize>(), prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.3))
            .prop_map(|(pick, foreign, bad, slow)| Op::End { pick, foreign, bad, slow }),
        2 => any::<usize>().prop_map(Op::EngineAnswers),
        1 => any::<usize>().prop_map(Op::EndAgain),
        1 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(pick, foreign)| Op::Abort { pick, foreign }),
        2 => (0.0..8.0).prop_map(Op::Wait),
        2 => Just(Op::UpdateDone),
        1 => Just(Op::StalePool),
        1 => Just(Op::Crash),
    ]
}

/// A running episode as the model sees it.
#[derive(Clone, Debug)]
struct Running {
    uuid: String,
    key: String,
    client: String,
    eval: bool,
    last: f64,
    in_flight: u32,
    calls: u32,
    ending: bool,
}

/// The reference: the rules of the wire protocol with vectors and no cleverness. The engine's own pool is part of it.
struct World {
    core: Core,
    now: f64,
    state: State,
    step: u64,
    post_since: f64,
    crashes: u32,
    running: Vec<Running>,
    ended: Vec<Running>,
    dropped: BTreeMap<String, u64>,
    /// Those of the batch.
    dropped_of_batch: BTreeMap<String, u64>,
    expected: Vec<Effect>,
    pool: PoolSnapshot,
    stale: PoolSnapshot,
}

impl World {
    fn new() -> Self {
        let mut ajet = Ajet::default();
        ajet.data.train_batch_size = TARGET;
        ajet.rollout.num_repeat = 1;
        ajet.rollout.max_env_worker = SLOTS;
        ajet.swarm_mode_sample_collection_method = CollectionMethod::RolloutUntilFinishEnoughEpisodes;
        ajet.swarm_mode_rolling_post_timeout = POST;
        let mut core = Core::new(0.0);
        core.sync_config(Ok(SyncedConfig { ajet, notice: None })).unwrap();
        let generation = core.start("/experiment".into(), 0.0).unwrap();
        let pool = PoolSnapshot {
            global_step: 1,
            ..PoolSnapshot::default()
        };
        let hello = Hello {
            global_step: 1,
            pool: pool.clone(),
            ..Hello::default()
        };
        core.engine_ready(generation, hello, 0.0);
        Self {
            core,
            now: 0.0,
            state: State::Rolling,
            step: 1,
            post_since: 0.0,
            crashes: 0,
            running: Vec::new(),
            ended: Vec::new(),
            dropped: BTreeMap::new(),
            dropped_of_batch: BTreeMap::new(),
            expected: Vec::new(),
            stale: pool.clone(),
            pool,
        }
    }

    fn pick(&self, pick: usize) -> Option<usize> {
        (!self.running.is_empty()).then(|| pick % self.running.len())
    }

    /// Only what was to train can be missed.
    fn drop_as(&mut self, episode: &Running, reason: DropReason) {
        for counts in [&mut self.dropped, &mut self.dropped_of_batch] {
            if !episode.eval {
                *counts.entry(reason.as_str().into()).or_default() += 1;
            }
        }
    }

    fn lose(&mut self, at: usize, reason: DropReason) {
        let episode = self.running.remove(at);
        self.drop_as(&episode, reason);
        self.expected.push(Effect::Forget {
            uuid: episode.uuid,
            reason,
        });
    }

    fn settle(&mut self) {
        if self.state == State::Rolling && self.pool.full {
            self.state = State::RollingPost;
            self.post_since = self.now;
        }
        if self.state == State::RollingPost && self.running.is_empty() {
            self.state = State::WeightSyncing;
            let dropped = self.dropped_of_batch.clone().into_iter().collect();
            self.expected.push(Effect::Update { dropped });
        }
    }

    fn request(&self, episode: &Running, foreign: bool, bad: bool) -> EndEpisodeRequest {
        serde_json::from_value(json!({
            "client_uuid": if foreign { "stranger" } else { &episode.client },
            "episode_uuid": episode.uuid, "task_id": "t",
            "workflow_output": {"reward": if bad { json!(null) } else { json!(0.5) }, "metadata": {"task_id": "t"}},
        }))
        .unwrap()
    }

    /// The engine takes an end and answers.
    fn engine_takes(&mut self, at: usize) {
        let episode = self.running.remove(at);
        self.stale = self.pool.clone();
        let dropped = (episode.calls == 0).then_some(DropReason::NoLlmCall);
        let mut added = None;
        match dropped {
            Some(reason) => self.drop_as(&episode, reason),
            None if episode.eval => {}
            None => {
                self.pool.revision += 1;
                added = Some(PooledEpisode {
                    entered: self.pool.revision,
                    episode_uuid: episode.uuid.clone(),
                    task_id: "t".into(),
                    client_uuid: episode.client.clone(),
                    reward: 0.5,
                });
                self.pool.episodes.extend(added.clone());
                self.pool.full = self.pool.episodes.len() >= TARGET;
            }
        }
        let outcome = EndOutcome {
            dropped,
            change: PoolChange {
                revision: self.pool.revision,
                global_step: self.pool.global_step,
                added,
                full: self.pool.full,
                ..PoolChange::default()
            },
            ..EndOutcome::default()
        };
        self.core.finish_end(&episode.uuid, true, outcome, self.now);
        self.ended.push(episode);
        self.settle();
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Claim { client, eval } => self.claim(client, eval),
            Op::BeginCall(pick) => {
                if let Some(at) = self.pick(pick) {
                    let episode = &mut self.running[at];
                    self.core.begin_call(&episode.key, self.now).unwrap();
                    (episode.in_flight, episode.calls, episode.last) =
                        (episode.in_flight + 1, episode.calls + 1, self.now);
                }
            }
            Op::FinishCall(pick) => {
                if let Some(at) = self.pick(pick).filter(|&at| self.running[at].in_flight > 0) {
                    let episode = &mut self.running[at];
                    self.core.finish_call(&episode.uuid, self.now);
                    (episode.in_flight, episode.last) = (episode.in_flight - 1, self.now);
                }
            }
            Op::End {
                pick,
                foreign,
                bad,
                slow,
            } => {
                if let Some(at) = self.pick(pick) {
                    self.end(at, foreign, bad, slow);
                }
            }
            Op::EngineAnswers(pick) => {
                let waiting: Vec<usize> = (0..self.running.len()).filter(|&at| self.running[at].ending).collect();
                if !waiting.is_empty() {
                    self.engine_takes(waiting[pick % waiting.len()]);
                }
            }
            Op::EndAgain(pick) => {
                if !self.ended.is_empty() {
                    let episode = self.ended[pick % self.ended.len()].clone();
                    let request = self.request(&episode, false, true);
                    let step = self.core.begin_end(request, self.now);
                    assert!(matches!(step, Ok(EndStep::AlreadyEnded)), "{step:?}");
                    assert_eq!(self.core.begin_call(&episode.key, self.now), Err(Error::EpisodeGone));
                }
            }
            Op::Abort { pick, foreign } => {
                if let Some(at) = self.pick(pick) {
                    let request = self.request(&self.running[at], foreign, true);
                    self.core.abort(&request, self.now);
                    if !self.running[at].ending {
                        self.lose(at, DropReason::Aborted);
                        self.settle();
                    }
                }
            }
            Op::Wait(seconds) => self.wait(seconds),
            Op::UpdateDone => self.update_done(),
            Op::StalePool => {
                let (generation, pool) = (self.core.generation(), self.stale.clone());
                self.core.engine_event(generation, EngineEvent::Pool { pool }, self.now);
            }
            Op::Crash => self.crash(),
        }
    }

    fn claim(&mut self, client: u8, eval: bool) {
        let kind = if eval { "eval" } else { "train" };
        let request =
            json!({"client_uuid": format!("c{client}"), "episode_type": kind, "discard_episode_timeout": IDLE});
        let request = serde_json::from_value(request).unwrap();
        let answer = self.core.claim(request, String::new(), self.now).unwrap();
        let granted = self.state == State::Rolling && self.running.len() < SLOTS;
        assert_eq!(answer.success, granted, "{}", answer.fail_cause);
        if granted {
            self.running.push(Running {
                uuid: answer.episode_uuid,
                key: answer.openai_api_key,
                client: answer.client_uuid,
                eval,
                last: self.now,
                in_flight: 0,
                calls: 0,
                ending: false,
            });
        }
    }

    fn end(&mut self, at: usize, foreign: bool, bad: bool, slow: bool) {
        let episode = self.running[at].clone();
        let request = self.request(&episode, foreign, bad);
        match self.core.begin_end(request, self.now) {
            Ok(EndStep::TellEngine(end)) => {
                assert!(!foreign && !bad && !episode.ending);
                assert_eq!(end.episode_type == EpisodeType::Eval, episode.eval);
                self.running[at].ending = true;
                if !slow {
                    self.engine_takes(at);
                }
            }
            Ok(EndStep::Wait) => assert!(!foreign && episode.ending),
            Ok(EndStep::AlreadyEnded) => panic!("it runs"),
            Err(Error::ForeignEpisode(_)) => assert!(foreign),
            Err(Error::Invalid(_)) => assert!(bad && !foreign && !episode.ending),
            Err(error) => panic!("{error}"),
        }
    }

    fn wait(&mut self, seconds: f64) {
        self.now += seconds;
        self.core.tick(self.now);
        let late = self.state == State::RollingPost && self.now - self.post_since >= POST;
        for at in (0..self.running.len()).rev() {
            let episode = &self.running[at];
            let idle = episode.in_flight == 0 && self.now - episode.last >= IDLE;
            if (idle || late) && !episode.ending {
                self.lose(at, if idle { DropReason::Idle } else { DropReason::Late });
            }
        }
        self.settle();
    }

    fn update_done(&mut self) {
        if self.state != State::WeightSyncing {
            return;
        }
        self.step += 1;
        self.crashes = 0;
        self.dropped_of_batch.clear();
        self.state = State::Rolling;
        self.pool = PoolSnapshot {
            revision: self.pool.revision + 1,
            global_step: self.step,
            ..PoolSnapshot::default()
        };
        let status = EngineEvent::Status {
            phase: EnginePhase::Rolling,
            detail: None,
            global_step: self.step,
        };
        let pool = EngineEvent::Pool {
            pool: self.pool.clone(),
        };
        for event in [pool, status] {
            self.core.engine_event(self.core.generation(), event, self.now);
        }
    }

    /// The engine dies and comes back with its journal.
    fn crash(&mut self) {
        if self.crashes == super::RESTARTS {
            return;
        }
        self.crashes += 1;
        let died = self.core.generation();
        assert_eq!(self.core.engine_ended(died, "it died", self.now), AfterEngine::Restart);
        assert_eq!(
            self.core.engine_ended(died, "it died", self.now),
            AfterEngine::Over,
            "told once"
        );
        for episode in std::mem::take(&mut self.running) {
            self.drop_as(&episode, DropReason::EngineLost);
        }
        // Effects for an engine that is dead are nobody's.
        self.core.take_effects();
        self.expected.clear();
        let hello = Hello {
            global_step: self.step,
            pool: self.pool.clone(),
            ..Hello::default()
        };
        self.core.engine_ready(self.core.generation(), hello, self.now);
        self.state = State::Rolling;
        self.settle();
    }

    fn compare(&mut self, after: &Op) {
        let status = self.core.status();
        assert_eq!(status.engine_status, self.state.status(), "after {after:?}");
        assert_eq!(status.global_step, self.step, "after {after:?}");
        let info = self.core.pool_information(self.now);
        let pooled = if self.state.episodes_run() {
            self.pool.episodes.len()
        } else {
            0
        };
        assert_eq!(info.completed_episodes, pooled as u64, "after {after:?}");
        let dropped: BTreeMap<String, u64> = info.dropped_episodes.into_iter().collect();
        assert_eq!(dropped, self.dropped, "after {after:?}");
        let listed: Vec<String> = self
            .core
            .buffer("")
            .into_iter()
            .map(|episode| episode.episode_uuid)
            .collect();
        let running: Vec<String> = self.running.iter().map(|episode| episode.uuid.clone()).collect();
        assert_eq!(listed, running, "after {after:?}");
        // Discards of one tick have no order of their own.
        let sorted = |mut effects: Vec<Effect>| {
            effects.sort_by_key(|effect| format!("{effect:?}"));
            effects
        };
        let (effects, expected) = (self.core.take_effects(), std::mem::take(&mut self.expected));
        let update = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Update { .. }));
        assert!(
            update.is_none_or(|at| at + 1 == effects.len()),
            "the update comes last: {effects:?}"
        );
        assert_eq!(sorted(effects), sorted(expected), "after {after:?}");
    }
}

proptest! {
    #[test]
    fn every_interleaving_goes_by_the_rules(ops in prop::collection::vec(op(), 0..150)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op.clone());
            world.compare(&op);
        }
    }
}
