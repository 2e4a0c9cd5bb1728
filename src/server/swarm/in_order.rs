//! Values by id, in the order in which they were added. Finding and removing one leaves the others alone, however many
//! there are; an `IndexMap` would move all later ones to keep the order.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

/// Values by id, oldest first.
#[derive(Debug)]
pub struct InOrder<T> {
    numbers: HashMap<Uuid, u64>,
    values: BTreeMap<u64, T>,
    next: u64,
    /// Number of values that iterations have passed.
    #[cfg(test)]
    pub passed: std::cell::Cell<u64>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            values: BTreeMap::new(),
            next: 0,
            #[cfg(test)]
            passed: std::cell::Cell::default(),
        }
    }
}

impl<T> InOrder<T> {
    /// Adds a value with a new id as the youngest. Returns it.
    pub fn add(&mut self, id: Uuid, value: T) -> &T {
        let number = self.next;
        self.next += 1;
        self.numbers.insert(id, number);
        self.values.entry(number).or_insert(value)
    }

    /// Returns a value.
    pub fn get(&self, id: &Uuid) -> Option<&T> {
        self.values.get(self.numbers.get(id)?)
    }

    /// Returns a value, mutably.
    pub fn get_mut(&mut self, id: &Uuid) -> Option<&mut T> {
        self.values.get_mut(self.numbers.get(id)?)
    }

    /// Removes a value; returns it.
    pub fn remove(&mut self, id: &Uuid) -> Option<T> {
        self.values.remove(&self.numbers.remove(id)?)
    }

    /// Iterates over all values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let values = self.values.values();
        #[cfg(test)]
        let values = values.inspect(|_| self.passed.set(self.passed.get() + 1));
        values
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list_of_pairs(ops in prop::collection::vec((0..8_u128, any::<bool>()), 0..60)) {
            let (mut found, mut list) = (InOrder::default(), Vec::<(Uuid, usize)>::new());
            for (value, (id, adds)) in ops.into_iter().enumerate() {
                let id = Uuid::from_u128(id);
                let at = list.iter().position(|(other, _)| *other == id);
                prop_assert_eq!(found.get(&id).copied(), at.map(|at| list[at].1));
                match at {
                    None if adds => {
                        prop_assert_eq!(*found.add(id, value), value);
                        list.push((id, value));
                    }
                    Some(at) if adds => {
                        *found.get_mut(&id).unwrap() = value;
                        list[at].1 = value;
                    }
                    _ => prop_assert_eq!(found.remove(&id), at.map(|at| list.remove(at).1)),
                }
                prop_assert!(found.iter().eq(list.iter().map(|(_, value)| value)));
                prop_assert_eq!((found.len(), found.is_empty()), (list.len(), list.is_empty()));
            }
        }
    }
}
