//! One forward pass with key-value caches, whatever computes it.

use candle_core::Tensor;

use super::error::Result;
use crate::model::Weights;
pub use crate::model::kernels::BLOCK_TOKENS;

/// Names a cache block; below the number of blocks that the cache may have.
pub type BlockId = usize;

/// A piece of one sequence: a prompt's next chunk, or the token sampled last.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// Position of the first; all before it are in the cache.
    pub start: usize,
    /// The sequence's blocks of [`BLOCK_TOKENS`] positions, enough for the chunk.
    pub blocks: &'a [BlockId],
    /// Whether the logits after its last token are wanted.
    pub logits: bool,
}

/// Logits, one vocabulary after the other, where they were computed: tokens are drawn there, so that a GPU's logits
/// never leave it.
#[derive(Debug)]
pub enum Logits {
    /// In this process's memory.
    Host(Vec<f32>),
    /// Rows × vocabulary, f32, on the model's device.
    Device(Tensor),
}

/// A model that continues sequences. It owns the memory of the blocks, which its caller numbers.
pub trait Forward: Send {
    /// Bytes of a block.
    fn block_bytes(&self) -> usize;

    /// Tells how many blocks there may be, before any is used.
    fn reserve(&mut self, blocks: usize);

    /// Appends each chunk to its sequence's cache. Returns the logits of the chunks that want them, in order.
    ///
    /// # Errors
    /// Out of memory. The chunks' blocks are then undefined beyond their start.
    fn forward(&mut self, chunks: &[Chunk]) -> Result<Logits>;

    /// Makes the block `to` a copy of `from`.
    ///
    /// # Errors
    /// Out of memory.
    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()>;

    /// Takes over changed weights; what is in the blocks is stale then.
    ///
    /// # Errors
    /// Out of memory.
    fn refresh(&mut self, weights: &Weights) -> Result<()>;

    /// Gives the memory of all blocks back; they come again as they are used.
    fn release_blocks(&mut self);
}
