//! State of the dashboard, accumulated from snapshots.

use std::collections::{BTreeMap, VecDeque};

use super::collector::Snapshot;
use crate::config::schema::CollectionMethod;
use crate::protocol::swarm::{EngineStatus, PoolInformation, VerboseLog};

/// Maximum number of log lines.
const KEPT_LOG_LINES: usize = 500;

/// Everything that the panels show.
#[derive(Clone, Debug)]
pub struct State {
    /// URL of the server, without its token.
    pub server: String,
    /// Last successful snapshot.
    pub snapshot: Option<Snapshot>,
    /// Reason why there is no newer one, and since when (Unix seconds).
    pub failure: Option<(String, f64)>,
    /// Mean reward by the step at which its batch was sampled; for the current step, so far.
    pub rewards: BTreeMap<u64, f64>,
    /// Log lines, oldest first.
    pub log: VecDeque<VerboseLog>,
    /// Scroll position of the lists, in rows.
    pub scroll: usize,
    /// Current time in Unix seconds.
    pub now: f64,
}

/// Progress of a stop rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Name of what is counted.
    pub what: &'static str,
    /// Count so far.
    pub done: u64,
    /// Count at which the batch is full.
    pub target: u64,
    /// Whether this rule is the active one.
    pub active: bool,
}

impl State {
    /// Creates an empty state.
    pub fn new(server: String, now: f64) -> Self {
        Self {
            server,
            snapshot: None,
            failure: None,
            rewards: BTreeMap::new(),
            log: VecDeque::new(),
            scroll: 0,
            now,
        }
    }

    /// Adds a snapshot taken at `now`, or the reason why there is none.
    pub fn take(&mut self, snapshot: Result<Snapshot, String>, now: f64) {
        self.now = now;
        match snapshot {
            Ok(snapshot) => {
                if self.failure.take().is_some() {
                    self.note("reconnected to the server".into());
                }
                self.note_change(&snapshot);
                self.take_rewards(&snapshot);
                self.take_log(&snapshot.logs);
                self.snapshot = Some(snapshot);
            }
            Err(reason) => {
                if self.failure.is_none() {
                    self.note(reason.clone());
                }
                let since = self.failure.take().map_or(now, |(_, since)| since);
                self.failure = Some((reason, since));
            }
        }
    }

    /// Returns the engine's status, as far as known.
    pub fn status(&self) -> Option<EngineStatus> {
        match (&self.failure, &self.snapshot) {
            (Some(_), _) => Some(EngineStatus::CannotConnect),
            (None, snapshot) => snapshot.as_ref().map(|snapshot| snapshot.status.engine_status),
        }
    }

    /// Returns the batch, if known.
    pub fn pool(&self) -> Option<&PoolInformation> {
        self.snapshot.as_ref()?.pool.as_ref()
    }

    /// Returns the seconds since the engine began to boot, while it boots.
    pub fn booting_for(&self) -> Option<f64> {
        let booting = self.snapshot.as_ref()?.status.engine_status == EngineStatus::Booting;
        let since = self.pool()?.booting_start_time.filter(|_| booting)?;
        Some((self.now - since).max(0.0))
    }

    /// Returns the progress of episodes, tasks, tasks with different rewards, and clients' agreement.
    pub fn progress(&self) -> Vec<Progress> {
        use CollectionMethod::*;
        let Some(pool) = self.pool() else { return vec![] };
        let clients = &pool.swarm_client_instruction.active_clients;
        let agreed = clients.iter().filter(|client| client.allowed_sync_weight).count() as u64;
        let method = CollectionMethod::from_name(&pool.sample_collection_method);
        let agreement_target = match method {
            Some(RolloutUntilAnyClientAgreeSyncWeight) => 1,
            _ => clients.len() as u64,
        };
        let progress = |what, done, target, methods: &[CollectionMethod]| Progress {
            what,
            done,
            target,
            active: method.is_some_and(|method| methods.contains(&method)),
        };
        vec![
            progress(
                "episodes",
                pool.completed_episodes,
                pool.completed_episode_target,
                &[RolloutUntilFinishEnoughEpisodes],
            ),
            progress(
                "tasks",
                pool.completed_tasks,
                pool.completed_task_target,
                &[RolloutUntilFinishEnoughTasks],
            ),
            progress(
                "non-dummy tasks",
                pool.completed_non_dummy_tasks,
                pool.completed_non_dummy_task_target,
                &[RolloutUntilFinishEnoughNonDummyTasks],
            ),
            progress(
                "clients agree",
                agreed,
                agreement_target,
                &[
                    RolloutUntilAnyClientAgreeSyncWeight,
                    RolloutUntilAllClientsAgreeSyncWeight,
                ],
            ),
        ]
    }

