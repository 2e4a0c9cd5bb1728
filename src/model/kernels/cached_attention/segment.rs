//! Attention of an item's rows to a segment of their keys: spans of blocks with a running softmax (Milakov & Gimelshein
//! 2018), and how the parts of segments are combined.

use std::ops::Range;

use super::block::{BLOCK_TOKENS, SEGMENT_BLOCKS, SPAN, SPAN_BLOCKS};
use super::item::Item;
use crate::model::kernels::isa::{Isa, kernel};
use crate::model::kernels::memory::{CACHE_LINE, prefetch};
use crate::model::kernels::product::{Ahead, Start, Tile};
use crate::model::kernels::scores::soft_cap;
use crate::model::kernels::vector::{Vector, exp, first};

/// Rows from which on values are put side by side before they are multiplied.
const ROWS_TO_GATHER: usize = 24;
/// What a thread computes in.
#[derive(Default)]
pub(super) struct Scratch {
    /// Scaled queries, rows × head_dim.
    queries: Vec<f32>,
    /// Scores, then weights, of one span: rows × SPAN.
    scores: Vec<f32>,
    /// Values of one span side by side: SPAN × width.
    values: Vec<f32>,
}

/// Attention of an item's rows to a part of their keys.
#[derive(Default)]
pub(super) struct Part {
    /// Weighted sums of values, rows × width.
    sums: Vec<f32>,
    /// Largest score and sum of weights, of each row; −∞ where it sees none of the keys.
    running: Vec<(f32, f32)>,
}

/// Successive blocks whose scores become weights at once.
struct Span<'a> {
    blocks: &'a [&'a [f32]],
    /// Blocks of the spans after it.
    next: &'a [&'a [f32]],
    /// Position of its first token.
    start: usize,
}

/// Attention of an item's rows to the keys of a segment.
///
/// # Safety
/// Blocks and queries have the lengths that [`attention`](super::attention) checks.
unsafe fn attend(isa: Isa, item: &Item, segment: usize, scratch: &mut Scratch, part: &mut Part) {
    let (width, rows) = (item.layout.width(), item.rows * item.group);
    item.gather_queries(&mut scratch.queries);
    scratch.scores.resize(rows * SPAN, 0.0);
    part.sums.clear();
    part.sums.resize(rows * width, 0.0);
    part.running.clear();
    part.running.resize(rows, (f32::NEG_INFINITY, 0.0));

    let all = &item.sequence.blocks[..item.end().div_ceil(BLOCK_TOKENS)];
    // Whole spans, whatever of them is visible: a row's sums have the same order in every item.
    let first_block = (segment * SEGMENT_BLOCKS).max(item.first_visible() / SPAN * SPAN_BLOCKS);
    let segment_blocks = first_block..all.len().min((segment + 1) * SEGMENT_BLOCKS);
    for first in segment_blocks.step_by(SPAN_BLOCKS) {
        let (blocks, next) = all[first..].split_at(SPAN_BLOCKS.min(all.len() - first));
        let start = first * BLOCK_TOKENS;
        let span = Span { blocks, next, start };
        // SAFETY: queries, scratch and part are rows long, keys and values as the layout says.
        unsafe {
            compute_scores(isa, item, &span, scratch);
            if let Some(cap) = item.scores.softcap {
                soft_cap(isa, &mut scratch.scores, cap);
            }
            update_softmax(isa, item, start, &mut scratch.scores, part);
            match rows < ROWS_TO_GATHER {
                true => add_values(isa, item, &span, scratch, part),
                false => add_gathered_values(isa, item, &span, scratch, part),
            }
        }
    }
}

/// Scores of a span's keys for the rows that see some of them. Asks for the values meanwhile.
///
/// # Safety
/// As [`attend`], whose scratch this is.
unsafe fn compute_scores(isa: Isa, item: &Item, span: &Span, scratch: &mut Scratch) {
    let (layout, tile, rows) = (item.layout, Tile::F32(isa), item.rows * item.group);
    let (dim, keys) = (layout.head_dim, layout.keys(item.layer, item.kv_head));
    let (queries, scores) = (scratch.queries.as_ptr(), scratch.scores.as_mut_ptr());
    for (b, block) in span.blocks.iter().enumerate() {
        let first = item.first_row_seeing(span.start + b * BLOCK_TOKENS);
        for column in (0..BLOCK_TOKENS).step_by(tile.width()) {
            // SAFETY: the caller's promise.
            unsafe {
                let w = block.as_ptr().add(keys + column);
                let values = block
                    .as_ptr()
                    .wrapping_add(layout.values(item.layer, item.kv_head) + column * dim);
                for part in row_tiles(tile, first..rows) {
                    let ahead = match part.start == first {
                        true => Ahead::line_by_line(values, tile.width()),
                        false => Ahead::none(w),
                    };
                    let x = (queries.add(part.start * dim).cast(), dim);
                    let y = (scores.add(part.start * SPAN + b * BLOCK_TOKENS + column), SPAN);
                    tile.run(part.len(), x, (w.cast(), BLOCK_TOKENS), dim, y, Start::Zero, ahead);
                }
            }
        }
    }
}

