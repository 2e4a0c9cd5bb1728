//! The control plane with 10,000 clients that keep 100,000 episodes running, over two batches:
//! `cargo test --release --lib control_plane_at_scale -- --ignored --nocapture`. Shows durations of calls, and memory.

use std::time::Instant;

use serde_json::json;

use super::{Core, Effect, EndStep, SyncedConfig};
use crate::config::schema::Ajet;
use crate::note;
use crate::protocol::engine::{EndOutcome, EngineEvent, EnginePhase, Hello, PoolChange, PoolSnapshot, PooledEpisode};
use crate::protocol::swarm::EndEpisodeRequest;
use crate::server::swarm::state::State;

const CLIENTS: usize = 10_000;
const RUNNING: usize = 100_000;
const REPEATS: usize = 4;
const STEPS: u64 = 2;

/// Seconds of a kind of call.
#[derive(Default)]
struct Seconds(Vec<f64>);

impl Seconds {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = call();
        self.0.push(begun.elapsed().as_secs_f64());
        result
    }

    fn show(mut self, what: &str) {
        self.0.sort_by(f64::total_cmp);
        let at = |share: f64| 1e6 * self.0[((self.0.len() - 1) as f64 * share) as usize];
        let (half, most, all) = (at(0.5), at(0.99), at(1.0));
        note!(
            "{what:24} {:8} calls, µs: p50 {half:10.1}  p99 {most:10.1}  max {all:10.1}",
            self.0.len()
        );
    }
}

/// A running episode as its client knows it.
struct Episode {
    uuid: String,
    key: String,
    client: String,
}

struct Load {
    core: Core,
    now: f64,
    episodes: Vec<Episode>,
    revision: u64,
}

impl Load {
    fn start() -> Self {
        let mut ajet = Ajet::default();
        ajet.data.train_batch_size = RUNNING / REPEATS;
        ajet.rollout.num_repeat = REPEATS;
        ajet.rollout.max_env_worker = RUNNING;
        let mut core = Core::new(0.0);
        core.sync_config(Ok(SyncedConfig { ajet, notice: None })).unwrap();
        let generation = core.start("experiment".into(), 0.0).unwrap();
        let hello = Hello {
            ready: true,
            global_step: 1,
            pool: PoolSnapshot {
                global_step: 1,
                ..PoolSnapshot::default()
            },
            ..Hello::default()
        };
        core.engine_ready(generation, hello, 1.0);
        Self {
            core,
            now: 1.0,
            episodes: vec![],
            revision: 0,
        }
    }

    fn later(&mut self) -> f64 {
        self.now += 1e-4;
        self.now
    }

    fn claim(&mut self, client: usize, seconds: &mut Seconds) {
        let client = format!("2f1c9c0e-0000-4000-8000-{client:012}");
        let wanted = json!({"client_uuid": client, "episode_type": "train", "discard_episode_timeout": 1e6});
        let (wanted, now) = (serde_json::from_value(wanted).unwrap(), self.later());
        let answer = seconds.time(|| self.core.claim(wanted, String::new(), now)).unwrap();
        assert!(answer.success, "{}", answer.fail_cause);
        self.episodes.push(Episode {
            uuid: answer.episode_uuid,
            key: answer.openai_api_key,
            client,
        });
    }

    fn call(&mut self, at: usize, seconds: &mut Seconds) {
        let (now, episode) = (self.later(), &self.episodes[at]);
        seconds.time(|| {
            let (uuid, _) = self.core.begin_call(&episode.key, 1000, now).unwrap();
            self.core.count_call(&uuid);
            self.core.finish_call(&uuid, now);
        });
    }

    /// Ends an episode, whose task is the `number`th of the batch's episodes.
    fn end(&mut self, episode: &Episode, number: usize, seconds: &mut Seconds) {
        let (now, step) = (self.later(), self.core.status().global_step);
        let task = format!("task-{}", number / REPEATS);
        let request: EndEpisodeRequest = serde_json::from_value(json!({
            "client_uuid": episode.client, "episode_uuid": episode.uuid, "task_id": task,
            "workflow_output": {"reward": (number % REPEATS) as f64, "metadata": {"task_id": task}}, "declare_client_active": true,
        }))
        .unwrap();
        self.revision += 1;
        let change = PoolChange {
            revision: self.revision,
            global_step: step,
            added: Some(PooledEpisode {
                entered: self.revision,
                episode_uuid: episode.uuid.clone(),
                task_id: task,
                client_uuid: episode.client.clone(),
                reward: (number % REPEATS) as f64,
            }),
            completed_tasks: (number / REPEATS) as u64,
            full: number + 1 == RUNNING,
            ..PoolChange::default()
        };
        let outcome = EndOutcome {
            change,
            ..EndOutcome::default()
        };
        seconds.time(|| {
            let step = self.core.begin_end(request, now).unwrap();
            assert!(matches!(step, EndStep::CallEngine(_)));
            let generation = self.core.generation();
            self.core.finish_end(&episode.uuid, generation, true, outcome, now);
        });
    }

    /// The engine has updated the weights.
    fn update(&mut self) {
        let effects = self.core.take_effects();
        assert!(matches!(effects[..], [Effect::Update { .. }]), "{effects:?}");
        assert_eq!(self.core.state(), State::WeightSyncing);
        self.revision += 1;
        let step = self.core.status().global_step + 1;
        let pool = PoolSnapshot {
            revision: self.revision,
            global_step: step,
            ..PoolSnapshot::default()
        };
        let (generation, now) = (self.core.generation(), self.later());
        self.core.engine_event(generation, EngineEvent::Pool { pool }, now);
        let rolls = EngineEvent::Status {
            phase: EnginePhase::Rolling,
            detail: None,
            global_step: step,
        };
        self.core.engine_event(generation, rolls, now);
        assert_eq!(self.core.state(), State::Rolling);
    }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib / 1024.0
}

#[test]
#[ignore = "takes a minute, and shows durations"]
fn control_plane_at_scale() {
    let empty = resident_mib();
    let mut load = Load::start();
    let [mut claims, mut calls, mut ends, mut ticks, mut feeds, mut pools] =
        std::array::from_fn(|_| Seconds::default());
    for step in 1..=STEPS {
        for number in 0..RUNNING {
            load.claim(number % CLIENTS, &mut claims);
        }
        note!(
            "step {step}: {RUNNING} running, {:.0} MiB more than at the start",
            resident_mib() - empty
        );
        for at in 0..RUNNING {
            load.call(at, &mut calls);
        }
        for _ in 0..10 {
            let now = load.later();
            ticks.time(|| load.core.tick(now));
            feeds.time(|| load.core.feed(now));
            pools.time(|| load.core.pool_information(now));
        }
        // In another order than claimed: a prime that does not divide their number reaches all.
        let episodes = std::mem::take(&mut load.episodes);
        for number in 0..RUNNING {
            load.end(&episodes[number * 7919 % RUNNING], number, &mut ends);
        }
        let begun = Instant::now();
        load.update();
        note!(
            "step {step}: next batch begun in {:.1} ms, {:.0} MiB more than at the start",
            1e3 * begun.elapsed().as_secs_f64(),
            resident_mib() - empty
        );
    }
    claims.show("claim");
    calls.show("begin and finish of call");
    ends.show("end");
    ticks.show("tick");
    feeds.show("status (locked)");
    pools.show("pool information");
}
