//! The batch as the status feed shows it: progress, groups and clients.

use std::collections::HashMap;

use indexmap::IndexMap;

use super::time_left::Progress;
use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::status::{BatchProgress, ClientInfo, Distribution, GROUPS, GroupEpisode, TaskGroup};
use crate::protocol::swarm::EpisodeType;
use crate::server::swarm::clients::ActiveClients;
use crate::server::swarm::episodes::Registry;
use crate::server::swarm::pool_view::PoolView;

/// What a batch showed when it was closed; shown until its update is done.
#[derive(Clone, Debug, Default)]
pub struct BatchView {
    /// Progress, without an estimate of the time left.
    pub progress: BatchProgress,
    /// Groups.
    pub groups: Vec<TaskGroup>,
    /// Clients.
    pub clients: Vec<ClientInfo>,
}

impl BatchView {
    /// Shows the batch of these records.
    pub fn new(config: Option<&Ajet>, pool: &PoolView, episodes: &Registry, clients: &ActiveClients) -> Self {
        Self {
            progress: config.map(|config| progress(config, pool, clients)).unwrap_or_default(),
            groups: groups(pool, episodes),
            clients: client_list(pool, episodes, clients),
        }
    }

    /// Returns the progress for estimates.
    pub fn for_estimate(&self, method: CollectionMethod) -> Progress {
        Progress {
            done: self.progress.done,
            target: self.progress.target,
            episodes: self.progress.episodes,
            episodes_target: self.progress.episodes_target,
            clients_decide: asks_clients(method),
        }
    }
}

fn asks_clients(method: CollectionMethod) -> bool {
    matches!(
        method,
        CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
            | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight
    )
}

fn progress(config: &Ajet, pool: &PoolView, clients: &ActiveClients) -> BatchProgress {
    use CollectionMethod::{
        RolloutUntilAllClientsAgreeSyncWeight, RolloutUntilAnyClientAgreeSyncWeight, RolloutUntilFinishEnoughEpisodes,
        RolloutUntilFinishEnoughNonDummyTasks, RolloutUntilFinishEnoughTasks,
    };
    let method = config.swarm_mode_sample_collection_method;
    let (episodes, episodes_target) = (pool.episodes().len() as u64, config.episodes_per_batch() as u64);
    let tasks_target = config.data.train_batch_size as u64;
    let agreed = || clients.iter().filter(|(_, _, agreed)| *agreed).count() as u64;
    let (unit, done, target) = match method {
        RolloutUntilFinishEnoughEpisodes => ("episodes", episodes, episodes_target),
        RolloutUntilFinishEnoughTasks => ("tasks", pool.completed_tasks, tasks_target),
        RolloutUntilFinishEnoughNonDummyTasks => (
            "tasks with different rewards",
            pool.completed_non_dummy_tasks,
            tasks_target,
        ),
        RolloutUntilAnyClientAgreeSyncWeight => ("clients", agreed(), 1),
        RolloutUntilAllClientsAgreeSyncWeight => ("clients", agreed(), clients.iter().count().max(1) as u64),
    };
    BatchProgress {
        rule: method.name().into(),
        unit: unit.into(),
        done,
        target,
        episodes,
        episodes_target,
        repeats: config.rollout.num_repeat as u64,
        seconds_left: None,
        reward: Distribution::of(pool.episodes().map(|episode| episode.reward)),
    }
}

/// Returns the groups of finished and running train episodes, in the order in which their tasks appeared.
fn groups(pool: &PoolView, episodes: &Registry) -> Vec<TaskGroup> {
    let mut groups: IndexMap<&str, TaskGroup> = IndexMap::new();
    for episode in pool.episodes() {
        let group = groups.entry(&episode.task_id).or_default();
        group.episodes.push(GroupEpisode {
            episode_uuid: episode.episode_uuid.clone(),
            client_uuid: episode.client_uuid.clone(),
            reward: episode.reward,
        });
    }
    let running = episodes.iter().filter(|episode| episode.kind == EpisodeType::Train);
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
fn client_list(pool: &PoolView, episodes: &Registry, clients: &ActiveClients) -> Vec<ClientInfo> {
    let mut list: IndexMap<&str, ClientInfo> = IndexMap::new();
    for (client_uuid, last_activity, agreed) in clients.iter() {
        let client = list.entry(client_uuid).or_default();
        (client.last_activity, client.agreed) = (last_activity, agreed);
    }
    for episode in episodes.iter() {
        let client = list.entry(&episode.client_uuid).or_default();
        client.running += 1;
        client.last_activity = client.last_activity.max(episode.last_activity);
    }
    let mut finished: HashMap<&str, u64> = HashMap::new();
    for episode in pool.episodes() {
        *finished.entry(&episode.client_uuid).or_default() += 1;
    }
    let complete = |(client_uuid, client): (&str, ClientInfo)| ClientInfo {
        client_uuid: client_uuid.to_owned(),
        finished: finished.get(client_uuid).copied().unwrap_or(0),
        ..client
    };
    list.into_iter().take(CLIENTS).map(complete).collect()
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
            let view = BatchView::new(Some(&config), &pool, &Registry::default(), &clients).progress;
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
        let view = BatchView::new(None, &pool, &episodes, &clients);
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
}