/// Adds the weighted values of a span block by block, and asks for the keys of the next span meanwhile.
///
/// # Safety
/// As [`attend`], whose scratch and part these are.
unsafe fn add_values(isa: Isa, item: &Item, span: &Span, scratch: &Scratch, part: &mut Part) {
    let (layout, tile, rows) = (item.layout, Tile::F32(isa), item.rows * item.group);
    let width = layout.width();
    for (b, block) in span.blocks.iter().enumerate() {
        let start = span.start + b * BLOCK_TOKENS;
        for column in (0..width).step_by(tile.width()) {
            let next = span.next.get(b).map(|next| {
                let keys = layout.keys(item.layer, item.kv_head) + column * BLOCK_TOKENS;
                next.as_ptr().wrapping_add(keys)
            });
            // SAFETY: the caller's promise.
            unsafe {
                let w = block.as_ptr().add(layout.values(item.layer, item.kv_head) + column);
                let ahead = next.map_or(Ahead::none(w), |next| Ahead::line_by_line(next, tile.width()));
                for rows in row_tiles(tile, item.first_row_seeing(start)..rows) {
                    let seen = item.visible(rows.end - 1, start).end.min(BLOCK_TOKENS);
                    let x = scratch.scores.as_ptr().add(rows.start * SPAN + b * BLOCK_TOKENS);
                    let y = part.sums.as_mut_ptr().add(rows.start * width + column);
                    tile.run(
                        rows.len(),
                        (x.cast(), SPAN),
                        (w.cast(), width),
                        seen,
                        (y, width),
                        Start::Output,
                        ahead,
                    );
                }
            }
        }
    }
}

/// As [`add_values`], with the same sums, for rows enough that it pays to put the values side by side first.
///
/// # Safety
/// As [`add_values`].
unsafe fn add_gathered_values(isa: Isa, item: &Item, span: &Span, scratch: &mut Scratch, part: &mut Part) {
    let (layout, tile, rows) = (item.layout, Tile::F32(isa), item.rows * item.group);
    let width = layout.width();
    scratch.values.clear();
    for (b, block) in span.blocks.iter().enumerate() {
        let values = layout.values(item.layer, item.kv_head);
        scratch
            .values
            .extend_from_slice(&block[values..][..width * BLOCK_TOKENS]);
        if let Some(next) = span.next.get(b) {
            let keys = &next[layout.keys(item.layer, item.kv_head)..][..layout.head_dim * BLOCK_TOKENS];
            keys.iter()
                .step_by(CACHE_LINE / size_of::<f32>())
                .for_each(|line| prefetch(line));
        }
    }
    for column in (0..width).step_by(tile.width()) {
        // SAFETY: the caller's promise; no row sees more than the values gathered.
        unsafe {
            let w = scratch.values.as_ptr().add(column);
            for rows in row_tiles(tile, item.first_row_seeing(span.start)..rows) {
                let seen = item.visible(rows.end - 1, span.start).end;
                let x = (scratch.scores.as_ptr().add(rows.start * SPAN).cast(), SPAN);
                let y = (part.sums.as_mut_ptr().add(rows.start * width + column), width);
                tile.run(rows.len(), x, (w.cast(), width), seen, y, Start::Output, Ahead::none(w));
            }
        }
    }
}

kernel! {
    /// Turns the scores of a span, whose first token is at `start`, into weights against the rows' running maxima, and
    /// brings what was summed so far to those.
    fn update_softmax<V>(item: &Item<'_>, start: usize, scores: &mut [f32], part: &mut Part) {
        let width = item.layout.width();
        let rows = scores.chunks_exact_mut(SPAN).zip(part.sums.chunks_exact_mut(width));
        let rows = rows.zip(&mut part.running).enumerate().skip(item.first_row_seeing(start));
        for (row, ((scores, sums), running)) in rows {
            update_row::<V>(scores, item.visible(row, start), running, sums);
        }
    }
}

