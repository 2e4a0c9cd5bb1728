//! The batch as the status feed shows it: progress, groups and clients.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;

use super::time_left::Progress;
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::PooledEpisode;
use crate::protocol::status::{BatchProgress, ClientInfo, Distribution, GROUPS, GroupEpisode, TaskGroup};
use crate::protocol::swarm::EpisodeType;
use crate::server::swarm::clients::ActiveClients;
use crate::server::swarm::episodes::Registry;
use crate::server::swarm::pool_view::PoolView;

/// A batch as the status shows it.
#[derive(Clone, Debug, Default)]
pub struct BatchView {
    /// Progress, without an estimate of the time left.
    pub progress: BatchProgress,
    /// Groups.
    pub groups: Vec<TaskGroup>,
    /// Clients.
    pub clients: Vec<ClientInfo>,
}

/// What a view of the batch is computed from: copied while the core is locked, so that it is not locked for longer.
#[derive(Clone, Debug, Default)]
pub struct BatchRecords {
    rule: Option<Rule>,
    /// Finished episodes in the order of their ends.
    finished: Vec<Arc<PooledEpisode>>,
    completed_tasks: u64,
    completed_non_dummy_tasks: u64,
    running: Vec<Running>,
    clients: Vec<Client>,
}

/// When the batch is full.
#[derive(Clone, Copy, Debug)]
struct Rule {
    method: CollectionMethod,
    episodes: u64,
    tasks: u64,
    repeats: u64,
}

/// A running episode.
#[derive(Clone, Debug)]
struct Running {
    kind: EpisodeType,
    task_id: String,
    client_uuid: String,
    last_activity: f64,
}

/// An active client.
#[derive(Clone, Debug)]
struct Client {
    uuid: String,
    last_activity: f64,
    agreed: bool,
}

impl BatchRecords {
    /// Copies the records of a batch.
    pub fn new(config: Option<&Ajet>, pool: &PoolView, episodes: &Registry, clients: &ActiveClients) -> Self {
        let running = episodes.iter().map(|episode| Running {
            kind: episode.kind,
            task_id: episode.task_id.clone(),
            client_uuid: episode.client_uuid.clone(),
            last_activity: episode.last_activity,
        });
        let clients = clients.iter().map(|(uuid, last_activity, agreed)| Client {
            uuid: uuid.to_owned(),
            last_activity,
            agreed,
        });
        Self {
            rule: config.map(Rule::of),
            finished: pool.episodes().cloned().collect(),
            completed_tasks: pool.completed_tasks,
            completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
            running: running.collect(),
            clients: clients.collect(),
        }
    }

    /// Computes the view.
    pub fn view(&self) -> BatchView {
        BatchView {
            progress: self.rule.map(|rule| self.progress(rule)).unwrap_or_default(),
            groups: self.groups(),
            clients: self.client_list(),
        }
    }

    /// Returns the progress for estimates; `None` without a rule.
    pub fn for_estimate(&self) -> Option<Progress> {
        let rule = self.rule?;
        let (_, done, target) = self.done(rule);
        Some(Progress {
            done,
            target,
            episodes: self.finished.len() as u64,
            episodes_target: rule.episodes,
            clients_decide: rule.asks_clients(),
        })
    }

    /// Returns the unit in which the rule counts, and in it how much there is and must be.
    fn done(&self, rule: Rule) -> (&'static str, u64, u64) {
        use CollectionMethod::{
            RolloutUntilAllClientsAgreeSyncWeight, RolloutUntilAnyClientAgreeSyncWeight,
            RolloutUntilFinishEnoughEpisodes, RolloutUntilFinishEnoughNonDummyTasks, RolloutUntilFinishEnoughTasks,
        };
        let agreed = || self.clients.iter().filter(|client| client.agreed).count() as u64;
        match rule.method {
            RolloutUntilFinishEnoughEpisodes => ("episodes", self.finished.len() as u64, rule.episodes),
            RolloutUntilFinishEnoughTasks => ("tasks", self.completed_tasks, rule.tasks),
            RolloutUntilFinishEnoughNonDummyTasks => (
                "tasks with different rewards",
                self.completed_non_dummy_tasks,
                rule.tasks,
            ),
            RolloutUntilAnyClientAgreeSyncWeight => ("clients", agreed(), 1),
            RolloutUntilAllClientsAgreeSyncWeight => ("clients", agreed(), self.clients.len().max(1) as u64),
        }
    }

