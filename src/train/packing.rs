//! Packing of rows into micro-batches with a token budget: without padding, and with shared prefixes computed once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::packed_batch::{PackedBatch, Segment};
use crate::model::token_set::Allowed;
use crate::timeline::Constrained;

/// A row as input of the model: tokens, and the indices of those that are trained on.
#[derive(Clone, Debug)]
pub struct RowView<'a> {
    /// The row's tokens.
    pub tokens: &'a [u32],
    /// Indices of its masked-in tokens, ascending, none of them 0; a row without any is left out.
    pub targets: &'a [usize],
    /// Its tokens that a grammar constrained.
    pub constrained: &'a [Constrained],
}

/// Rows that are computed together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Input of the model: the rows' distinct tokens. A row's tokens after the last one that predicts are dropped.
    pub batch: PackedBatch,
    /// Distinct predictions: index in `batch` of the token that predicts, and the predicted token.
    pub predictions: Vec<(usize, u32)>,
    /// Tokens that each prediction is chosen from; empty if none is restricted.
    pub allowed: Vec<Allowed>,
    /// The rows in it.
    pub rows: Vec<PackedRow>,
}

impl MicroBatch {
    /// Returns the rows that contain any of the given tokens of the batch.
    pub fn rows_through(&self, tokens: &[usize]) -> Vec<usize> {
        let mut seen = vec![false; self.batch.len()];
        tokens.iter().for_each(|token| seen[*token] = true);
        let segment_of = |at: usize| self.batch.segments.partition_point(|s| s.start <= at) - 1;
        let sees = |at: usize| {
            let segment = segment_of(at);
            let own = self.batch.segments[segment].start..at + 1;
            self.batch
                .ancestors(segment)
                .into_iter()
                .chain([own])
                .flatten()
                .any(|token| seen[token])
        };
        let through = |row: &&PackedRow| row.predictions.last().is_some_and(|p| sees(self.predictions[*p].0));
        self.rows.iter().filter(through).map(|row| row.row).collect()
    }
}

/// A row of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedRow {
    /// Index among the packed rows.
    pub row: usize,
    /// Index in [`MicroBatch::predictions`] of each of its targets.
    pub predictions: Vec<usize>,
}

/// Fills micro-batches, each with at most `budget` distinct tokens (a longer row has its own). With `share`, rows with a
/// common prefix become branches of a tree, and rows are sorted by their tokens, so that those with the longest common
/// prefixes follow each other, whichever task they belong to; otherwise they are independent and in their order.
pub fn pack(rows: &[RowView], budget: usize, share: bool) -> Vec<MicroBatch> {
    let mut full = Vec::new();
    let mut forest = Forest::default();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if share {
        order.sort_by_key(|number| rows[*number].tokens);
    }
    for number in order {
        let row = &rows[number];
        let Some(&last) = row.targets.last() else { continue };
        let fed = &row.tokens[..last];
        if !forest.tokens.is_empty() && forest.tokens.len() + fed.len() - forest.shared(fed, share).1 > budget {
            full.push(std::mem::take(&mut forest).into_micro_batch());
        }
        forest.insert(number, row, fed, share);
    }
    if !forest.tokens.is_empty() {
        full.push(forest.into_micro_batch());
    }
    full
}

/// A prefix tree under construction: nodes are tokens, numbered by insertion.
#[derive(Default)]
struct Forest {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    /// Child of a node by (node, token); roots are children of `None`.
    children: HashMap<(Option<usize>, u32), usize>,
    /// First node of each run of nodes added by one row, and its parent.
    runs: Vec<(usize, Option<usize>)>,
    predictions: Vec<(usize, u32)>,
    /// Index of a prediction by its token of the batch, target and grammar: a token may be followed by choices of several
    /// grammars.
    prediction_index: HashMap<(usize, u32, Option<usize>), usize>,
    /// Distinct grammars, by where they begin in their row.
    grammars: Vec<(usize, Arc<str>)>,
    rows: Vec<PackedRow>,
}

impl Forest {
    /// Returns the deepest node from which a row can branch, and its depth.
    fn shared(&self, fed: &[u32], share: bool) -> (Option<usize>, usize) {
        let (mut node, mut depth) = (None, 0);
        while share && depth < fed.len() {
            let Some(&child) = self.children.get(&(node, fed[depth])) else {
                break;
            };
            (node, depth) = (Some(child), depth + 1);
        }
        (node, depth)
    }

