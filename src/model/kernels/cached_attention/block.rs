//! The blocks of a key-value cache: [`BLOCK_TOKENS`] positions of one sequence for all layers.
//!
//! For each layer and key-value head a block has the keys as `[width][token]` and the values as `[token][width]`: both
//! are what the matrix product's register tile reads, so scores and sums run through it.

/// Positions of a cache block: a multiple of every panel's width.
pub const BLOCK_TOKENS: usize = 32;
/// Blocks whose scores become weights at once, so that the running sums are scaled less often.
pub(super) const SPAN_BLOCKS: usize = 4;
/// Tokens of these.
pub(super) const SPAN: usize = SPAN_BLOCKS * BLOCK_TOKENS;
/// Blocks of a segment, which is a whole number of spans: a row's sums begin at zero in each segment and are then
/// combined, so that threads can share a long sequence.
pub(super) const SEGMENT_BLOCKS: usize = 16;

/// The shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl BlockLayout {
    /// Returns the layout for a model of `layers` layers with `kv_heads` key-value heads of width `head_dim`.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            layers,
            kv_heads,
            head_dim,
        }
    }

    /// Width of a head in the cache: whole panels.
    pub(super) fn width(&self) -> usize {
        self.head_dim.next_multiple_of(BLOCK_TOKENS)
    }

    /// Returns the number of f32 values in a block.
    pub fn len(&self) -> usize {
        self.layers * self.kv_heads * 2 * self.width() * BLOCK_TOKENS
    }

    /// Returns whether a block holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the keys of a head begin in a block: `[width][token]`.
    pub(super) fn keys(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * 2 * self.width() * BLOCK_TOKENS
    }

    /// Where the values of a head begin in a block: `[token][width]`.
    pub(super) fn values(&self, layer: usize, head: usize) -> usize {
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
