//! Splitting a batch into mini-batches, one per optimizer step.

use std::ops::Range;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::prepare::Prepared;

/// Splits a batch into `parts` of nearly the same number of episodes and returns the rows of each; parts without rows
/// are dropped. Groups stay together as far as possible, since they share prompts, but their order is random: the tasks
/// of a step must not depend on their names. `pass` counts epochs over all updates, so that each has its own order. A
/// batch in one part keeps its order.
pub fn split(batch: &mut Prepared, parts: usize, seed: u64, pass: u64) -> Vec<Range<usize>> {
    let episodes = batch.episodes.len();
    let mut rank: Vec<usize> = (0..episodes).collect();
    if parts > 1 {
        let groups = batch.episodes.iter().map(|e| e.group + 1).max().unwrap_or(0);
        let mut place: Vec<usize> = (0..groups).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(pass);
        place.shuffle(&mut rng);
        let mut order: Vec<usize> = (0..episodes).collect();
        order.sort_by_key(|episode| (place[batch.episodes[*episode].group], *episode));
        order.iter().enumerate().for_each(|(at, episode)| rank[*episode] = at);
        batch.rows.sort_by_key(|row| rank[row.episode]);
    }
    let first_row = |part: usize| {
        batch
            .rows
            .partition_point(|row| rank[row.episode] < episodes * part / parts)
    };
    let ranges = (0..parts).map(|part| first_row(part)..first_row(part + 1));
    ranges.filter(|rows| !rows.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::prepare::{Member, TrainRow};

    /// `groups` of two episodes, each with as many rows as given.
    fn batch(groups: usize, rows: usize) -> Prepared {
        let member = |episode: usize| Member {
            episode_uuid: String::new(),
            rows: 1,
            group: episode / 2,
            reward: 0.0,
            response_length: 1,
        };
        let row = |number: usize| TrainRow {
            index: 0,
            episode: number / rows,
            name: number.to_string(),
            tokens: vec![1, 2],
            targets: vec![1],
            constrained: vec![],
            sampler: vec![0.0],
            old: vec![],
            reference: vec![],
            advantage: 0.0,
            weight: 0.0,
        };
        Prepared {
            episodes: (0..2 * groups).map(member).collect(),
            rows: (0..2 * groups * rows).map(row).collect(),
            ..Prepared::default()
        }
    }

    fn episodes(batch: &Prepared, rows: Range<usize>) -> Vec<usize> {
        batch.rows[rows].iter().map(|row| row.episode).collect()
    }

    #[test]
    fn one_part_is_the_batch_as_it_is() {
        let mut whole = batch(3, 2);
        let before = whole.clone();
        assert_eq!(split(&mut whole, 1, 7, 0), vec![0..12]);
        assert_eq!(whole, before);
    }

    #[test]
    fn every_row_is_in_one_part_and_groups_stay_together() {
        let mut whole = batch(6, 2);
        let parts = split(&mut whole, 3, 7, 0);
        assert_eq!(parts, vec![0..8, 8..16, 16..24]);
        let mut seen: Vec<String> = whole.rows.iter().map(|row| row.name.clone()).collect();
        seen.sort_by_key(|name| name.parse::<usize>().unwrap());
        assert_eq!(seen, (0..24).map(|n| n.to_string()).collect::<Vec<_>>());
        for part in parts {
            let mut groups: Vec<usize> = episodes(&whole, part).iter().map(|episode| episode / 2).collect();
            groups.dedup();
            assert_eq!(groups.len(), 2, "{groups:?}");
        }
    }

    #[test]
    fn the_order_follows_from_seed_and_pass() {
        let order = |seed, pass| {
            let mut whole = batch(8, 1);
            split(&mut whole, 2, seed, pass);
            episodes(&whole, 0..16)
        };
        assert_eq!(order(7, 0), order(7, 0));
        assert_ne!(order(7, 0), order(7, 1));
        assert_ne!(order(7, 0), order(8, 0));
        assert_ne!(order(7, 0), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn more_parts_than_episodes_leave_none_empty() {
        let mut whole = batch(1, 1);
        assert_eq!(split(&mut whole, 5, 0, 0), vec![0..1, 1..2]);
        assert_eq!(split(&mut Prepared::default(), 4, 0, 0), Vec::<Range<usize>>::new());
    }
}
