//! What every kind of tile takes beside its operands.

use crate::model::kernels::memory::{CACHE_LINE, prefetch};

/// The tallest tile and the widest panel of any instruction set.
pub(super) const MAX_TILE: (usize, usize) = (32, 32);

/// What a tile's sums start from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model::kernels) enum Start {
    /// From 0: the output is overwritten.
    Zero,
    /// From what the output holds.
    Output,
}

/// Memory that a tile prefetches while it computes, for what is computed after it: `step` bytes further at each inner
/// step.
#[derive(Clone, Copy)]
pub(in crate::model::kernels) struct Ahead {
    pub(super) from: *const u8,
    pub(super) step: usize,
}

impl Ahead {
    /// Nothing that the tile does not read anyway.
    pub fn none<W>(w: *const W) -> Self {
        Self {
            from: w.cast(),
            step: 0,
        }
    }

    /// Prefetches `numbers` f32 numbers at each inner step, one line behind the other from `from` on, which need not be
    /// valid.
    pub fn line_by_line(from: *const f32, numbers: usize) -> Self {
        Self {
            from: from.cast(),
            step: numbers * size_of::<f32>(),
        }
    }

    /// Prefetches what belongs to `count` inner steps from `k` on, at most `most` bytes of it.
    #[inline(always)]
    pub(super) fn fetch(self, k: usize, count: usize, most: usize) {
        let soon = self.from.wrapping_add(k * self.step);
        for line in 0..most.div_ceil(CACHE_LINE) {
            if line == 0 || line * CACHE_LINE < count * self.step {
                prefetch(soon.wrapping_add(line * CACHE_LINE));
            }
        }
    }
}
