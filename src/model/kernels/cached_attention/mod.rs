//! Causal attention with grouped queries over key-value caches made of blocks: items of work, and their threads.
//!
//! An item is some rows of one sequence and the query heads of one key-value head (`item.rs`). Blocks ([`BlockLayout`])
//! are visited in order in segments of fixed length (`segment.rs`), which are then combined in order
//! ("Flash-Decoding", Dao et al. 2023): a row's result does not depend on the other rows of the batch, nor on which
//! thread computes a segment.

mod block;
mod item;
mod segment;
#[cfg(test)]
mod tests;

use super::scores::AttentionScores;
use super::threads::{Pool, SharedMut};
pub use block::{BLOCK_TOKENS, BlockLayout};
pub use item::AttentionRows;
use item::Item;
use segment::{Part, Scratch};

/// Maximum number of query rows (positions × heads of the group) that share one pass over the cache: their queries,
/// scores and sums stay in the second-level cache.
const MAX_ROWS: usize = 192;
/// Fewer where threads would have nothing to do, down to these.
const MIN_ROWS: usize = 48;

/// Computes the attention of every row of `sequences` in one layer, with its `scores`. `queries` are a slice and a stride:
/// row r's are at `queries.0[r · queries.1..]`, `heads` of `head_dim` each; its result goes to
/// `out[r · heads · head_dim..]`. Panics if a slice or the blocks are too short for the rows.
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
            unsafe { whole.write(item) }
        }
    });
}

/// Returns how many positions an item takes: as many as share a pass, fewer where there would not be two items for each
/// thread.
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

/// Computes few items of long sequences: threads take segments of one item, which are then combined in the same order
/// as otherwise.
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
            unsafe { whole.write(item) }
        }
    }
}
