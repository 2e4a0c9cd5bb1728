//! On which rank an answer is sampled.

use std::collections::HashMap;

/// Where the running episodes are. An episode stays on its rank, whose prefix cache has its conversation.
#[derive(Debug)]
pub struct Placement {
    /// Requests in progress on each rank but the first, whose sampler knows its own.
    requests: Vec<usize>,
    /// Episodes that each rank has had since the last update.
    episodes: Vec<usize>,
    homes: HashMap<String, usize>,
}

impl Placement {
    /// Creates a placement over so many ranks, at least one.
    pub fn new(ranks: usize) -> Self {
        Self {
            requests: vec![0; ranks],
            episodes: vec![0; ranks],
            homes: HashMap::new(),
        }
    }

    /// Returns the rank for an episode's next request, which is then in progress: its own, or for a new episode the one
    /// with the fewest requests, then with the fewest episodes. The first rank has `here` requests in progress.
    pub fn place(&mut self, episode: &str, here: usize) -> usize {
        self.requests[0] = here;
        let rank = match self.homes.get(episode) {
            Some(home) => *home,
            None => {
                let load = |rank: &usize| (self.requests[*rank], self.episodes[*rank]);
                let least = (0..self.requests.len()).min_by_key(load).unwrap_or(0); // there is at least one
                self.homes.insert(episode.to_owned(), least);
                self.episodes[least] += 1;
                least
            }
        };
        self.requests[rank] += 1;
        rank
    }

    /// A request on a rank has ended.
    pub fn ended(&mut self, rank: usize) {
        self.requests[rank] = self.requests[rank].saturating_sub(1);
    }

    /// Forgets all episodes and requests: an update ends them.
    pub fn clear(&mut self) {
        *self = Self::new(self.requests.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_stay_and_new_ones_go_where_there_is_room() {
        let mut placement = Placement::new(3);
        assert_eq!(placement.place("a", 0), 0);
        assert_eq!(["b", "c", "d"].map(|e| placement.place(e, 1)), [1, 2, 0]);
        assert_eq!(placement.place("b", 2), 1, "its own, though it is busy");
        placement.ended(2);
        assert_eq!(placement.place("e", 2), 2, "the idle one");
        [1, 1, 2].into_iter().for_each(|rank| placement.ended(rank));
        assert_eq!(placement.place("f", 0), 1, "all idle: the one with the fewest episodes");
        placement.clear();
        assert_eq!(placement.place("d", 0), 0, "after an update caches are empty");
        assert_eq!(placement.place("a", 1), 1);
    }
}
