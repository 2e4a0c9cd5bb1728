//! Order of tasks: a pure function of seed and position, so that a restarted run, also on another machine, continues
//! where the training is.

use std::hash::{DefaultHasher, Hash, Hasher};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::job::Length;

/// Indexes of tasks, shuffled for each epoch.
#[derive(Clone, Debug)]
pub(super) struct TaskOrder {
    tasks: usize,
    seed: u64,
    /// Number of tasks taken so far in all epochs.
    position: u64,
    /// Position at which the order ends, if it does.
    end: Option<u64>,
    /// Shuffled tasks of one epoch.
    epoch: Option<(u64, Vec<usize>)>,
}

impl TaskOrder {
    /// Returns the order of `tasks` tasks from `position` on, counted from the start of the first epoch.
    pub fn new(tasks: usize, seed: u64, position: u64, end: Option<u64>) -> Self {
        Self {
            tasks,
            seed,
            position,
            end,
            epoch: None,
        }
    }

    /// Returns the number of tasks of an epoch.
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

/// From where to where the shuffled tasks are run: the training's `updates` have taken a batch each, and a job by
/// epochs ends with its last one. One that trains nothing never advances, so it always starts at the front and ends
/// after the tasks that it would have trained on.
pub(super) fn span(length: Length, abort: bool, updates: u64, batch: u64, tasks: u64) -> (u64, Option<u64>) {
    let position = if abort { 0 } else { updates * batch };
    match length {
        Length::Epochs(epochs) => (position, Some(epochs * tasks)),
        Length::Steps(steps) => (position, abort.then_some(steps * batch)),
    }
}

/// Whether a job that goes on at `position` has no batch left to train on. Tasks that are too few for a first one are
/// an error, and that comes of running them.
pub(super) fn is_complete(position: u64, end: Option<u64>, batch: u64) -> bool {
    end.is_some_and(|end| position >= end || position > 0 && end - position < batch)
}

/// Where in a batch's tasks a client begins while others run the same job; differs from client to client.
pub(super) fn offset(client_uuid: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    client_uuid.hash(&mut hasher);
    hasher.finish() as usize
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

    #[test]
    fn a_job_is_complete_when_no_batch_is_left_of_it() {
        for (position, end, expected) in [
            (0, Some(5), false),
            (8, Some(8), true),
            (8, Some(10), true),
            (8, Some(16), false),
            (24, Some(8), true),
            (8, None, false),
        ] {
            assert_eq!(is_complete(position, end, 8), expected, "{position} of {end:?}");
        }
    }

    #[test]
    fn tasks_are_taken_up_where_the_training_is() {
        for (length, abort, updates, expected) in [
            (Length::Epochs(2), false, 0, (0, Some(200))),
            (Length::Epochs(2), false, 3, (24, Some(200))),
            (Length::Steps(50), false, 3, (24, None)),
            (Length::Steps(5), true, 3, (0, Some(40))),
            (Length::Epochs(1), true, 3, (0, Some(100))),
        ] {
            assert_eq!(span(length, abort, updates, 8, 100), expected, "{length:?}");
        }
    }
}