    /// Returns the batch's mean reward so far and the number of its episodes.
    pub fn batch_reward(&self) -> Option<(f64, usize)> {
        self.pool().and_then(mean_reward)
    }

    /// Scrolls the lists by `rows`, up to the end of the longest.
    pub fn scroll_by(&mut self, rows: isize) {
        let longest = self.pool().map_or(0, |pool| {
            let running = pool.running_episode_details.as_ref().map_or(0, |running| running.len());
            running.max(pool.completed_tasks_rewards.len())
        });
        self.scroll = self.scroll.saturating_add_signed(rows).min(longest.saturating_sub(1));
    }

    fn take_rewards(&mut self, snapshot: &Snapshot) {
        let Some(pool) = &snapshot.pool else { return };
        if let Some((mean, _)) = mean_reward(pool) {
            self.rewards.insert(snapshot.status.global_step, mean);
        }
        let metric = |name: &str| pool.latest_metrics.get(name).copied();
        if let (Some(step), Some(mean)) = (metric("global_step"), metric("reward_mean")) {
            self.rewards.insert(step as u64, mean);
        }
    }

    /// Adds new log lines: the server sends those of the last 30 s with every snapshot.
    fn take_log(&mut self, lines: &[VerboseLog]) {
        for line in lines {
            let known = self.log.iter().rev().take(200);
            let mut known = known.filter(|known| known.timestamp == line.timestamp && known.tag == line.tag);
            if !known.any(|known| known.message == line.message) {
                self.push(line.clone());
            }
        }
    }

    fn note_change(&mut self, snapshot: &Snapshot) {
        let status = snapshot.status.engine_status;
        let Some(before) = &self.snapshot else { return };
        let before = &before.status;
        if before.engine_status != status {
            let detail = snapshot.status.engine_status_detail.as_deref();
            let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
            self.note(format!(
                "{} → {}{detail}",
                state_name(before.engine_status),
                state_name(status)
            ));
        } else if before.global_step < snapshot.status.global_step {
            self.note(format!("step {}", snapshot.status.global_step));
        }
    }

    fn note(&mut self, message: String) {
        self.push(VerboseLog {
            timestamp: self.now,
            tag: String::new(),
            message,
        });
    }

    fn push(&mut self, line: VerboseLog) {
        if self.log.len() == KEPT_LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }
}

/// Returns a state's name without the wire prefix.
pub(super) fn state_name(status: EngineStatus) -> &'static str {
    status.as_str().trim_start_matches("ENGINE.")
}

