//! The control plane's copy of the engine's pool, assembled from the changes in each answer.
//!
//! Answers of concurrent calls arrive in any order. Each episode has the revision at which it entered, and the counts
//! of the highest revision hold, so the order does not matter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::protocol::engine::{PoolChange, PoolSnapshot, PooledEpisode};

/// The control plane's copy of the engine's pool.
#[derive(Debug, Default)]
pub struct PoolView {
    revision: u64,
    /// Revision of the last complete snapshot, which includes or has dropped every earlier episode.
    whole_at: u64,
    global_step: u64,
    /// Episodes by the revision at which they entered.
    episodes: BTreeMap<u64, Arc<PooledEpisode>>,
    /// Episode id → revision.
    entered: HashMap<String, u64>,
    /// Episodes that left before the answer with their entry arrived.
    left_early: HashSet<String>,
    /// Tasks with at least N episodes.
    pub completed_tasks: u64,
    /// Completed tasks whose rewards differ.
    pub completed_non_dummy_tasks: u64,
    full: bool,
}

impl PoolView {
    /// Returns an empty pool without a step, which accepts only newer changes.
    pub fn emptied(&self) -> Self {
        Self {
            revision: self.revision,
            ..Self::default()
        }
    }

    /// Takes a complete snapshot, unless the known state is newer.
    pub fn replace(&mut self, pool: PoolSnapshot) {
        if pool.revision < self.revision {
            return;
        }
        *self = Self {
            revision: pool.revision,
            whole_at: pool.revision,
            global_step: pool.global_step,
            completed_tasks: pool.completed_tasks,
            completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
            full: pool.full,
            ..Self::default()
        };
        for episode in pool.episodes {
            self.add(episode);
        }
    }

    /// Applies a change of the current step.
    pub fn apply(&mut self, change: PoolChange) {
        if change.global_step != self.global_step {
            return;
        }
        for uuid in change.removed {
            match self.entered.remove(&uuid) {
                Some(entered) => {
                    self.episodes.remove(&entered);
                }
                None => {
                    self.left_early.insert(uuid);
                }
            }
        }
        if let Some(episode) = change.added
            && !self.left_early.remove(&episode.episode_uuid)
            && episode.entered > self.whole_at
        {
            self.add(episode);
        }
        if change.revision >= self.revision {
            self.revision = change.revision;
            self.completed_tasks = change.completed_tasks;
            self.completed_non_dummy_tasks = change.completed_non_dummy_tasks;
        }
        // A full batch stays full.
        self.full |= change.full;
    }

    /// Returns the step of this batch.
    pub fn global_step(&self) -> u64 {
        self.global_step
    }

    /// Returns whether the stop rule holds.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Iterates over the finished episodes in the order in which they entered.
    pub fn episodes(&self) -> impl ExactSizeIterator<Item = &Arc<PooledEpisode>> {
        self.episodes.values()
    }

    fn add(&mut self, episode: PooledEpisode) {
        self.entered.insert(episode.episode_uuid.clone(), episode.entered);
        self.episodes.insert(episode.entered, Arc::new(episode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn episode(number: u64) -> PooledEpisode {
        PooledEpisode {
            entered: number,
            episode_uuid: format!("e{number}"),
            ..PooledEpisode::default()
        }
    }

    /// What an engine would tell of `count` ends with room for `room` episodes, and its pool afterwards.
    fn history(count: u64, room: usize) -> (Vec<PoolChange>, PoolSnapshot) {
        let mut pool = PoolSnapshot {
            global_step: 1,
            ..PoolSnapshot::default()
        };
        let mut changes = Vec::new();
        for number in 1..=count {
            pool.revision = number;
            pool.episodes.push(episode(number));
            pool.completed_tasks = number / 2;
            pool.full |= number >= 7;
            let over = pool.episodes.len().saturating_sub(room);
            let removed = pool.episodes.drain(..over).map(|e| e.episode_uuid).collect();
            changes.push(PoolChange {
                revision: number,
                global_step: 1,
                added: Some(episode(number)),
                removed,
                completed_tasks: pool.completed_tasks,
                completed_non_dummy_tasks: 0,
                full: pool.full,
            });
        }
        (changes, pool)
    }

    fn view_of_step_1() -> PoolView {
        let mut view = PoolView::default();
        view.replace(PoolSnapshot {
            global_step: 1,
            ..PoolSnapshot::default()
        });
        view
    }

    fn assert_same(view: &PoolView, pool: &PoolSnapshot) {
        assert!(view.episodes().map(|episode| &**episode).eq(&pool.episodes), "{view:?}");
        assert_eq!(view.completed_tasks, pool.completed_tasks);
        assert_eq!(view.is_full(), pool.full);
    }

    proptest! {
        #[test]
        fn answers_may_come_in_any_order(
            order in (1..20_usize).prop_flat_map(|count| Just((0..count).collect::<Vec<_>>()).prop_shuffle()),
            room in 1..8_usize,
        ) {
            let (changes, pool) = history(order.len() as u64, room);
            let mut view = view_of_step_1();
            for at in order {
                view.apply(changes[at].clone());
            }
            assert_same(&view, &pool);
            view.replace(pool.clone());
            assert_same(&view, &pool);
            for late in changes {
                view.apply(late);
            }
            assert_same(&view, &pool);
        }
    }

    #[test]
    fn what_is_old_or_of_another_step_changes_nothing() {
        let (changes, pool) = history(3, 9);
        let mut view = view_of_step_1();
        view.replace(pool.clone());
        view.replace(PoolSnapshot {
            global_step: 1,
            revision: 2,
            ..PoolSnapshot::default()
        });
        assert_same(&view, &pool);
        view.apply(changes[2].clone());
        assert_same(&view, &pool);
        let mut other = changes[1].clone();
        other.global_step = 2;
        other.added = Some(episode(9));
        view.apply(other);
        assert_same(&view, &pool);
        let mut emptied = view.emptied();
        emptied.replace(PoolSnapshot {
            revision: 2,
            ..pool.clone()
        });
        assert_eq!(emptied.episodes().len(), 0);
    }
}
