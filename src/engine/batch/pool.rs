//! The sample pool: the finished train episodes of one batch, and the rule that decides when the batch is full.
//!
//! Pure: no clock, no I/O, no model. The engine stores an episode's rows as the payload `T`; the fake engine in tests
//! has none.
//!
//! A *task* is all episodes of the batch with one `task_id`. With B = `data.train_batch_size` and N =
//! `rollout.num_repeat`, a task is *completed* when it has at least N episodes, and *non-dummy* when its rewards also
//! differ.

use indexmap::IndexMap;

use crate::config::schema::{Ajet, CollectionMethod};
use crate::protocol::engine::{PoolChange, PoolSnapshot, PooledEpisode};

/// Maximum relative difference of equal rewards, so that floating-point noise does not become a training signal.
const EQUAL_REWARDS: f64 = 1e-6;

/// Returns whether the rewards of a group differ by more than floating-point noise.
pub fn rewards_differ(rewards: impl IntoIterator<Item = f64>) -> bool {
    let (min, max) = rewards
        .into_iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), r| (lo.min(r), hi.max(r)));
    min < max && max - min > EQUAL_REWARDS * min.abs().max(max.abs())
}

/// Rule that decides when a batch is full, and the maximum size of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRule {
    /// Collection method.
    pub method: CollectionMethod,
    /// B: number of tasks in a batch.
    pub batch_size: usize,
    /// N: number of episodes per task.
    pub num_repeat: usize,
    /// Maximum number of finished episodes kept.
    pub max_cached_episodes: usize,
}

impl StopRule {
    /// Returns the rule of a configuration.
    pub fn new(config: &Ajet) -> Self {
        Self {
            method: config.swarm_mode_sample_collection_method,
            batch_size: config.data.train_batch_size,
            num_repeat: config.rollout.num_repeat,
            max_cached_episodes: usize::try_from(config.swarm_mode_sample_collection_max_cached_episodes)
                .unwrap_or(usize::MAX),
        }
    }

    /// Returns whether the clients, not a count, end the batch.
    pub fn closed_by_clients(&self) -> bool {
        matches!(
            self.method,
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
                | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight
        )
    }

    /// Returns whether these counts fill the batch.
    fn holds(&self, counts: &Counts) -> bool {
        match self.method {
            CollectionMethod::RolloutUntilFinishEnoughEpisodes => {
                counts.episodes >= self.batch_size.saturating_mul(self.num_repeat)
            }
            CollectionMethod::RolloutUntilFinishEnoughTasks => counts.completed >= self.batch_size,
            CollectionMethod::RolloutUntilFinishEnoughNonDummyTasks => counts.non_dummy >= self.batch_size,
            CollectionMethod::RolloutUntilAnyClientAgreeSyncWeight
            | CollectionMethod::RolloutUntilAllClientsAgreeSyncWeight => false,
        }
    }
}

/// Counts used by the stop rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    episodes: usize,
    completed: usize,
    non_dummy: usize,
}

/// Episodes of one task, as indices into the pool.
struct Task {
    members: Vec<usize>,
    completed: bool,
    differs: bool,
}

/// Episodes for an update, in canonical order (by task, then episode), and those that the collection method leaves out.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch<T> {
    /// Episodes to train on.
    pub trained: Vec<(PooledEpisode, T)>,
    /// Episodes of tasks without a training signal, if the method leaves them out.
    pub left_out: Vec<PooledEpisode>,
}

/// Finished train episodes of the batch.
#[derive(Clone, Debug)]
pub struct Pool<T = ()> {
    rule: StopRule,
    global_step: u64,
    revision: u64,
    full: bool,
    episodes: Vec<(PooledEpisode, T)>,
}

impl<T> Pool<T> {
    /// Creates an empty pool for the batch of `global_step`.
    pub fn new(rule: StopRule, global_step: u64) -> Self {
        Self {
            rule,
            global_step,
            revision: 0,
            full: false,
            episodes: Vec::new(),
        }
    }

    /// Returns the step of the batch.
    pub fn global_step(&self) -> u64 {
        self.global_step
    }

