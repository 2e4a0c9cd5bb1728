//! A thread's item of work: some rows of one sequence and the query heads of one key-value head, and what they see.

use std::ops::Range;

use super::block::{BLOCK_TOKENS, BlockLayout, SEGMENT_BLOCKS, SPAN};
use crate::model::kernels::scores::AttentionScores;
use crate::model::kernels::threads::SharedMut;

/// The rows of one sequence in a batch.
pub struct AttentionRows<'a> {
    /// Index of its first row in the batch.
    pub first_row: usize,
    /// Number of its rows: positions `start..start + rows`.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// The cache, positions `0..start + rows` written.
    pub blocks: Vec<&'a [f32]>,
}

/// Some rows of one sequence and the query heads of one key-value head.
pub(super) struct Item<'a> {
    pub(super) layout: BlockLayout,
    pub(super) layer: usize,
    /// Query heads.
    pub(super) heads: usize,
    /// Query heads per key-value head.
    pub(super) group: usize,
    pub(super) scores: AttentionScores,
    /// Queries of the batch, and the distance from one row to the next.
    pub(super) queries: (&'a [f32], usize),
    pub(super) sequence: &'a AttentionRows<'a>,
    pub(super) kv_head: usize,
    /// First of the sequence's rows that it takes.
    pub(super) first: usize,
    /// Number of rows that it takes.
    pub(super) rows: usize,
    pub(super) out: &'a SharedMut<f32>,
}

impl Item<'_> {
    /// The position behind that of its last row.
    pub(super) fn end(&self) -> usize {
        self.sequence.start + self.first + self.rows
    }

    /// First position that one of its rows sees.
    pub(super) fn first_visible(&self) -> usize {
        self.scores.first_visible(self.sequence.start + self.first)
    }

    /// The first of its rows that is not before the token at a position, if there is one.
    pub(super) fn first_row_seeing(&self, position: usize) -> usize {
        let first = self.sequence.start + self.first;
        (position.saturating_sub(first) * self.group).min(self.rows * self.group)
    }

    /// Tokens of the span that begins at `start` that a row sees.
    pub(super) fn visible(&self, row: usize, start: usize) -> Range<usize> {
        let position = self.sequence.start + self.first + row / self.group;
        let end = (position + 1).saturating_sub(start).min(SPAN);
        self.scores.first_visible(position).saturating_sub(start).min(end)..end
    }

    /// Segments with keys that its rows see.
    pub(super) fn segments(&self) -> Range<usize> {
        const TOKENS: usize = SEGMENT_BLOCKS * BLOCK_TOKENS;
        self.first_visible() / TOKENS..self.end().div_ceil(TOKENS)
    }

    /// Rows × head_dim: the heads of the group at each position, times the scores' scale.
    pub(super) fn gather_queries(&self, to: &mut Vec<f32>) {
        let dim = self.layout.head_dim;
        let scale = self.scores.scale;
        to.clear();
        for row in 0..self.rows {
            let at = (self.sequence.first_row + self.first + row) * self.queries.1 + self.kv_head * self.group * dim;
            to.extend(self.queries.0[at..at + self.group * dim].iter().map(|q| q * scale));
        }
    }
}