    fn progress(&self, rule: Rule) -> BatchProgress {
        let (unit, done, target) = self.done(rule);
        BatchProgress {
            rule: rule.method.name().into(),
            unit: unit.into(),
            done,
            target,
            episodes: self.finished.len() as u64,
            episodes_target: rule.episodes,
            repeats: rule.repeats,
            seconds_left: None,
            reward: Distribution::of(self.finished.iter().map(|episode| episode.reward)),
        }
    }

    /// Returns the groups of finished and running train episodes, in the order in which their tasks appeared.
    fn groups(&self) -> Vec<TaskGroup> {
        let mut groups: IndexMap<&str, TaskGroup> = IndexMap::new();
        for episode in &self.finished {
            let group = groups.entry(&episode.task_id).or_default();
            group.episodes.push(GroupEpisode {
                episode_uuid: episode.episode_uuid.clone(),
                client_uuid: episode.client_uuid.clone(),
                reward: episode.reward,
            });
        }
        let running = self.running.iter().filter(|episode| episode.kind == EpisodeType::Train);
        for episode in running.filter(|episode| !episode.task_id.is_empty()) {
            groups.entry(&episode.task_id).or_default().running += 1;
        }
        let complete = |(task_id, group): (&str, TaskGroup)| TaskGroup {
            task_id: task_id.to_owned(),
            has_signal: group
                .episodes
                .iter()
                .any(|episode| episode.reward != group.episodes[0].reward),
            ..group
        };
        groups.into_iter().take(GROUPS).map(complete).collect()
    }

    /// Returns the active clients, and those that run an episode but have not ended one yet.
    fn client_list(&self) -> Vec<ClientInfo> {
        let mut list: IndexMap<&str, ClientInfo> = IndexMap::new();
        for active in &self.clients {
            let client = list.entry(&active.uuid).or_default();
            (client.last_activity, client.agreed) = (active.last_activity, active.agreed);
        }
        for episode in &self.running {
            let client = list.entry(&episode.client_uuid).or_default();
            client.running += 1;
            client.last_activity = client.last_activity.max(episode.last_activity);
        }
        let mut finished: HashMap<&str, u64> = HashMap::new();
        for episode in &self.finished {
            *finished.entry(&episode.client_uuid).or_default() += 1;
        }
        let complete = |(client_uuid, client): (&str, ClientInfo)| ClientInfo {
            client_uuid: client_uuid.to_owned(),
            finished: finished.get(client_uuid).copied().unwrap_or(0),
            ..client
        };
        list.into_iter().take(CLIENTS).map(complete).collect()
    }
}

impl Rule {
    fn of(config: &Ajet) -> Self {
        Self {
            method: config.swarm_mode_sample_collection_method,
            episodes: config.episodes_per_batch() as u64,
            tasks: config.data.train_batch_size as u64,
            repeats: config.rollout.num_repeat as u64,
        }
    }

    fn asks_clients(self) -> bool {
        matches!(
            self.method,
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
                | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight
        )
    }
}