    /// Returns whether the batch is full. A full batch stays full until [`Pool::advance`].
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the payload of an episode in the pool.
    pub fn get(&self, episode_uuid: &str) -> Option<&T> {
        let found = self.episodes.iter().find(|(e, _)| e.episode_uuid == episode_uuid);
        found.map(|(_, payload)| payload)
    }

    /// Adds a finished episode and returns the episodes dropped to keep the pool within its limit. An episode already
    /// in the pool changes nothing.
    pub fn push(&mut self, mut episode: PooledEpisode, payload: T) -> Vec<PooledEpisode> {
        if self.get(&episode.episode_uuid).is_some() {
            return Vec::new();
        }
        self.revision += 1;
        episode.entered = self.revision;
        let newest_task = episode.task_id.clone();
        self.episodes.push((episode, payload));
        self.full |= self.rule.holds(&self.counts());

        let mut dropped = Vec::new();
        while self.episodes.len() > self.rule.max_cached_episodes {
            self.drop_least_useful(&newest_task, &mut dropped);
        }
        dropped
    }

    /// Ends the batch by agreement of the clients. Returns whether the collection method allows it.
    pub fn close(&mut self) -> bool {
        if self.rule.closed_by_clients() && !self.full {
            self.full = true;
            self.revision += 1;
        }
        self.rule.closed_by_clients()
    }

    /// Empties the pool for the batch of `global_step`.
    pub fn advance(&mut self, global_step: u64) {
        self.episodes.clear();
        self.full = false;
        self.global_step = global_step;
        self.revision += 1;
    }

    /// Returns the change made by a call: this episode, if it is in the pool, and the removed ones.
    pub fn change(&self, episode_uuid: &str, removed: &[PooledEpisode]) -> PoolChange {
        let counts = self.counts();
        let found = self.episodes.iter().find(|(e, _)| e.episode_uuid == episode_uuid);
        PoolChange {
            revision: self.revision,
            global_step: self.global_step,
            added: found.map(|(e, _)| e.clone()),
            removed: removed.iter().map(|e| e.episode_uuid.clone()).collect(),
            completed_tasks: counts.completed as u64,
            completed_non_dummy_tasks: counts.non_dummy as u64,
            full: self.full,
        }
    }

    /// Returns a snapshot of the pool.
    pub fn snapshot(&self) -> PoolSnapshot {
        let counts = self.counts();
        PoolSnapshot {
            revision: self.revision,
            global_step: self.global_step,
            episodes: self.episodes.iter().map(|(e, _)| e.clone()).collect(),
            completed_tasks: counts.completed as u64,
            completed_non_dummy_tasks: counts.non_dummy as u64,
            full: self.full,
        }
    }

    /// Returns the episodes to train on. Only `rollout_until_finish_enough_non_dummy_tasks` leaves some out: tasks with
    /// fewer than two episodes or with equal rewards; an incomplete task with different rewards stays.
    pub fn batch(&self) -> Batch<T>
    where
        T: Clone,
    {
        let filter = self.rule.method == CollectionMethod::RolloutUntilFinishEnoughNonDummyTasks;
        let mut batch = Batch {
            trained: Vec::new(),
            left_out: Vec::new(),
        };
        for task in self.tasks().values() {
            for &i in &task.members {
                let (episode, payload) = &self.episodes[i];
                if filter && !task.differs {
                    batch.left_out.push(episode.clone());
                } else {
                    batch.trained.push((episode.clone(), payload.clone()));
                }
            }
        }
        batch.trained.sort_by(|(a, _), (b, _)| canonical(a, b));
        batch.left_out.sort_by(canonical);
        batch
    }

    /// Returns the tasks in the order of their first episode.
    fn tasks(&self) -> IndexMap<&str, Task> {
        let mut members: IndexMap<&str, Vec<usize>> = IndexMap::new();
        for (i, (episode, _)) in self.episodes.iter().enumerate() {
            members.entry(&episode.task_id).or_default().push(i);
        }
        let task = |members: Vec<usize>| Task {
            completed: members.len() >= self.rule.num_repeat,
            differs: rewards_differ(members.iter().map(|&i| self.episodes[i].0.reward)),
            members,
        };
        members.into_iter().map(|(id, members)| (id, task(members))).collect()
    }

