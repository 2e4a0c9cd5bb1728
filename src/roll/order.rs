//! In which order tasks are run: a pure function of seed and position, so that a run that is started again, here or on
//! another machine, continues where the training is.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Tasks by index, epoch after epoch, shuffled anew in each.
#[derive(Clone, Debug)]
pub(super) struct TaskOrder {
    tasks: usize,
    seed: u64,
    /// Tasks taken so far, over all epochs.
    position: u64,
    /// Position at which the order ends, if it does.
    end: Option<u64>,
    /// The shuffled tasks of one epoch.
    epoch: Option<(u64, Vec<usize>)>,
}

impl TaskOrder {
    /// The order of `tasks` tasks from `position` on, counted from the start of the first epoch.
    pub fn new(tasks: usize, seed: u64, position: u64, end: Option<u64>) -> Self {
        Self {
            tasks,
            seed,
            position,
            end,
            epoch: None,
        }
    }

    /// Number of tasks of an epoch.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    fn task_at(&mut self, position: u64) -> usize {
        let (epoch, place) = (position / self.tasks as u64, position % self.tasks as u64);
        if self.epoch.as_ref().is_none_or(|(shuffled, _)| *shuffled != epoch) {
            let mut tasks: Vec<usize> = (0..self.tasks).collect();
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(epoch);
            tasks.shuffle(&mut rng);
            self.epoch = Some((epoch, tasks));
        }
        self.epoch.as_ref().map_or(0, |(_, tasks)| tasks[place as usize])
    }
}

impl Iterator for TaskOrder {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.tasks == 0 || self.end.is_some_and(|end| self.position >= end) {
            return None;
        }
        self.position += 1;
        Some(self.task_at(self.position - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_every_task_once_in_an_order_of_its_own() {
        let order: Vec<_> = TaskOrder::new(20, 1, 0, Some(40)).collect();
        let (first, second) = order.split_at(20);
        assert_ne!(first, second);
        for epoch in [first, second] {
            let mut tasks = epoch.to_vec();
            tasks.sort();
            assert_eq!(tasks, (0..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_run_that_starts_later_continues_with_the_same_order() {
        let whole: Vec<_> = TaskOrder::new(7, 5, 0, None).take(30).collect();
        let resumed: Vec<_> = TaskOrder::new(7, 5, 9, None).take(21).collect();
        assert_eq!(whole[9..], resumed[..]);
        assert_ne!(whole, TaskOrder::new(7, 6, 0, None).take(30).collect::<Vec<_>>());
        assert_eq!(TaskOrder::new(7, 5, 14, Some(14)).next(), None);
        assert_eq!(TaskOrder::new(0, 5, 0, None).next(), None);
    }
}
