//! Decides when a client that shares a batch must not begin a new task: a pure rule on the pool.

use std::collections::{HashSet, VecDeque};

use crate::protocol::swarm::{PoolInformation, ThrottlePolicy};

/// The only collection method that supports a throttle.
pub const METHOD: &str = "rollout_until_finish_enough_tasks";

/// Returns whether `client` must wait before it begins an episode of `policy.current_task_id`.
///
/// A *new* task waits while the client's own distinct tasks in the pool (finished and running, except those that
/// another client also works on) number at least `expected_batch_size × ratio`. Never delayed are a task that the
/// client has begun before (`begun`), a task in the pool from any client, and any task while nothing runs and fewer
/// than `expected_batch_size` tasks are completed.
pub fn must_wait(policy: &ThrottlePolicy, client: &str, pool: &PoolInformation, begun: &BegunTasks) -> bool {
    let task = policy.current_task_id.as_str();
    if begun.contains(task) || workers_of(pool).any(|(known, _)| known == task) {
        return false;
    }
    let nothing_runs = pool
        .running_episode_details
        .as_ref()
        .is_none_or(|running| running.is_empty());
    if nothing_runs && pool.completed_tasks < policy.expected_batch_size {
        return false;
    }
    let (mut own, mut shared) = (HashSet::new(), HashSet::new());
    for (task, worker) in workers_of(pool) {
        match worker == client {
            true => own.insert(task),
            false => shared.insert(task),
        };
    }
    own.difference(&shared).count() as f64 >= policy.expected_batch_size as f64 * policy.ratio
}

/// Iterates over all (task, client) pairs in the pool, finished or running.
fn workers_of(pool: &PoolInformation) -> impl Iterator<Item = (&str, &str)> {
    let finished = pool
        .completed_tasks_client_uuids
        .iter()
        .flat_map(|(task, clients)| clients.iter().map(move |client| (task.as_str(), client.as_str())));
    let running = pool
        .running_episode_details
        .iter()
        .flat_map(|running| running.values())
        .filter(|episode| !episode.optional_task_id.is_empty())
        .map(|episode| (episode.optional_task_id.as_str(), episode.client_uuid.as_str()));
    finished.chain(running)
}

/// Tasks that a client began recently.
#[derive(Debug, Default)]
pub struct BegunTasks {
    order: VecDeque<String>,
    known: HashSet<String>,
}

impl BegunTasks {
    /// Adds a task, and removes the oldest beyond 3·B·N.
    pub fn remember(&mut self, task: &str, policy: &ThrottlePolicy) {
        if !self.known.insert(task.to_string()) {
            return;
        }
        self.order.push_back(task.to_string());
        let most = (3 * policy.expected_batch_size * policy.expected_num_repeat).max(1) as usize;
        while self.order.len() > most {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }

    fn contains(&self, task: &str) -> bool {
        self.known.contains(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::swarm::RunningEpisodeDetail;

    /// A pool with finished and running (task, client) pairs.
    fn pool(completed_tasks: u64, finished: &[(&str, &str)], running: &[(&str, &str)]) -> PoolInformation {
        let mut pool = PoolInformation {
            completed_tasks,
            ..PoolInformation::default()
        };
        for (task, client) in finished {
            let clients = pool.completed_tasks_client_uuids.entry(task.to_string()).or_default();
            clients.push(client.to_string());
        }
        let details = running.iter().enumerate().map(|(i, (task, client))| {
            let detail = RunningEpisodeDetail {
                client_uuid: client.to_string(),
                optional_task_id: task.to_string(),
                ..RunningEpisodeDetail::default()
            };
            (i.to_string(), detail)
        });
        pool.running_episode_details = (!running.is_empty()).then(|| details.collect());
        pool
    }

    #[test]
    fn the_rule_by_table() {
        let policy = |task: &str| ThrottlePolicy {
            ratio: 0.5,
            expected_batch_size: 4,
            expected_num_repeat: 2,
            current_task_id: task.into(),
        };
        let two_of_ours = [("a", "me"), ("b", "me")];
        for (what, pool, task, waits) in [
            ("an empty pool", pool(0, &[], &[]), "z", false),
            ("share used up by running", pool(0, &[], &two_of_ours), "z", true),
            (
                "share used up by finished and running",
                pool(1, &two_of_ours[..1], &two_of_ours[1..]),
                "z",
                true,
            ),
            (
                "several episodes of one task count once",
                pool(0, &[("a", "me")], &[("a", "me")]),
                "z",
                false,
            ),
            (
                "a task that another works on too",
                pool(0, &[("b", "you")], &two_of_ours),
                "z",
                false,
            ),
            (
                "others' tasks are not ours",
                pool(0, &[], &[("a", "you"), ("b", "you"), ("c", "me")]),
                "z",
                false,
            ),
            ("a task of ours in the pool", pool(0, &[], &two_of_ours), "a", false),
            (
                "a task of another in the pool",
                pool(0, &[("c", "you")], &two_of_ours),
                "c",
                false,
            ),
            ("a task begun before", pool(0, &[], &two_of_ours), "begun", false),
            (
                "nothing runs, batch not complete",
                pool(3, &two_of_ours, &[]),
                "z",
                false,
            ),
            ("nothing runs, batch complete", pool(4, &two_of_ours, &[]), "z", true),
        ] {
            let mut begun = BegunTasks::default();
            begun.remember("begun", &policy("begun"));
            assert_eq!(must_wait(&policy(task), "me", &pool, &begun), waits, "{what}");
        }
    }

    #[test]
    fn begun_tasks_are_remembered_up_to_three_batches_of_episodes() {
        let policy = ThrottlePolicy {
            ratio: 1.0,
            expected_batch_size: 1,
            expected_num_repeat: 1,
            current_task_id: String::new(),
        };
        let mut begun = BegunTasks::default();
        for task in ["a", "b", "a", "c", "d"] {
            begun.remember(task, &policy);
        }
        assert_eq!(
            ["a", "b", "c", "d"].map(|task| begun.contains(task)),
            [false, true, true, true]
        );
    }
}