/// Maximum number of listed clients.
const CLIENTS: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::engine::{PoolSnapshot, PooledEpisode};
    use crate::server::swarm::episodes::Claim;

    fn pool(episodes: &[(&str, f64)]) -> PoolView {
        let pooled = |(number, (task, reward)): (usize, &(&str, f64))| PooledEpisode {
            entered: number as u64 + 1,
            episode_uuid: format!("e{number}"),
            task_id: (*task).into(),
            client_uuid: "a".into(),
            reward: *reward,
        };
        let mut pool = PoolView::default();
        pool.replace(PoolSnapshot {
            episodes: episodes.iter().enumerate().map(pooled).collect(),
            completed_tasks: 2,
            completed_non_dummy_tasks: 1,
            ..PoolSnapshot::default()
        });
        pool
    }

    #[test]
    fn each_rule_counts_its_own_unit() {
        use CollectionMethod::*;
        let pool = pool(&[("t", 0.0), ("t", 1.0), ("u", 1.0)]);
        let mut clients = ActiveClients::default();
        for client in ["a", "b"] {
            clients.enter(client, 0.0);
        }
        clients.agree("a");
        for (method, unit, done, target) in [
            (RolloutUntilFinishEnoughEpisodes, "episodes", 3, 128),
            (RolloutUntilFinishEnoughTasks, "tasks", 2, 32),
            (
                RolloutUntilFinishEnoughNonDummyTasks,
                "tasks with different rewards",
                1,
                32,
            ),
            (RolloutUntilAnyClientAgreeSyncWeight, "clients", 1, 1),
            (RolloutUntilAllClientsAgreeSyncWeight, "clients", 1, 2),
        ] {
            let config = Ajet {
                swarm_mode_sample_collection_method: method,
                ..Ajet::default()
            };
            let records = BatchRecords::new(Some(&config), &pool, &Registry::default(), &clients);
            let view = records.view().progress;
            let estimate = records.for_estimate().unwrap();
            assert_eq!((estimate.done, estimate.clients_decide), (done, unit == "clients"));
            assert_eq!((view.unit.as_str(), view.done, view.target), (unit, done, target));
            assert_eq!(
                (view.episodes, view.episodes_target, view.reward.unwrap().count),
                (3, 128, 3)
            );
        }
    }

    #[test]
    fn groups_have_finished_and_running_episodes_and_a_mark_for_rewards_that_differ() {
        let pool = pool(&[("t", 0.0), ("u", 1.0), ("t", 1.0), ("u", 1.0)]);
        let mut episodes = Registry::default();
        for (task, client) in [("u", "a"), ("new", "b"), ("", "b")] {
            let claim = Claim {
                client_uuid: client.into(),
                kind: EpisodeType::Train,
                discard_timeout: 9.0,
                task_id: task.into(),
                global_step: 1,
            };
            episodes.claim(claim, 9, 3.0).unwrap();
        }
        let mut clients = ActiveClients::default();
        clients.enter("a", 1.0);
        let view = BatchRecords::new(None, &pool, &episodes, &clients).view();
        let groups = view.groups.iter();
        let groups: Vec<_> = groups
            .map(|g| (g.task_id.as_str(), g.episodes.len(), g.running, g.has_signal))
            .collect();
        assert_eq!(groups, [("t", 2, 0, true), ("u", 2, 1, false), ("new", 0, 1, false)]);
        let clients = view.clients.iter();
        let clients: Vec<_> = clients
            .map(|c| (c.client_uuid.as_str(), c.running, c.finished, c.last_activity))
            .collect();
        assert_eq!(clients, [("a", 1, 4, 3.0), ("b", 2, 0, 3.0)]);
    }
    #[test]
    #[ignore = "measures; run it alone with --nocapture"]
    fn records_and_view_of_a_busy_server() {
        let tasks: Vec<String> = (0..512).map(|number| format!("task-{number}")).collect();
        let finished: Vec<_> = (0..4096)
            .map(|at| (tasks[at % 512].as_str(), (at % 7) as f64))
            .collect();
        let (pool, mut episodes) = (pool(&finished), Registry::default());
        for number in 0..2000 {
            let claim = Claim {
                client_uuid: format!("2f1c9c0e-0000-4000-8000-{:012}", number % 8),
                kind: EpisodeType::Train,
                discard_timeout: 240.0,
                task_id: tasks[number % 512].clone(),
                global_step: 1,
            };
            episodes.claim(claim, 5000, 3.0).unwrap();
        }
        for _ in 0..3 {
            let begun = std::time::Instant::now();
            let records = BatchRecords::new(Some(&Ajet::default()), &pool, &episodes, &ActiveClients::default());
            let (copied, begun) = (begun.elapsed(), std::time::Instant::now());
            assert_eq!(records.view().groups.len(), GROUPS);
            crate::note!("copied in {copied:?}, computed in {:?}", begun.elapsed());
        }
    }
}
