//! Causal attention with grouped queries over key-value caches made of blocks.
//!
//! A block holds [`BLOCK_TOKENS`] positions of one sequence for all layers. For each layer and key-value head it has the
//! keys as `[width][token]` and the values as `[token][width]`: both are what the matmul's register tile reads, so scores
//! and sums run through it. Blocks are visited in order, a span of some at a time, with a running softmax (Milakov &
//! Gimelshein 2018), in segments of fixed length that are then put together in order ("Flash-Decoding", Dao et al. 2023):
//! row by row the same whatever other rows are computed beside it, and whoever computes a segment.

use std::ops::Range;

use super::isa::{Isa, kernel};
use super::memory::{CACHE_LINE, prefetch};
use super::product::{Ahead, Start, Tile};
use super::scores::{AttentionScores, soft_cap};
use super::threads::{Pool, SharedMut};
use super::vector::{Vector, exp, first};

/// Positions of a cache block: a multiple of every panel's width.
pub const BLOCK_TOKENS: usize = 32;
/// Most query rows (positions × heads of the group) that share one pass over the cache: their queries, scores and sums
/// stay in the second-level cache.
const MAX_ROWS: usize = 192;
/// Fewer where threads would have nothing to do, down to these.
const MIN_ROWS: usize = 48;
/// Rows from which on values are put side by side before they are multiplied.
const ROWS_TO_GATHER: usize = 24;
/// Blocks whose scores become weights at once, so that the running sums are scaled less often.
const SPAN_BLOCKS: usize = 4;
/// Tokens of these.
const SPAN: usize = SPAN_BLOCKS * BLOCK_TOKENS;
/// Blocks after which a row's sums begin anew and are then put together, so that threads can share a long sequence;
/// whole spans.
const SEGMENT_BLOCKS: usize = 16;

/// The shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl BlockLayout {
    /// For a model of so many layers and key-value heads of width `head_dim`.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            layers,
            kv_heads,
            head_dim,
        }
    }

    /// A head's width in the cache: whole panels.
    fn width(&self) -> usize {
        self.head_dim.next_multiple_of(BLOCK_TOKENS)
    }

    /// f32 values of a block.
    pub fn len(&self) -> usize {
        self.layers * self.kv_heads * 2 * self.width() * BLOCK_TOKENS
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn keys(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * 2 * self.width() * BLOCK_TOKENS
    }

    fn values(&self, layer: usize, head: usize) -> usize {
        self.keys(layer, head) + self.width() * BLOCK_TOKENS
    }

    /// Puts the keys and values of successive positions into their block, the first at `slot`. Each line holds the
    /// keys (kv heads × head width) from `keys` on and then the values.
    pub fn write(&self, block: &mut [f32], layer: usize, slot: usize, lines: &[&mut [f32]], keys: usize) {
        let (dim, values) = (self.head_dim, keys + self.kv_heads * self.head_dim);
        for head in 0..self.kv_heads {
            let places = block[self.keys(layer, head)..].chunks_exact_mut(BLOCK_TOKENS);
            for (i, place) in places.take(dim).enumerate() {
                let tokens = place[slot..].iter_mut().zip(lines);
                tokens.for_each(|(k, line)| *k = line[keys + head * dim + i]);
            }
            let places = block[self.values(layer, head)..].chunks_exact_mut(self.width());
            for (place, line) in places.skip(slot).zip(lines) {
                place[..dim].copy_from_slice(&line[values + head * dim..][..dim]);
            }
        }
    }
}

/// The rows of one sequence in a batch.
pub struct AttentionRows<'a> {
    /// Its first row in the batch.
    pub first_row: usize,
    /// Its rows: positions `start..start + rows`.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// The cache, positions `0..start + rows` written.
    pub blocks: Vec<&'a [f32]>,
}