    fn counts(&self) -> Counts {
        self.tasks().values().fold(Counts::default(), |c, task| Counts {
            episodes: c.episodes + task.members.len(),
            completed: c.completed + usize::from(task.completed),
            non_dummy: c.non_dummy + usize::from(task.completed && task.differs),
        })
    }

    /// Removes the least useful task: the oldest incomplete one, else the oldest with equal rewards, else the oldest.
    /// The task of the newest episode is spared while there is another; if it is the only one, just its oldest episode
    /// is removed.
    fn drop_least_useful(&mut self, newest_task: &str, dropped: &mut Vec<PooledEpisode>) {
        let tasks = self.tasks();
        let others = || tasks.iter().filter(|(id, _)| **id != newest_task);
        let victim = others()
            .find(|(_, t)| !t.completed)
            .or_else(|| others().find(|(_, t)| !t.differs))
            .or_else(|| others().next())
            .map(|(id, _)| (*id).to_owned());
        match victim {
            Some(id) => {
                let gone = self.episodes.extract_if(.., |(e, _)| e.task_id == id);
                dropped.extend(gone.map(|(e, _)| e));
            }
            None => dropped.push(self.episodes.remove(0).0),
        }
    }
}

/// Compares episodes in training order, which does not depend on the order in which they ended.
fn canonical(a: &PooledEpisode, b: &PooledEpisode) -> std::cmp::Ordering {
    (&a.task_id, &a.episode_uuid).cmp(&(&b.task_id, &b.episode_uuid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use CollectionMethod::*;
    use proptest::prelude::*;

    fn rule(method: CollectionMethod) -> StopRule {
        StopRule {
            method,
            batch_size: 2,
            num_repeat: 2,
            max_cached_episodes: 100,
        }
    }

    fn episode(uuid: &str, task: &str, reward: f64) -> PooledEpisode {
        PooledEpisode {
            episode_uuid: uuid.into(),
            task_id: task.into(),
            client_uuid: "client".into(),
            reward,
            ..PooledEpisode::default()
        }
    }

    /// A pool with one episode for each `(task, reward)`, named e0, e1, …
    fn filled(rule: StopRule, episodes: &[(&str, f64)]) -> Pool {
        let mut pool = Pool::new(rule, 1);
        for (i, (task, reward)) in episodes.iter().enumerate() {
            pool.push(episode(&format!("e{i}"), task, *reward), ());
        }
        pool
    }

    #[test]
    fn rewards_differ_by_more_than_a_relative_millionth() {
        for (rewards, differ) in [
            (vec![], false),
            (vec![1.0], false),
            (vec![1.0, 1.0], false),
            (vec![0.0, -0.0], false),
            (vec![1.0, 1.0 + 9e-7], false),
            (vec![1e9, 1e9 + 100.0], false),
            (vec![-1.0, -1.0 - 9e-7], false),
            (vec![1.0, 1.0 + 2e-6], true),
            (vec![0.0, 1e-12], true),
            (vec![0.1 + 0.2, 0.3], false),
            (vec![1.0, 1.0, -1.0], true),
        ] {
            assert_eq!(rewards_differ(rewards.iter().copied()), differ, "{rewards:?}");
        }
    }

    #[test]
    fn each_counting_rule_fills_the_batch_at_its_own_count() {
        let two_of_a = [("a", 0.0), ("a", 1.0)];
        let a_and_dummy_b = [("a", 0.0), ("a", 1.0), ("b", 1.0), ("b", 1.0)];
        let four_tasks_of_one = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("d", 0.0)];
        let two_with_signal = [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)];
        for (method, episodes, full) in [
            (RolloutUntilFinishEnoughEpisodes, &two_of_a[..], false),
            (RolloutUntilFinishEnoughEpisodes, &four_tasks_of_one[..], true),
            (RolloutUntilFinishEnoughTasks, &four_tasks_of_one[..], false),
            (RolloutUntilFinishEnoughTasks, &two_of_a[..], false),
            (RolloutUntilFinishEnoughTasks, &a_and_dummy_b[..], true),
            (RolloutUntilFinishEnoughNonDummyTasks, &a_and_dummy_b[..], false),
            (RolloutUntilFinishEnoughNonDummyTasks, &two_with_signal[..], true),
            (RolloutUntilAnyClientAgreeSyncWeight, &two_with_signal[..], false),
            (RolloutUntilAllClientsAgreeSyncWeight, &two_with_signal[..], false),
        ] {
            let pool = filled(rule(method), episodes);
            assert_eq!(pool.is_full(), full, "{method:?} {episodes:?}");
            assert_eq!(pool.snapshot().full, full);
        }
    }

    #[test]
    fn clients_close_a_batch_only_under_the_agree_methods() {
        for (method, closes) in [
            (RolloutUntilAnyClientAgreeSyncWeight, true),
            (RolloutUntilAllClientsAgreeSyncWeight, true),
            (RolloutUntilFinishEnoughTasks, false),
            (RolloutUntilFinishEnoughEpisodes, false),
            (RolloutUntilFinishEnoughNonDummyTasks, false),
        ] {
            let mut pool = filled(rule(method), &[("a", 1.0)]);
            assert_eq!(pool.close(), closes, "{method:?}");
            assert_eq!(pool.is_full(), closes, "{method:?}");
            pool.advance(2);
            assert!(!pool.is_full());
        }
    }

    #[test]
    fn a_snapshot_counts_tasks_and_says_whose_they_are() {
        let pool = filled(
            rule(RolloutUntilFinishEnoughTasks),
            &[("a", 0.0), ("b", 1.0), ("a", 1.0), ("b", 1.0), ("c", 0.0)],
        );
        let snapshot = pool.snapshot();
        assert_eq!((snapshot.completed_tasks, snapshot.completed_non_dummy_tasks), (2, 1));
        assert_eq!(snapshot.episodes.len(), 5);
        assert_eq!(snapshot.global_step, 1);
    }

    #[test]
    fn a_change_tells_of_one_episode_however_large_the_pool() {
        let mut bounded = rule(RolloutUntilFinishEnoughTasks);
        bounded.max_cached_episodes = 3;
        let mut pool = filled(bounded, &[("a", 0.0), ("b", 1.0), ("b", 1.0)]);
        let gone = pool.push(episode("e3", "c", 0.5), ());
        let change = pool.change("e3", &gone);
        assert_eq!((change.revision, change.global_step, change.completed_tasks), (4, 1, 1));
        assert_eq!(
            change.added.as_ref().map(|e| (e.entered, &*e.episode_uuid)),
            Some((4, "e3"))
        );
        assert_eq!(change.removed, ["e0"]);
        let nothing = pool.change("never", &[]);
        assert_eq!((nothing.added, nothing.removed.len(), nothing.revision), (None, 0, 4));
    }

    #[test]
    fn an_episode_enters_once() {
        let mut pool = filled(rule(RolloutUntilFinishEnoughTasks), &[("a", 0.0)]);
        let before = pool.snapshot();
        assert!(pool.push(episode("e0", "a", 1.0), ()).is_empty());
        assert_eq!(pool.snapshot(), before);
    }

    #[test]
    fn only_the_non_dummy_method_leaves_tasks_without_signal_out_of_the_update() {
        let episodes = [
            ("b-equal", 1.0),
            ("a-signal", 0.0),
            ("a-signal", 1.0),
            ("b-equal", 1.0),
            ("c-single", 1.0),
            ("d-incomplete", 0.0),
            ("d-incomplete", 0.5),
        ];
        let mut filtered = rule(RolloutUntilFinishEnoughNonDummyTasks);
        filtered.num_repeat = 3;
        let batch = filled(filtered, &episodes).batch();
        let names = |episodes: &[PooledEpisode]| episodes.iter().map(|e| e.episode_uuid.clone()).collect::<Vec<_>>();
        let trained: Vec<_> = batch.trained.iter().map(|(e, _)| e.clone()).collect();
        assert_eq!(names(&trained), ["e1", "e2", "e5", "e6"]);
        assert_eq!(names(&batch.left_out), ["e0", "e3", "e4"]);

        let batch = filled(rule(RolloutUntilFinishEnoughTasks), &episodes).batch();
        assert_eq!(batch.trained.len(), 7);
        assert!(batch.left_out.is_empty());
    }

    #[test]
    fn over_the_bound_the_task_that_helps_least_goes_first() {
        let mut bounded = rule(RolloutUntilFinishEnoughNonDummyTasks);
        bounded.max_cached_episodes = 5;
        let mut pool = filled(
            bounded,
            &[
                ("signal", 0.0),
                ("signal", 1.0),
                ("dummy", 1.0),
                ("dummy", 1.0),
                ("incomplete", 0.0),
            ],
        );
        let mut push = |uuid: &str, task: &str| -> Vec<String> {
            let dropped = pool.push(episode(uuid, task, 0.0), ());
            dropped.into_iter().map(|e| e.task_id).collect()
        };
        assert_eq!(push("n1", "new"), ["incomplete"]);
        assert_eq!(push("n2", "other"), ["new"]);
        assert_eq!(push("n3", "other"), ["dummy", "dummy"]);
        assert_eq!(push("n4", "signal"), [""; 0]);
        assert_eq!(push("n5", "signal"), ["other", "other"]);
        assert_eq!(push("n6", "signal"), [""; 0]);
        assert_eq!(
            push("n7", "signal"),
            ["signal"],
            "the newest task gives up its oldest episode"
        );
    }

    #[test]
    fn a_full_batch_stays_full_when_late_episodes_push_others_out() {
        let mut bounded = rule(RolloutUntilFinishEnoughEpisodes);
        bounded.max_cached_episodes = 4;
        let mut pool = filled(bounded, &[("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)]);
        assert!(pool.is_full());
        assert_eq!(pool.push(episode("late", "c", 0.0), ()).len(), 2);
        assert!(pool.is_full());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_doubled_or_unbounded(
            episodes in prop::collection::vec((0u8..6, 0u8..3, 0u8..30), 0..60),
            cap in 1usize..12,
            method in prop::sample::select(vec![
                RolloutUntilFinishEnoughEpisodes,
                RolloutUntilFinishEnoughTasks,
                RolloutUntilFinishEnoughNonDummyTasks,
                RolloutUntilAnyClientAgreeSyncWeight,
            ]),
        ) {
            let mut pool = Pool::new(StopRule { max_cached_episodes: cap, ..rule(method) }, 1);
            let mut kept = std::collections::BTreeSet::new();
            let (mut revision, mut was_full) = (0, false);
            for (task, reward, uuid) in episodes {
                let e = episode(&uuid.to_string(), &task.to_string(), f64::from(reward));
                let new = kept.insert(e.episode_uuid.clone());
                for gone in pool.push(e, ()) {
                    prop_assert!(kept.remove(&gone.episode_uuid));
                }
                let snapshot = pool.snapshot();
                prop_assert!(snapshot.episodes.len() <= cap);
                prop_assert_eq!(snapshot.revision, revision + u64::from(new));
                prop_assert!(snapshot.full || !was_full, "full is taken back");
                prop_assert!(snapshot.completed_non_dummy_tasks <= snapshot.completed_tasks);
                (revision, was_full) = (snapshot.revision, snapshot.full);
            }
            let held: std::collections::BTreeSet<_> =
                pool.snapshot().episodes.into_iter().map(|e| e.episode_uuid).collect();
            prop_assert_eq!(&held, &kept);
            let batch = pool.batch();
            prop_assert_eq!(batch.trained.len() + batch.left_out.len(), kept.len());
            prop_assert!(batch.trained.is_sorted_by(|(a, _), (b, _)| canonical(a, b).is_le()));
        }
    }
}
