//! Which cache blocks are free and who holds the others.

use super::forward::BlockId;

/// Counts the holders of each block: sequences and the prefix cache.
#[derive(Debug)]
pub struct BlockPool {
    holders: Vec<u32>,
    /// The smallest last, so that memory is used from the front.
    free: Vec<BlockId>,
}

impl BlockPool {
    /// So many free blocks.
    pub fn new(capacity: usize) -> Self {
        Self {
            holders: vec![0; capacity],
            free: (0..capacity).rev().collect(),
        }
    }

    /// Blocks in all.
    pub fn capacity(&self) -> usize {
        self.holders.len()
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free block, with one holder.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.holders[block] = 1;
        Some(block)
    }

    /// Adds a holder to a held block.
    pub fn hold(&mut self, block: BlockId) {
        debug_assert!(self.holders[block] > 0, "block {block} is free");
        self.holders[block] += 1;
    }

    /// Takes a holder away; the last one frees the block.
    pub fn release(&mut self, block: BlockId) {
        self.holders[block] -= 1;
        if self.holders[block] == 0 {
            self.free.push(block);
        }
    }

    /// How many hold the block.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.holders[block]
    }
}
