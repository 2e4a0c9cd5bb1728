//! Reference counts of cache blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::forward::BlockId;

/// Counts the holders of each block: sequences and the prefix cache.
#[derive(Debug)]
pub struct BlockPool {
    holders: Vec<u32>,
    /// Free blocks. The smallest is taken first, so that memory is used from the front and the rest is never touched.
    free: BinaryHeap<Reverse<BlockId>>,
}

impl BlockPool {
    /// Creates this many free blocks.
    pub fn new(capacity: usize) -> Self {
        Self {
            holders: vec![0; capacity],
            free: (0..capacity).map(Reverse).collect(),
        }
    }

    /// Returns the total number of blocks.
    pub fn capacity(&self) -> usize {
        self.holders.len()
    }

    /// Returns the number of free blocks.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free block, with one holder.
    pub fn take(&mut self) -> Option<BlockId> {
        let Reverse(block) = self.free.pop()?;
        self.holders[block] = 1;
        Some(block)
    }

    /// Adds a holder to a held block.
    pub fn hold(&mut self, block: BlockId) {
        debug_assert!(self.holders[block] > 0, "block {block} is free");
        self.holders[block] += 1;
    }

    /// Removes a holder; removing the last one frees the block.
    pub fn release(&mut self, block: BlockId) {
        self.holders[block] -= 1;
        if self.holders[block] == 0 {
            self.free.push(Reverse(block));
        }
    }

    /// Returns the number of holders of a block.
    pub fn holders(&self, block: BlockId) -> u32 {
        self.holders[block]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen over 200 updates: blocks that were freed in any order were taken from all over the memory that had ever been
    /// used, and the resident memory stayed at the most of all updates.
    #[test]
    fn memory_is_used_from_the_front_whatever_was_freed_last() {
        let mut pool = BlockPool::new(8);
        let taken: Vec<_> = (0..6).filter_map(|_| pool.take()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5]);
        for block in [1, 4, 0, 5] {
            pool.release(block);
        }
        let again: Vec<_> = (0..6).filter_map(|_| pool.take()).collect();
        assert_eq!(again, [0, 1, 4, 5, 6, 7]);
        assert_eq!((pool.free(), pool.take()), (0, None));
    }
}
