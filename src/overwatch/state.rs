//! What is known of the server, from one look to the next.

use std::collections::{BTreeMap, VecDeque};

use super::collector::Look;
use crate::config::schema::CollectionMethod;
use crate::protocol::swarm::{EngineStatus, PoolInformation, VerboseLog};

/// Log lines that are kept.
const KEPT_LOG_LINES: usize = 500;

/// Everything that the panels show.
#[derive(Clone, Debug)]
pub struct State {
    /// The server's URL, without its token.
    pub server: String,
    /// The last look that succeeded.
    pub look: Option<Look>,
    /// Why there is no newer one, and since when (Unix seconds).
    pub failure: Option<(String, f64)>,
    /// Mean reward by the step at which its batch was sampled; of the present step so far.
    pub rewards: BTreeMap<u64, f64>,
    /// Oldest first.
    pub log: VecDeque<VerboseLog>,
    /// Rows that the lists are scrolled down.
    pub scroll: usize,
    /// Unix seconds.
    pub now: f64,
}

/// A stop rule's progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is counted.
    pub what: &'static str,
    /// So far.
    pub done: u64,
    /// When the batch is full.
    pub target: u64,
    /// Whether this is the rule that fills the batch.
    pub active: bool,
}

impl State {
    /// Nothing is known yet.
    pub fn new(server: String, now: f64) -> Self {
        Self {
            server,
            look: None,
            failure: None,
            rewards: BTreeMap::new(),
            log: VecDeque::new(),
            scroll: 0,
            now,
        }
    }

    /// Takes in what a look brought at `now`.
    pub fn take(&mut self, look: Result<Look, String>, now: f64) {
        self.now = now;
        match look {
            Ok(look) => {
                if self.failure.take().is_some() {
                    self.note("the server answers again".into());
                }
                self.note_change(&look);
                self.take_rewards(&look);
                self.take_log(&look.logs);
                self.look = Some(look);
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

    /// Where the engine is, as far as can be told.
    pub fn status(&self) -> Option<EngineStatus> {
        match (&self.failure, &self.look) {
            (Some(_), _) => Some(EngineStatus::CannotConnect),
            (None, look) => look.as_ref().map(|look| look.status.engine_status),
        }
    }

    /// The batch, where it is known.
    pub fn pool(&self) -> Option<&PoolInformation> {
        self.look.as_ref()?.pool.as_ref()
    }

    /// Seconds since the engine began to boot, while it does.
    pub fn booting_for(&self) -> Option<f64> {
        let booting = self.look.as_ref()?.status.engine_status == EngineStatus::Booting;
        let since = self.pool()?.booting_start_time.filter(|_| booting)?;
        Some((self.now - since).max(0.0))
    }

    /// Episodes, tasks, tasks with different rewards, and clients' agreement, with the active rule marked.
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

    /// Mean reward of the batch so far and the number of its episodes.
    pub fn batch_reward(&self) -> Option<(f64, usize)> {
        self.pool().and_then(mean_reward)
    }

    /// Scrolls the lists by `rows`, not beyond the longest.
    pub fn scroll_by(&mut self, rows: isize) {
        let longest = self.pool().map_or(0, |pool| {
            let running = pool.running_episode_details.as_ref().map_or(0, |running| running.len());
            running.max(pool.completed_tasks_rewards.len())
        });
        self.scroll = self.scroll.saturating_add_signed(rows).min(longest.saturating_sub(1));
    }

    fn take_rewards(&mut self, look: &Look) {
        let Some(pool) = &look.pool else { return };
        if let Some((mean, _)) = mean_reward(pool) {
            self.rewards.insert(look.status.global_step, mean);
        }
        let metric = |name: &str| pool.latest_metrics.get(name).copied();
        if let (Some(step), Some(mean)) = (metric("global_step"), metric("reward_mean")) {
            self.rewards.insert(step as u64, mean);
        }
    }

    /// The server tells the lines of the last half minute with every look.
    fn take_log(&mut self, lines: &[VerboseLog]) {
        for line in lines {
            let known = self.log.iter().rev().take(200);
            let mut known = known.filter(|known| known.timestamp == line.timestamp && known.tag == line.tag);
            if !known.any(|known| known.message == line.message) {
                self.push(line.clone());
            }
        }
    }

    fn note_change(&mut self, look: &Look) {
        let status = look.status.engine_status;
        let Some(before) = &self.look else { return };
        let before = &before.status;
        if before.engine_status != status {
            let detail = look.status.engine_status_detail.as_deref();
            let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
            self.note(format!(
                "{} → {}{detail}",
                state_name(before.engine_status),
                state_name(status)
            ));
        } else if before.global_step < look.status.global_step {
            self.note(format!("step {}", look.status.global_step));
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

/// A state's name without the wire's prefix.
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
    pub(in super::super) fn rolling() -> Look {
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
        Look {
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
            let mut look = rolling();
            look.pool.as_mut().unwrap().sample_collection_method = method.into();
            let mut state = State::new(String::new(), 0.0);
            state.take(Ok(look), 0.0);
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
        let mut look = rolling();
        look.status.global_step = 4;
        let pool = look.pool.as_mut().unwrap();
        pool.completed_tasks_rewards.clear();
        pool.latest_metrics.insert("global_step".into(), 3.0);
        pool.latest_metrics.insert("reward_mean".into(), 0.6);
        state.take(Ok(look), 1201.0);
        assert_eq!(state.rewards.into_iter().collect::<Vec<_>>(), [(2, 0.5), (3, 0.6)]);
    }

    #[test]
    fn a_server_that_goes_away_and_comes_back_is_noted() {
        let mut state = watching();
        assert_eq!(state.booting_for(), None, "it rolls");
        let mut look = rolling();
        look.status.engine_status = EngineStatus::Booting;
        let mut booting = watching();
        booting.take(Ok(look), 1200.0);
        assert_eq!(booting.booting_for(), Some(200.0));
        state.take(Err("cannot connect".into()), 1210.0);
        state.take(Err("no answer in 5 s".into()), 1220.0);
        assert_eq!(state.status(), Some(EngineStatus::CannotConnect));
        assert_eq!(state.failure, Some(("no answer in 5 s".into(), 1210.0)));
        assert!(state.pool().is_some(), "the last look stays");
        let mut look = rolling();
        look.status.engine_status = EngineStatus::Offline;
        look.status.engine_status_detail = Some("out of memory".into());
        state.take(Ok(look), 1230.0);
        assert_eq!(state.booting_for(), None);
        let log: Vec<_> = state.log.iter().map(|line| line.message.as_str()).collect();
        assert_eq!(
            log,
            [
                "task_7 done",
                "cannot connect",
                "the server answers again",
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