/// Attention of every row of `sequences` in one layer, with its `scores`. Row r's queries are `queries[r · query_stride..]`, `heads` of
/// `head_dim` each; its result goes to `out[r · heads · head_dim..]`.
#[allow(clippy::too_many_arguments)]
pub fn attention(
    pool: &Pool,
    layout: BlockLayout,
    layer: usize,
    heads: usize,
    scores: AttentionScores,
    queries: (&[f32], usize),
    sequences: &[AttentionRows],
    out: &mut [f32],
) {
    let (isa, group) = (pool.isa(), heads / layout.kv_heads);
    let rows_per_item = rows_per_item(
        pool.threads(),
        sequences.iter().map(|s| s.rows),
        (layout.kv_heads, group),
    );
    let out_len = out.len();
    let out = SharedMut::new(out);
    let mut items = vec![];
    for sequence in sequences {
        let end = sequence.first_row + sequence.rows;
        assert!(out_len >= end * heads * layout.head_dim, "room for the last row");
        assert!(
            queries.0.len() >= (end - 1) * queries.1 + heads * layout.head_dim,
            "queries of the last row"
        );
        assert!(
            sequence.blocks.len() * BLOCK_TOKENS >= sequence.start + sequence.rows,
            "blocks of the cache"
        );
        assert!(
            sequence.blocks.iter().all(|b| b.len() == layout.len()),
            "length of the blocks"
        );
        for kv_head in 0..layout.kv_heads {
            for first in (0..sequence.rows).step_by(rows_per_item) {
                items.push(Item {
                    layout,
                    layer,
                    heads,
                    group,
                    scores,
                    queries,
                    sequence,
                    kv_head,
                    first,
                    rows: rows_per_item.min(sequence.rows - first),
                    out: &out,
                });
            }
        }
    }
    let long = items.iter().any(|item| item.segments().len() > 1);
    if long && items.len() < 2 * pool.threads() {
        return split_over_keys(pool, &items);
    }
    pool.run_ranges(items.len(), 1, |range| {
        let (mut scratch, mut part, mut whole) = (Scratch::default(), Part::default(), Part::default());
        for item in &items[range] {
            for segment in item.segments() {
                item.attend(isa, segment, &mut scratch, &mut part);
                whole.append(isa, segment == item.segments().start, &mut part);
            }
            // SAFETY: lengths are checked above; items differ in rows or heads, so they write different places.
            unsafe { item.scatter(&whole) }
        }
    });
}

/// Positions that an item takes: as many as share a pass, fewer where there would not be two items for each thread.
fn rows_per_item(
    threads: usize,
    rows: impl Iterator<Item = usize> + Clone,
    (kv_heads, group): (usize, usize),
) -> usize {
    let items = |size: usize| kv_heads * rows.clone().map(|rows| rows.div_ceil(size)).sum::<usize>();
    let mut size = (MAX_ROWS / group).max(1);
    while size > 1 && size * group >= 2 * MIN_ROWS && items(size) < 2 * threads {
        size /= 2;
    }
    size
}

/// For few sequences that are long: threads take segments of one, which are then put together in the same order as else.
fn split_over_keys(pool: &Pool, items: &[Item]) {
    let isa = pool.isa();
    let segments = |item| Item::segments(item).map(move |segment| (item, segment, Part::default()));
    let mut parts: Vec<(&Item, usize, Part)> = items.iter().flat_map(segments).collect();
    pool.for_each(&mut parts, |_, (item, segment, part)| {
        item.attend(isa, *segment, &mut Scratch::default(), part);
    });
    let mut whole = Part::default();
    for (item, segment, mut part) in parts {
        whole.append(isa, segment == item.segments().start, &mut part);
        if segment + 1 == item.segments().end {
            // SAFETY: as `attention` checked, and nothing runs beside.
            unsafe { item.scatter(&whole) }
        }
    }
}

/// Some rows of one sequence and the query heads of one key-value head.
struct Item<'a> {
    layout: BlockLayout,
    layer: usize,
    heads: usize,
    group: usize,
    scores: AttentionScores,
    queries: (&'a [f32], usize),
    sequence: &'a AttentionRows<'a>,
    kv_head: usize,
    first: usize,
    rows: usize,
    out: &'a SharedMut<f32>,
}

/// What a thread computes in.
#[derive(Default)]
struct Scratch {
    /// Scaled queries, rows × head_dim.
    queries: Vec<f32>,
    /// Scores, then weights, of one span: rows × SPAN.
    scores: Vec<f32>,
    /// Values of one span side by side: SPAN × width.
    values: Vec<f32>,
}

/// Attention of an item's rows to a part of their keys.
#[derive(Default)]
struct Part {
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
/// Blocks and queries have the lengths that [`attention`] checks.
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

/// As [`add_values`], with the same sums, for so many rows that it is worth while to put the values side by side.
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
    fn append(&mut self, isa: Isa, is_first: bool, part: &mut Self) {
        match is_first {
            true => std::mem::swap(self, part),
            false => merge(isa, self, part),
        }
    }
}