kernel! {
    /// Adds what a later part of the keys gave.
    fn merge<V>(whole: &mut Part, part: &Part) {
        let width = whole.sums.len() / whole.running.len();
        let sums = whole.sums.chunks_exact_mut(width).zip(part.sums.chunks_exact(width));
        let running = whole.running.iter_mut().zip(&part.running);
        for ((sums, more), (running, &(max, total))) in sums.zip(running) {
            if max == f32::NEG_INFINITY {
                continue; // the row sees none of this part
            }
            let largest = max.max(running.0);
            // A head's width is whole vectors, and both rows have it.
            {
                let (old, new) = (V::splat(running.0 - largest), V::splat(max - largest));
                let (old, new) = (exp(old), exp(new));
                for i in (0..width).step_by(V::LANES) {
                    let sum = V::load(sums.as_ptr().add(i)).mul(old);
                    V::load(more.as_ptr().add(i))
                        .mul_add(new, sum)
                        .store(sums.as_mut_ptr().add(i));
                }
                *running = (largest, running.1 * first(old) + total * first(new));
            }
        }
    }
}

impl Part {
    /// Puts the next segment to those before it; the first is taken as it is.
    pub(super) fn append(&mut self, isa: Isa, is_first: bool, part: &mut Self) {
        match is_first {
            true => std::mem::swap(self, part),
            false => merge(isa, self, part),
        }
    }

    /// Divides by the softmax's denominators and writes the group's heads of each row of `item` to its output.
    ///
    /// # Safety
    /// Nobody else touches these places of `out`, which has room for them.
    pub(super) unsafe fn write(&self, item: &Item) {
        let (dim, width) = (item.layout.head_dim, item.layout.width());
        for (row, (sums, (_, total))) in self.sums.chunks_exact(width).zip(&self.running).enumerate() {
            let (position, head) = (row / item.group, item.kv_head * item.group + row % item.group);
            let at = ((item.sequence.first_row + item.first + position) * item.heads + head) * dim;
            // SAFETY: the caller's promise.
            let out = unsafe { std::slice::from_raw_parts_mut(item.out.at(at), dim) };
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
        }
    }
}

impl Item<'_> {
    /// Computes the attention of its rows to a segment of their keys.
    pub(super) fn attend(&self, isa: Isa, segment: usize, scratch: &mut Scratch, part: &mut Part) {
        // SAFETY: `attention` has checked the lengths.
        unsafe { attend(isa, self, segment, scratch, part) }
    }
}

/// Cuts rows into nearly equal register tiles.
fn row_tiles(tile: Tile, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = rows.len().div_ceil(tile.rows());
    let bound = move |number: usize| rows.start + rows.len() * number / count;
    (0..count).map(move |number| bound(number)..bound(number + 1))
}

/// Turns the scores of a span's `visible` tokens into weights against the running maximum, the rest to 0, and brings
/// what was summed so far to that maximum.
#[inline(always)]
unsafe fn update_row<V: Vector>(scores: &mut [f32], visible: Range<usize>, running: &mut (f32, f32), sums: &mut [f32]) {
    if visible.is_empty() {
        return scores.fill(0.0);
    }
    let whole = visible.end.next_multiple_of(V::LANES);
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..whole].fill(f32::NEG_INFINITY);
    scores[whole..].fill(0.0);
    // SAFETY: scores are SPAN and sums a multiple of BLOCK_TOKENS long, both whole vectors.
    unsafe {
        let p = scores.as_mut_ptr();
        let mut max = V::splat(running.0);
        for i in (0..whole).step_by(V::LANES) {
            max = max.max(V::load(p.add(i)));
        }
        let max = max.reduce_max();
        let mut total = V::splat(0.0);
        for i in (0..whole).step_by(V::LANES) {
            let weight = exp(V::load(p.add(i)).sub(V::splat(max)));
            weight.store(p.add(i));
            total = total.add(weight);
        }
        if max > running.0 {
            let shrink = exp(V::splat(running.0 - max));
            running.1 *= first(shrink);
            let p = sums.as_mut_ptr();
            for i in (0..sums.len()).step_by(V::LANES) {
                V::load(p.add(i)).mul(shrink).store(p.add(i));
            }
        }
        *running = (max, running.1 + total.reduce_add());
    }
}
