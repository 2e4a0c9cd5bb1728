//! Queue of requests: first in, first out within a group, round-robin between groups.

use std::collections::VecDeque;

/// A queue that is fair between groups.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Groups with waiting items, next in turn first.
    groups: VecDeque<(String, VecDeque<T>)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            groups: VecDeque::new(),
        }
    }
}

impl<T> FairQueue<T> {
    /// Appends an item to its group.
    pub fn push(&mut self, group: &str, item: T) {
        match self.groups.iter_mut().find(|(name, _)| name == group) {
            Some((_, items)) => items.push_back(item),
            None => self.groups.push_back((group.to_string(), VecDeque::from([item]))),
        }
    }

    /// Takes the first item, in turn order of the groups, that `ready` accepts. Only the front of each group is tried;
    /// its group then goes to the end of the turn order.
    pub fn pop(&mut self, mut ready: impl FnMut(&T) -> bool) -> Option<T> {
        let turn = self
            .groups
            .iter()
            .position(|(_, items)| items.front().is_some_and(&mut ready))?;
        let (name, mut items) = self.groups.remove(turn)?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.groups.push_back((name, items));
        }
        item
    }

    /// Removes all items for which `gone` holds.
    pub fn remove(&mut self, mut gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = vec![];
        for (_, items) in &mut self.groups {
            let (out, stay) = items.drain(..).partition(|item| gone(item));
            *items = stay;
            removed.extend::<VecDeque<T>>(out);
        }
        self.groups.retain(|(_, items)| !items.is_empty());
        removed
    }

    /// Returns whether any item satisfies `predicate`.
    pub fn any(&self, predicate: impl FnMut(&T) -> bool) -> bool {
        self.groups.iter().flat_map(|(_, items)| items).any(predicate)
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|(_, items)| items.len()).sum()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_turns() {
        let mut queue = FairQueue::default();
        for (group, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)] {
            queue.push(group, item);
        }
        assert_eq!(queue.len(), 6);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop(|_| true)).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn who_is_not_ready_is_passed_over_with_its_group() {
        let mut queue = FairQueue::default();
        for (group, item) in [("a", 1), ("a", 2), ("b", 3)] {
            queue.push(group, item);
        }
        assert_eq!(queue.pop(|&i| i != 1), Some(3));
        assert_eq!(queue.pop(|&i| i != 1), None);
        assert_eq!(queue.pop(|_| true), Some(1));
    }

    #[test]
    fn items_leave_from_anywhere() {
        let mut queue = FairQueue::default();
        for (group, item) in [("a", 1), ("a", 2), ("b", 3)] {
            queue.push(group, item);
        }
        assert_eq!(queue.remove(|&i| i != 2), [1, 3]);
        assert!(queue.any(|&i| i == 2));
        assert_eq!(queue.len(), 1);
    }
}
