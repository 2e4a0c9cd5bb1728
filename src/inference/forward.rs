//! Interface of a forward pass with KV cache, whatever backend computes it.

use candle_core::Tensor;

use super::error::Result;
use crate::model::Weights;
pub use crate::model::kernels::BLOCK_TOKENS;

/// Index of a cache block, below the maximum number of blocks.
pub type BlockId = usize;

/// Tokens of one sequence to compute: a prompt's next chunk, or the last sampled token.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// Position of the first token; all tokens before it are in the cache.
    pub start: usize,
    /// Blocks of the sequence, [`BLOCK_TOKENS`] positions each, enough for the chunk.
    pub blocks: &'a [BlockId],
    /// Whether to return the logits after the last token.
    pub logits: bool,
}

/// Logits (rows × vocabulary) on the device that computed them: tokens are sampled there, so that a GPU's logits never
/// leave it.
#[derive(Debug)]
pub enum Logits {
    /// In host memory.
    Host(Vec<f32>),
    /// Rows × vocabulary, f32, on the model's device.
    Device(Tensor),
}

/// A model that continues sequences. It owns the memory of the blocks, which the caller allocates by index.
pub trait Forward: Send {
    /// Returns the bytes per block.
    fn block_bytes(&self) -> usize;

    /// Sets the maximum number of blocks, before any is used.
    fn reserve(&mut self, blocks: usize);

    /// Appends each chunk to its sequence's cache. Returns the requested logits, in the order of the chunks.
    ///
    /// # Errors
    /// Fails if out of memory. The chunks' blocks are then undefined beyond the chunk's start.
    fn forward(&mut self, chunks: &[Chunk]) -> Result<Logits>;

    /// Copies block `from` to `to`.
    ///
    /// # Errors
    /// Fails if out of memory.
    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()>;

    /// Takes over changed weights; the content of all blocks is then stale.
    ///
    /// # Errors
    /// Fails if out of memory.
    fn refresh(&mut self, weights: &Weights) -> Result<()>;

    /// Releases the memory of all blocks; it is allocated again on use.
    fn release_blocks(&mut self);
}
