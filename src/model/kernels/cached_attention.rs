//! Causal attention with grouped queries over key-value caches made of blocks.
//!
//! A block holds [`BLOCK_TOKENS`] positions of one sequence for all layers. For each layer and key-value head it has the
//! keys as `[width][token]` and the values as `[token][width]`: both are what the matmul's register tile reads, so scores
//! and sums run through it. Blocks are visited in order with a running softmax (Milakov & Gimelshein 2018), in
//! segments of fixed length that are then put together in order ("Flash-Decoding", Dao et al. 2023): row by row the same
//! whatever other rows are computed beside it, and whoever computes a segment.

use std::ops::Range;

use super::isa::{Isa, kernel};
use super::product::{Ahead, Start, Tile};
use super::scores::{AttentionScores, soft_cap};
use super::threads::{Pool, SharedMut};
use super::vector::{Vector, exp, first};

/// Positions of a cache block: a multiple of every panel's width.
pub const BLOCK_TOKENS: usize = 32;
/// Query rows (positions × heads of the group) that share one pass over the cache.
const MAX_ROWS: usize = 48;
/// Blocks after which a row's sums begin anew and are then put together, so that threads can share a long sequence.
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
    let rows_per_item = (MAX_ROWS / group).max(1);
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
    /// Scores, then weights, of one block: rows × BLOCK_TOKENS.
    scores: Vec<f32>,
}

/// Attention of an item's rows to a part of their keys.
#[derive(Default)]
struct Part {
    /// Weighted sums of values, rows × width.
    sums: Vec<f32>,
    /// Largest score and sum of weights, of each row; −∞ where it sees none of the keys.
    running: Vec<(f32, f32)>,
}

/// Attention of an item's rows to the keys of a segment.
///
/// # Safety
/// Blocks and queries have the lengths that [`attention`] checks.
unsafe fn attend(isa: Isa, item: &Item, segment: usize, scratch: &mut Scratch, part: &mut Part) {
    let (layout, width, tile) = (item.layout, item.layout.width(), Tile::F32(isa));
    let rows = item.rows * item.group;
    item.gather_queries(&mut scratch.queries);
    scratch.scores.resize(rows * BLOCK_TOKENS, 0.0);
    part.sums.clear();
    part.sums.resize(rows * width, 0.0);
    part.running.clear();
    part.running.resize(rows, (f32::NEG_INFINITY, 0.0));

    let first_block = (segment * SEGMENT_BLOCKS).max(item.first_visible() / BLOCK_TOKENS);
    let end_block = item.end().div_ceil(BLOCK_TOKENS).min((segment + 1) * SEGMENT_BLOCKS);
    for (b, block) in item.sequence.blocks[first_block..end_block].iter().enumerate() {
        let block_start = (first_block + b) * BLOCK_TOKENS;
        let (keys, values) = (
            layout.keys(item.layer, item.kv_head),
            layout.values(item.layer, item.kv_head),
        );
        // SAFETY: queries, scratch and part are rows long, keys and values as the layout says.
        unsafe {
            for half in (0..BLOCK_TOKENS).step_by(tile.width()) {
                tiles(
                    tile,
                    rows,
                    (scratch.queries.as_ptr(), layout.head_dim),
                    (block.as_ptr().add(keys + half), BLOCK_TOKENS),
                    layout.head_dim,
                    (scratch.scores.as_mut_ptr().add(half), BLOCK_TOKENS),
                    Start::Zero,
                );
            }
            if let Some(cap) = item.scores.softcap {
                soft_cap(isa, &mut scratch.scores, cap);
            }
            update_softmax(isa, item, block_start, &mut scratch.scores, part);
            let filled = (item.end() - block_start).min(BLOCK_TOKENS);
            for column in (0..width).step_by(tile.width()) {
                tiles(
                    tile,
                    rows,
                    (scratch.scores.as_ptr(), BLOCK_TOKENS),
                    (block.as_ptr().add(values + column), width),
                    filled,
                    (part.sums.as_mut_ptr().add(column), width),
                    Start::Output,
                );
            }
        }
    }
}

kernel! {
    /// Turns the scores of a block, whose first token is at `block_start`, into weights against the rows' running maxima,
    /// and brings what was summed so far to those.
    fn update_softmax<V>(item: &Item<'_>, block_start: usize, scores: &mut [f32], part: &mut Part) {
        let first_position = item.sequence.start + item.first;
        let width = item.layout.width();
        let rows = scores.chunks_exact_mut(BLOCK_TOKENS).zip(part.sums.chunks_exact_mut(width));
        for (row, ((scores, sums), running)) in rows.zip(&mut part.running).enumerate() {
            let position = first_position + row / item.group;
            let seen = (position + 1).saturating_sub(block_start).min(BLOCK_TOKENS);
            let hidden = item.scores.first_visible(position).saturating_sub(block_start).min(seen);
            update_row::<V>(scores, hidden..seen, running, sums);
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

/// One register tile after the other, over any number of rows.
///
/// # Safety
/// As [`Tile::run`].
unsafe fn tiles(
    tile: Tile,
    rows: usize,
    x: (*const f32, usize),
    w: (*const f32, usize),
    length: usize,
    y: (*mut f32, usize),
    start: Start,
) {
    let (w, count) = ((w.0.cast(), w.1), rows.div_ceil(tile.rows()));
    for number in 0..count {
        let (from, to) = (rows * number / count, rows * (number + 1) / count);
        // SAFETY: as the caller promises for all rows.
        unsafe {
            let (x, y) = ((x.0.add(from * x.1).cast(), x.1), (y.0.add(from * y.1), y.1));
            tile.run(to - from, x, w, length, y, start, Ahead::none(w.0));
        }
    }
}

/// Turns the scores of a block's `visible` tokens into weights against the running maximum, the rest to 0, and brings
/// what was summed so far to that maximum.
#[inline(always)]
unsafe fn update_row<V: Vector>(scores: &mut [f32], visible: Range<usize>, running: &mut (f32, f32), sums: &mut [f32]) {
    if visible.is_empty() {
        return scores.fill(0.0);
    }
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    // SAFETY: scores are BLOCK_TOKENS and sums a multiple of it long, both whole vectors.
    unsafe {
        let p = scores.as_mut_ptr();
        let mut max = V::splat(running.0);
        for i in (0..BLOCK_TOKENS).step_by(V::LANES) {
            max = max.max(V::load(p.add(i)));
        }
        let max = max.reduce_max();
        let mut total = V::splat(0.0);
        for i in (0..BLOCK_TOKENS).step_by(V::LANES) {
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
