//! In which order tasks are run: a pure function of seed and position, so that a run that is started again, here or on
//! another machine, goes on where the training is.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// One try of one repeat of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Index into the training tasks.
    pub task: usize,
    /// Tries before this one.
    pub tried: u32,
}

/// The work that is left: every task `repeats` times, epoch after epoch, shuffled anew in each.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    tasks: usize,
    repeats: usize,
    seed: u64,
    /// Tasks begun so far, over all epochs.
    position: u64,
    /// Where it ends; never where there is none.
    end: Option<u64>,
    repeats_left: usize,
    again: VecDeque<Work>,
    /// The shuffled tasks of one epoch.
    epoch: Option<(u64, Vec<usize>)>,
}

impl Queue {
    /// The work from `position` on, counted in tasks from the start of the first epoch. There has to be a task.
    pub fn new(tasks: usize, repeats: usize, seed: u64, position: u64, end: Option<u64>) -> Self {
        Self {
            tasks,
            repeats: repeats.max(1),
            seed,
            position,
            end,
            repeats_left: 0,
            again: VecDeque::new(),
            epoch: None,
        }
    }

    /// What to run next: what came to nothing before goes first, so that groups complete.
    pub fn next(&mut self) -> Option<Work> {
        if let Some(work) = self.again.pop_front() {
            return Some(work);
        }
        if self.repeats_left == 0 {
            if self.tasks == 0 || self.end.is_some_and(|end| self.position >= end) {
                return None;
            }
            self.position += 1;
            self.repeats_left = self.repeats;
        }
        self.repeats_left -= 1;
        let task = self.task_at(self.position - 1);
        Some(Work { task, tried: 0 })
    }

    /// Takes back a try that came to nothing.
    pub fn try_again(&mut self, work: Work) {
        let tried = work.tried + 1;
        self.again.push_back(Work { tried, ..work });
    }

    /// Takes back work that was not begun.
    pub fn put_back(&mut self, work: Work) {
        self.again.push_front(work);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks_of(mut queue: Queue, count: usize) -> Vec<usize> {
        std::iter::from_fn(|| queue.next())
            .map(|work| work.task)
            .take(count)
            .collect()
    }

    #[test]
    fn every_epoch_has_every_task_as_often_as_it_is_repeated_in_an_order_of_its_own() {
        let order = tasks_of(Queue::new(20, 3, 1, 0, Some(40)), 1000);
        assert_eq!(order.len(), 120);
        let (first, second) = order.split_at(60);
        assert_ne!(first, second);
        for epoch in [first, second] {
            assert!(epoch.chunks(3).all(|group| group.iter().all(|task| *task == group[0])));
            let mut groups: Vec<_> = epoch.chunks(3).map(|group| group[0]).collect();
            groups.sort();
            assert_eq!(groups, (0..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_run_that_starts_later_goes_on_with_the_same_order() {
        let whole = tasks_of(Queue::new(7, 2, 5, 0, None), 60);
        let resumed = tasks_of(Queue::new(7, 2, 5, 9, None), 42);
        assert_eq!(whole[18..], resumed[..]);
        assert_ne!(whole, tasks_of(Queue::new(7, 2, 6, 0, None), 60));
        assert!(tasks_of(Queue::new(7, 2, 5, 14, Some(14)), 1).is_empty());
    }

    #[test]
    fn what_came_to_nothing_goes_first() {
        let mut queue = Queue::new(1, 2, 0, 0, Some(1));
        let first = queue.next().unwrap();
        queue.try_again(first);
        assert_eq!(queue.next(), Some(Work { task: 0, tried: 1 }));
        assert_eq!(queue.next(), Some(Work { task: 0, tried: 0 }));
        assert_eq!(queue.next(), None);
        queue.put_back(first);
        assert_eq!(queue.next(), Some(first));
    }
}