impl Item<'_> {
    /// Behind its last row's position.
    fn end(&self) -> usize {
        self.sequence.start + self.first + self.rows
    }

    /// First position that one of its rows sees.
    fn first_visible(&self) -> usize {
        self.scores.first_visible(self.sequence.start + self.first)
    }

    /// The first of its rows that is not before the token at a position, if there is one.
    fn first_row_seeing(&self, position: usize) -> usize {
        let first = self.sequence.start + self.first;
        (position.saturating_sub(first) * self.group).min(self.rows * self.group)
    }

    /// Tokens of the span that begins at `start` that a row sees.
    fn visible(&self, row: usize, start: usize) -> Range<usize> {
        let position = self.sequence.start + self.first + row / self.group;
        let end = (position + 1).saturating_sub(start).min(SPAN);
        self.scores.first_visible(position).saturating_sub(start).min(end)..end
    }

    /// Segments with keys that its rows see.
    fn segments(&self) -> Range<usize> {
        const TOKENS: usize = SEGMENT_BLOCKS * BLOCK_TOKENS;
        self.first_visible() / TOKENS..self.end().div_ceil(TOKENS)
    }

    fn attend(&self, isa: Isa, segment: usize, scratch: &mut Scratch, part: &mut Part) {
        // SAFETY: `attention` has checked the lengths.
        unsafe { attend(isa, self, segment, scratch, part) }
    }

    /// Rows × head_dim: the heads of the group at each position, times the scores' scale.
    fn gather_queries(&self, to: &mut Vec<f32>) {
        let dim = self.layout.head_dim;
        let scale = self.scores.scale;
        to.clear();
        for row in 0..self.rows {
            let at = (self.sequence.first_row + self.first + row) * self.queries.1 + self.kv_head * self.group * dim;
            to.extend(self.queries.0[at..at + self.group * dim].iter().map(|q| q * scale));
        }
    }

    /// Divides by the softmax's denominators and writes the group's heads of each row.
    ///
    /// # Safety
    /// Nobody else touches these places of `out`, which has room for them.
    unsafe fn scatter(&self, whole: &Part) {
        let (dim, width) = (self.layout.head_dim, self.layout.width());
        for (row, (sums, (_, total))) in whole.sums.chunks_exact(width).zip(&whole.running).enumerate() {
            let (position, head) = (row / self.group, self.kv_head * self.group + row % self.group);
            let at = ((self.sequence.first_row + self.first + position) * self.heads + head) * dim;
            // SAFETY: the caller's promise.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(at), dim) };
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
        }
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

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, random};
    use super::*;

    const LAYERS: usize = 2;

    struct Case {
        scores: AttentionScores,
        layout: BlockLayout,
        heads: usize,
        blocks: Vec<Vec<f32>>,
        keys: Vec<f32>,
        values: Vec<f32>,
        queries: Vec<f32>,
    }

    fn case(kv_heads: usize, group: usize, dim: usize, tokens: usize) -> Case {
        let layout = BlockLayout::new(LAYERS, kv_heads, dim);
        let (keys, values) = (random(tokens * kv_heads * dim, 1), random(tokens * kv_heads * dim, 2));
        let mut blocks = vec![random(layout.len(), 9); tokens.div_ceil(BLOCK_TOKENS)];
        let rows = keys.chunks(kv_heads * dim).zip(values.chunks(kv_heads * dim));
        let mut lines: Vec<Vec<f32>> = rows.map(|(k, v)| [&[0.0], k, v].concat()).collect();
        let lines: Vec<&mut [f32]> = lines.iter_mut().map(|line| &mut line[..]).collect();
        for (block, lines) in blocks.iter_mut().zip(lines.chunks(BLOCK_TOKENS)) {
            let (first, rest) = lines.split_at(lines.len() / 3);
            layout.write(block, 1, 0, first, 1);
            layout.write(block, 1, first.len(), rest, 1);
        }
        let queries = random(tokens * kv_heads * group * dim, 3)
            .iter()
            .map(|q| q * 5.0)
            .collect();
        Case {
            scores: AttentionScores {
                scale: 1.0 / (dim as f32).sqrt(),
                softcap: None,
                window: None,
            },
            layout,
            heads: kv_heads * group,
            blocks,
            keys,
            values,
            queries,
        }
    }

    impl Case {
        fn plain(&self) -> Vec<f32> {
            let (dim, kv) = (self.layout.head_dim, self.layout.kv_heads);
            let mut out = vec![];
            for (position, row) in self.queries.chunks(self.heads * dim).enumerate() {
                for (head, q) in row.chunks(dim).enumerate() {
                    let at = |t: usize| (t * kv + head * kv / self.heads) * dim;
                    let visible = self.scores.first_visible(position)..=position;
                    let capped = |score: f64| match self.scores.softcap.map(f64::from) {
                        Some(cap) => cap * (score / cap).tanh(),
                        None => score,
                    };
                    let scores: Vec<f64> = visible
                        .clone()
                        .map(|t| {
                            q.iter()
                                .zip(&self.keys[at(t)..])
                                .map(|(a, b)| f64::from(a * b))
                                .sum::<f64>()
                        })
                        .map(|s| capped(s * f64::from(self.scores.scale)).exp())
                        .collect();
                    let total: f64 = scores.iter().sum();
                    for i in 0..dim {
                        let sum: f64 = visible
                            .clone()
                            .zip(&scores)
                            .map(|(t, score)| score * f64::from(self.values[at(t) + i]))
                            .sum();
                        out.push((sum / total) as f32);
                    }
                }
            }
            out
        }

        fn given(&self, pool: &Pool, cuts: &[usize]) -> Vec<f32> {
            let tokens = self.queries.len() / (self.heads * self.layout.head_dim);
            let mut out = vec![f32::NAN; self.queries.len()];
            let mut start = 0;
            for &end in cuts.iter().chain([&tokens]) {
                let blocks = self.blocks.iter().map(|b| &b[..]).collect();
                let rows = [AttentionRows {
                    first_row: start,
                    rows: end - start,
                    start,
                    blocks,
                }];
                let queries = (&self.queries[..], self.heads * self.layout.head_dim);
                attention(pool, self.layout, 1, self.heads, self.scores, queries, &rows, &mut out);
                start = end;
            }
            out
        }
    }

    #[test]
    fn agrees_with_a_plain_loop() {
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            for (kv_heads, group, dim, tokens) in [
                (1, 1, 8, 1),
                (2, 3, 16, 33),
                (3, 1, 64, 70),
                (1, 7, 40, 100),
                (1, 2, 8, 540),
            ] {
                let case = case(kv_heads, group, dim, tokens);
                assert_close(&case.given(&pool, &[]), &case.plain(), 1e-5);
            }
        }
    }

    /// Windows shorter than a block, of whole blocks, and beyond a segment; caps that bend most scores.
    fn windowed_and_capped(tokens: usize) -> impl Iterator<Item = Case> {
        let scores = |scale, softcap, window| AttentionScores { scale, softcap, window };
        let cases = [
            scores(0.3, None, Some(1)),
            scores(0.3, None, Some(20)),
            scores(0.1, Some(2.0), Some(64)),
            scores(0.4, Some(1.5), None),
            scores(0.3, None, Some(530)),
        ];
        cases.into_iter().map(move |scores| Case {
            scores,
            ..case(2, 3, 8, tokens)
        })
    }

    #[test]
    fn windows_and_caps_agree_with_a_plain_loop_however_the_prompt_is_cut() {
        for (isa, case) in Isa::available()
            .into_iter()
            .flat_map(|isa| windowed_and_capped(1100).map(move |case| (isa, case)))
        {
            let whole = case.given(&Pool::with_isa(2, isa), &[]);
            assert_close(&whole, &case.plain(), 1e-5);
            for (threads, cuts) in [(1, vec![33, 700, 1090, 1099]), (4, vec![5, 512, 1024, 1098])] {
                let cut = case.given(&Pool::with_isa(threads, isa), &cuts);
                assert_eq!(cut, whole, "{:?}, {} cut at {cuts:?}", case.scores, isa.name());
            }
        }
    }

    #[test]
    fn items_are_large_where_there_are_enough_for_all_threads() {
        let size = |threads, rows: &[usize], heads| rows_per_item(threads, rows.iter().copied(), heads);
        for (threads, rows, heads, expected) in [
            (2, &[256][..], (3, 3), 64),
            (8, &[256], (3, 3), 32),
            (64, &[256], (3, 3), 16),
            (2, &[4096], (1, 1), 192),
            (2, &[1; 16], (3, 3), 64),
            (4, &[1], (8, 4), 48),
            (2, &[1], (1, 300), 1),
        ] {
            assert_eq!(size(threads, rows, heads), expected, "{rows:?} on {threads} threads");
        }
    }

    #[test]
    fn a_long_sequence_is_the_same_whoever_computes_its_segments() {
        let case = case(1, 2, 8, 560);
        for isa in Isa::available() {
            // The last rows alone are few enough to be split over keys.
            let cuts = [300, 550, 555, 559];
            let alone = case.given(&Pool::with_isa(1, isa), &cuts);
            let shared = case.given(&Pool::with_isa(4, isa), &cuts);
            assert_eq!(alone, shared, "{}", isa.name());
            assert_eq!(
                alone,
                case.given(&Pool::with_isa(1, isa), &[]),
                "{} in one piece",
                isa.name()
            );
        }
    }

    #[test]
    fn a_row_does_not_depend_on_how_the_prompt_is_cut() {
        let case = case(2, 3, 16, 101);
        for isa in Isa::available() {
            let bits = |pool: &Pool, cuts: &[usize]| -> Vec<u32> {
                case.given(pool, cuts).iter().map(|x| x.to_bits()).collect()
            };
            let whole = bits(&Pool::with_isa(1, isa), &[]);
            for cuts in [vec![1, 2, 3, 50], vec![32, 64, 96], (1..101).collect()] {
                assert_eq!(
                    bits(&Pool::with_isa(3, isa), &cuts),
                    whole,
                    "{} cut at {cuts:?}",
                    isa.name()
                );
            }
        }
    }
}