    fn insert(&mut self, number: usize, row: &RowView, fed: &[u32], share: bool) {
        let (branch, depth) = self.shared(fed, share);
        let first = self.tokens.len();
        if depth < fed.len() {
            self.runs.push((first, branch));
        }
        let mut node = branch;
        for (position, &token) in fed.iter().enumerate().skip(depth) {
            let new = self.tokens.len();
            self.tokens.push(token);
            self.positions.push(position as u32);
            if share {
                self.children.insert((node, token), new);
            }
            node = Some(new);
        }
        let path = self.path(fed, depth, first, share);
        let constrained: Vec<(&Constrained, usize)> = row.constrained.iter().map(|c| (c, self.grammar(c))).collect();
        let predictions = row.targets.iter().map(|&target| {
            let grammar = constrained
                .iter()
                .find(|(c, _)| c.contains(target))
                .map(|(_, grammar)| *grammar);
            self.predict(path[target - 1], row.tokens[target], grammar)
        });
        let predictions = predictions.collect();
        self.rows.push(PackedRow {
            row: number,
            predictions,
        });
    }

    /// Returns the nodes of an inserted row: `depth` shared ones, then a run from `first`.
    fn path(&self, fed: &[u32], depth: usize, first: usize, share: bool) -> Vec<usize> {
        let mut path = Vec::with_capacity(fed.len());
        let mut node = None;
        for &token in &fed[..if share { depth } else { 0 }] {
            let child = self.children[&(node, token)];
            path.push(child);
            node = Some(child);
        }
        path.extend((0..fed.len() - path.len()).map(|i| first + i));
        path
    }

    fn predict(&mut self, at: usize, target: u32, grammar: Option<usize>) -> usize {
        *self.prediction_index.entry((at, target, grammar)).or_insert_with(|| {
            self.predictions.push((at, target));
            self.predictions.len() - 1
        })
    }

    /// Returns the number of a grammar, the same for equal ones that begin at the same place.
    fn grammar(&mut self, constrained: &Constrained) -> usize {
        let same = |(start, text): &(usize, Arc<str>)| *start == constrained.start && *text == constrained.grammar;
        self.grammars.iter().position(same).unwrap_or_else(|| {
            self.grammars.push((constrained.start, constrained.grammar.clone()));
            self.grammars.len() - 1
        })
    }

    /// Splits runs at the branch points of others, so that a branch continues a whole segment.
    fn into_micro_batch(self) -> MicroBatch {
        let branch_of: HashMap<usize, Option<usize>> = self.runs.iter().copied().collect();
        let mut starts: BTreeSet<usize> = branch_of.keys().copied().collect();
        starts.extend(self.runs.iter().filter_map(|(_, branch)| branch.map(|node| node + 1)));
        starts.remove(&self.tokens.len());
        let starts: Vec<usize> = starts.into_iter().collect();
        let segment_of = |node: usize| starts.partition_point(|start| *start <= node) - 1;
        let ends = starts.iter().skip(1).copied().chain([self.tokens.len()]);
        let segment = |(&start, end): (&usize, usize)| Segment {
            start,
            len: end - start,
            parent: match branch_of.get(&start) {
                Some(branch) => branch.map(segment_of),
                None => Some(segment_of(start - 1)),
            },
        };
        let segments = starts.iter().zip(ends).map(segment).collect();
        let batch = PackedBatch {
            token_ids: self.tokens,
            positions: self.positions,
            segments,
        };
        MicroBatch {
            batch,
            predictions: self.predictions,
            allowed: vec![],
            rows: self.rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn views<'a>(rows: &'a [(Vec<u32>, Vec<usize>)]) -> Vec<RowView<'a>> {
        rows.iter()
            .map(|(tokens, targets)| RowView {
                tokens,
                targets,
                constrained: &[],
            })
            .collect()
    }

    /// A row's number, and for each of its targets what the model sees when it predicts it.
    type Seen = (usize, Vec<(Vec<u32>, u32)>);

    fn seen(micro: &MicroBatch) -> Vec<Seen> {
        let batch = &micro.batch;
        let context = |at: usize| {
            let segment = batch
                .segments
                .iter()
                .position(|s| (s.start..s.start + s.len).contains(&at))
                .unwrap();
            let mut tokens: Vec<u32> = batch
                .ancestors(segment)
                .into_iter()
                .flatten()
                .map(|i| batch.token_ids[i])
                .collect();
            tokens.extend(&batch.token_ids[batch.segments[segment].start..=at]);
            assert_eq!(batch.positions[at] as usize, tokens.len() - 1);
            tokens
        };
        let prediction = |&p: &usize| (context(micro.predictions[p].0), micro.predictions[p].1);
        micro
            .rows
            .iter()
            .map(|r| (r.row, r.predictions.iter().map(prediction).collect()))
            .collect()
    }