fn mean_reward(pool: &PoolInformation) -> Option<(f64, usize)> {
    let rewards: Vec<f64> = pool.completed_tasks_rewards.values().flatten().copied().collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    (!rewards.is_empty()).then_some((mean, rewards.len()))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A look at a server that samples its third batch.
    pub(in super::super) fn rolling() -> Snapshot {
        let pool = json!({
            "sample_collection_method": "rollout_until_finish_enough_tasks",
            "completed_episodes": 12, "completed_episode_target": 32,
            "completed_tasks": 2, "completed_task_target": 8,
            "completed_non_dummy_tasks": 1, "completed_non_dummy_task_target": 8,
            "task_expected_num_repeat": 4,
            "completed_tasks_rewards": {
                "task_7": [1.0, 0.0, 1.0, 1.0], "task_8": [1.0, 1.0, 1.0, 1.0], "task_9": [0.0, 0.5, 1.0, 0.0],
            },
            "running_episode_details": {
                "3f1c9a52-aaaa": {"episode_status": "claimed", "time_since_last_activity": "1.2s",
                    "discard_episode_timeout": "240.0s", "llm_call_count": "3", "client_uuid": "c1ient01-x",
                    "optional_task_id": "task_10"},
                "77777777-bbbb": {"episode_status": "claimed", "time_since_last_activity": "0.1s",
                    "discard_episode_timeout": "240.0s", "llm_call_count": "0", "client_uuid": "c1ient01-x",
                    "optional_task_id": ""},
            },
            "engine_status": "ENGINE.ROLLING", "global_step": 3, "booting_start_time": 1000.0,
            "training_model_path": "Qwen/Qwen2.5-0.5B-Instruct",
            "swarm_client_instruction": {"active_clients": [
                {"client_uuid": "c1ient01-x", "last_activity_at": 1190.0, "allowed_sync_weight": true},
                {"client_uuid": "c1ient02-y", "last_activity_at": 1100.0, "allowed_sync_weight": false},
            ]},
            "dropped_episodes": {"aborted": 2},
            "latest_metrics": {"global_step": 2.0, "reward_mean": 0.5, "success_rate": 0.4, "kl": 0.002,
                "grad_norm": 0.83, "tokens_per_second/sampling": 1234.5},
        });
        Snapshot {
            status: serde_json::from_value(json!({"engine_status": "ENGINE.ROLLING", "global_step": 3})).unwrap(),
            pool: Some(serde_json::from_value(pool).unwrap()),
            logs: vec![VerboseLog {
                timestamp: 1199.0,
                tag: "client".into(),
                message: "task_7 done".into(),
            }],
        }
    }

    pub(in super::super) fn watching() -> State {
        let mut state = State::new("http://localhost:10086".into(), 1200.0);
        state.take(Ok(rolling()), 1200.0);
        state
    }

    #[test]
    fn the_active_rule_is_marked() {
        let cases = [
            ("rollout_until_finish_enough_episodes", "episodes", 32),
            ("rollout_until_finish_enough_tasks", "tasks", 8),
            ("rollout_until_finish_enough_non_dummy_tasks", "non-dummy tasks", 8),
            ("rollout_until_any_client_agree_sync_weight", "clients agree", 1),
            ("rollout_until_all_clients_agree_sync_weight", "clients agree", 2),
        ];
        for (method, what, target) in cases {
            let mut snapshot = rolling();
            snapshot.pool.as_mut().unwrap().sample_collection_method = method.into();
            let mut state = State::new(String::new(), 0.0);
            state.take(Ok(snapshot), 0.0);
            let active: Vec<_> = state
                .progress()
                .into_iter()
                .filter(|progress| progress.active)
                .collect();
            assert!(
                matches!(active.as_slice(), [rule] if rule.what == what && rule.target == target),
                "{active:?}"
            );
        }
    }

    #[test]
    fn rewards_are_kept_by_step() {
        let mut state = watching();
        assert_eq!(
            state.rewards.into_iter().collect::<Vec<_>>(),
            [(2, 0.5), (3, 0.7083333333333334)]
        );
        state = watching();
        let mut snapshot = rolling();
        snapshot.status.global_step = 4;
        let pool = snapshot.pool.as_mut().unwrap();
        pool.completed_tasks_rewards.clear();
        pool.latest_metrics.insert("global_step".into(), 3.0);
        pool.latest_metrics.insert("reward_mean".into(), 0.6);
        state.take(Ok(snapshot), 1201.0);
        assert_eq!(state.rewards.into_iter().collect::<Vec<_>>(), [(2, 0.5), (3, 0.6)]);
    }

    #[test]
    fn a_server_that_goes_away_and_comes_back_is_noted() {
        let mut state = watching();
        assert_eq!(state.booting_for(), None, "it rolls");
        let mut snapshot = rolling();
        snapshot.status.engine_status = EngineStatus::Booting;
        let mut booting = watching();
        booting.take(Ok(snapshot), 1200.0);
        assert_eq!(booting.booting_for(), Some(200.0));
        state.take(Err("cannot connect".into()), 1210.0);
        state.take(Err("timed out after 5 s".into()), 1220.0);
        assert_eq!(state.status(), Some(EngineStatus::CannotConnect));
        assert_eq!(state.failure, Some(("timed out after 5 s".into(), 1210.0)));
        assert!(state.pool().is_some(), "the last look stays");
        let mut snapshot = rolling();
        snapshot.status.engine_status = EngineStatus::Offline;
        snapshot.status.engine_status_detail = Some("out of memory".into());
        state.take(Ok(snapshot), 1230.0);
        assert_eq!(state.booting_for(), None);
        let log: Vec<_> = state.log.iter().map(|line| line.message.as_str()).collect();
        assert_eq!(
            log,
            [
                "task_7 done",
                "cannot connect",
                "reconnected to the server",
                "ROLLING → OFFLINE: out of memory"
            ]
        );
    }

    #[test]
    fn scrolling_stays_within_the_lists() {
        let mut state = watching();
        state.scroll_by(-1);
        assert_eq!(state.scroll, 0);
        state.scroll_by(10);
        assert_eq!(state.scroll, 2);
        State::new(String::new(), 0.0).scroll_by(1);
    }
}
