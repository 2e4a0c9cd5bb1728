//! State of the batch according to the server: finished and running episodes by task and client.

use std::collections::{HashMap, HashSet};

use crate::protocol::swarm::PoolInformation;

/// Episodes of a task by other clients, or by an earlier run of this job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OthersOfTask {
    pub finished: u64,
    pub running: u64,
}

impl OthersOfTask {
    pub fn begun(self) -> u64 {
        self.finished + self.running
    }
}

/// Snapshot of the sample pool, without the episodes of this client.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchView {
    /// Place of the model whose server it is of.
    pub model: usize,
    /// Episodes of others by task.
    pub others: HashMap<String, OthersOfTask>,
    /// Number of running episodes of others with an unknown task.
    pub nameless: u64,
    /// Number of finished episodes of all clients.
    pub finished: HashSet<String>,
    /// Number of tasks with enough episodes.
    pub completed_tasks: u64,
    /// Number of completed tasks whose rewards differ.
    pub completed_non_dummy_tasks: u64,
}

impl BatchView {
    /// Creates a snapshot from the pool of a model's server; `is_own` recognises the episodes of this client, named
    /// `client`.
    pub fn new(model: usize, pool: &PoolInformation, client: &str, is_own: impl Fn(&str) -> bool) -> Self {
        let mut view = Self {
            model,
            completed_tasks: pool.completed_tasks,
            completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
            ..Self::default()
        };
        for (task, episodes) in &pool.completed_tasks_details {
            let finished = episodes.iter().filter(|uuid| !is_own(uuid)).count() as u64;
            if finished > 0 {
                view.others.entry(task.clone()).or_default().finished += finished;
            }
            view.finished.extend(episodes.iter().cloned());
        }
        for episode in pool.running_episode_details.iter().flat_map(|running| running.values()) {
            match episode.optional_task_id.as_str() {
                _ if episode.client_uuid == client => {}
                "" => view.nameless += 1,
                task => view.others.entry(task.to_owned()).or_default().running += 1,
            }
        }
        view
    }

    /// Returns whether an episode of another client runs.
    pub fn others_run(&self) -> bool {
        self.nameless > 0 || self.others.values().any(|task| task.running > 0)
    }

    /// Returns the number of finished and running episodes of others.
    pub fn begun_by_others(&self) -> u64 {
        self.nameless + self.others.values().map(|task| task.begun()).sum::<u64>()
    }

    /// Returns the others' episodes of this task.
    pub fn others_of(&self, task: &str) -> OthersOfTask {
        self.others.get(task).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::swarm::RunningEpisodeDetail;

    #[test]
    fn own_episodes_are_left_out_of_what_others_have() {
        let running = |client: &str, task: &str| RunningEpisodeDetail {
            client_uuid: client.into(),
            optional_task_id: task.into(),
            ..RunningEpisodeDetail::default()
        };
        let pool = PoolInformation {
            completed_tasks_details: [
                ("a".to_owned(), vec!["mine".to_owned(), "theirs".to_owned()]),
                ("b".to_owned(), vec!["mine too".to_owned()]),
            ]
            .into(),
            running_episode_details: Some(
                [
                    ("1".to_owned(), running("me", "a")),
                    ("2".to_owned(), running("you", "a")),
                    ("3".to_owned(), running("you", "c")),
                    ("4".to_owned(), running("you", "")),
                ]
                .into(),
            ),
            completed_tasks: 1,
            ..PoolInformation::default()
        };
        let view = BatchView::new(0, &pool, "me", |uuid| uuid.starts_with("mine"));
        let of = |finished, running| OthersOfTask { finished, running };
        assert_eq!(view.others_of("a"), of(1, 1));
        assert_eq!((view.others_of("b"), view.others_of("c")), (of(0, 0), of(0, 1)));
        assert_eq!((view.nameless, view.begun_by_others(), view.finished.len()), (1, 4, 3));
        assert!(view.others_run());
        let alone = BatchView::new(0, &pool, "you", |uuid| uuid == "theirs");
        assert_eq!(alone.others_of("a"), of(1, 1));
    }
}