    #[test]
    fn a_shared_prompt_is_there_once() {
        let rows = [
            (vec![1, 2, 3, 4, 5], vec![3, 4]),
            (vec![1, 2, 3, 4, 6], vec![3, 4]),
            (vec![1, 2, 3, 9, 9, 9], vec![3]),
            (vec![7, 8], vec![1]),
        ];
        let micro = pack(&views(&rows), 100, true).remove(0);
        assert_eq!(micro.batch.token_ids, [1, 2, 3, 4, 7]);
        // 3 → 4 (twice), 4 → 5, 4 → 6, 3 → 9, 7 → 8
        assert_eq!(micro.predictions, [(2, 4), (3, 5), (3, 6), (2, 9), (4, 8)]);
        assert_eq!(micro.rows[1].predictions, [0, 2]);
        assert_eq!(micro.rows_through(&[1]), [0, 1, 2]);
        assert_eq!(micro.rows_through(&[3]), [0, 1]);
        assert_eq!(micro.rows_through(&[4]), [3]);
        assert!(micro.rows_through(&[]).is_empty());
        assert_eq!(pack(&views(&rows), 100, false)[0].batch.len(), 12);
    }

    #[test]
    fn equal_targets_under_other_grammars_are_other_predictions() {
        let tokens = [1, 2, 3, 4];
        let constrained = |start: usize, grammar: &str| {
            [Constrained {
                start,
                len: 1,
                grammar: grammar.into(),
            }]
        };
        let kinds = [
            constrained(3, "a"),
            constrained(3, "b"),
            constrained(3, "a"),
            constrained(2, "a"),
        ];
        let rows: Vec<RowView> = kinds
            .iter()
            .map(|constrained| RowView {
                tokens: &tokens,
                targets: &[3],
                constrained,
            })
            .collect();
        let micro = pack(&rows, 100, true).remove(0);
        let predictions: Vec<_> = micro.rows.iter().map(|row| row.predictions[0]).collect();
        assert_eq!(predictions, [0, 1, 0, 2], "the last one is behind its grammar");
        assert_eq!(micro.predictions, [(2, 4); 3]);
    }

    #[test]
    fn a_branch_cuts_what_it_branches_from() {
        let rows = [
            (vec![1, 2, 3, 4, 0], vec![4]),
            (vec![1, 2, 5, 0], vec![3]),
            (vec![1, 2, 3, 6, 0], vec![4]),
        ];
        let batch = pack(&views(&rows), 100, true).remove(0).batch;
        batch.validate().unwrap();
        let parents: Vec<_> = batch.segments.iter().map(|s| (s.len, s.parent)).collect();
        assert_eq!(
            parents,
            [(2, None), (1, Some(0)), (1, Some(1)), (1, Some(1)), (1, Some(0))]
        );
    }

    #[test]
    fn the_budget_counts_distinct_tokens() {
        let rows: Vec<_> = (0..8).map(|i| (vec![1, 2, 3, 4, 10 + i, 0], vec![5])).collect();
        let sizes = |budget, share| -> Vec<usize> {
            pack(&views(&rows), budget, share)
                .iter()
                .map(|m| m.batch.len())
                .collect()
        };
        assert_eq!(sizes(8, true), [8, 8]);
        assert_eq!(sizes(10, false), [10, 10, 10, 10]);
        assert_eq!(sizes(1, true), [5; 8]);
    }

    /// Two tasks with a system prompt in common, whose rows come in turn: a micro-batch has room for either task.
    #[test]
    fn rows_with_the_longest_common_prefix_are_computed_together() {
        let row = |task: u32, answer: u32| (vec![1, 2, 10 + task, 20 + task, 30 + task, answer, 0], vec![6]);
        let rows = [row(0, 40), row(1, 41), row(0, 42), row(1, 43)];
        let micros = pack(&views(&rows), 7, true);
        let found: Vec<(usize, Vec<usize>)> = micros
            .iter()
            .map(|micro| (micro.batch.len(), micro.rows.iter().map(|row| row.row).collect()))
            .collect();
        assert_eq!(found, [(7, vec![0, 2]), (7, vec![1, 3])]);
        assert_eq!(
            pack(&views(&rows), 12, true)[0].batch.len(),
            12,
            "the system prompt is there once"
        );
    }

    proptest! {
        #[test]
        fn every_target_sees_its_row(
            rows in prop::collection::vec((prop::collection::vec(0u32..3, 2..9), 1usize..8), 0..9),
            budget in 1usize..30,
            share: bool,
        ) {
            let rows: Vec<(Vec<u32>, Vec<usize>)> = rows
                .into_iter()
                .map(|(tokens, first)| {
                    let targets = (first.min(tokens.len() - 1)..tokens.len()).collect();
                    (tokens, targets)
                })
                .collect();
            let micros = pack(&views(&rows), budget, share);
            let mut found = Vec::new();
            for micro in &micros {
                micro.batch.validate().unwrap();
                prop_assert!(micro.batch.len() <= budget || micro.rows.len() == 1);
                found.extend(seen(micro));
            }
            found.sort_by_key(|(row, _)| *row);
            let expected: Vec<_> = rows
                .iter()
                .enumerate()
                .map(|(i, (tokens, targets))| {
                    (i, targets.iter().map(|&t| (tokens[..t].to_vec(), tokens[t])).collect::<Vec<_>>())
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
