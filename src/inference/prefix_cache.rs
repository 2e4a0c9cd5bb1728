//! Prefix cache: blocks of past and running sequences, found by the tokens from the sequence's start.
//!
//! A tree: each node is a block with its tokens, below the previous block. Full blocks are shared; of a block that
//! matches only partially, a sequence gets a copy. Shared blocks are never written: a sequence writes behind the tokens
//! that the tree knows.

use super::blocks::BlockPool;
use super::forward::{BLOCK_TOKENS, BlockId};

/// Index of a tree node.
pub type NodeId = usize;

/// Blocks that hold the start of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Full blocks, in order.
    pub blocks: Vec<BlockId>,
    /// Node of the last full block.
    pub node: Option<NodeId>,
    /// A block whose first tokens continue the sequence, and their number: to be copied.
    pub partial: Option<(BlockId, usize)>,
}

impl Hit {
    /// Returns the number of tokens found.
    pub fn tokens(&self) -> usize {
        self.blocks.len() * BLOCK_TOKENS + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

#[derive(Debug)]
struct Node {
    block: BlockId,
    tokens: Vec<u32>,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    last_used: u64,
}

/// The tree. It holds a reference to each of its blocks.
#[derive(Debug, Default)]
pub struct PrefixCache {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: Vec<NodeId>,
    clock: u64,
}

impl PrefixCache {
    /// Returns the longest cached prefix of `tokens` and marks it as used.
    pub fn find(&mut self, tokens: &[u32]) -> Hit {
        self.clock += 1;
        let mut hit = Hit::default();
        for piece in tokens.chunks(BLOCK_TOKENS) {
            let candidates = self
                .children(hit.node)
                .iter()
                .map(|&id| (common(&self.node(id).tokens, piece), id));
            let Some((shared, id)) = candidates.max().filter(|&(shared, _)| shared > 0) else {
                break;
            };
            let clock = self.clock;
            let node = self.node_mut(id);
            node.last_used = clock;
            if shared < BLOCK_TOKENS {
                hit.partial = Some((node.block, shared));
                break;
            }
            hit.blocks.push(node.block);
            hit.node = Some(id);
        }
        hit
    }

    /// Adds a block with `tokens` that follows the sequence ending at `parent`. If the tree already has a full block
    /// with these tokens, that one is used instead to save memory. Returns the full block's node, or `None` if the
    /// block is not full yet.
    pub fn insert(
        &mut self,
        pool: &mut BlockPool,
        parent: Option<NodeId>,
        tokens: &[u32],
        block: &mut BlockId,
    ) -> Option<NodeId> {
        self.clock += 1;
        let full = tokens.len() == BLOCK_TOKENS;
        let children = self.children(parent);
        let twin = children
            .iter()
            .copied()
            .find(|&id| self.node(id).tokens.starts_with(tokens));
        let own = children.iter().copied().find(|&id| self.node(id).block == *block);
        let id = match (twin, own) {
            (Some(twin), _) if full && own != Some(twin) => {
                let shared = self.node(twin).block;
                pool.hold(shared);
                pool.release(std::mem::replace(block, shared));
                twin
            }
            (Some(twin), _) => twin,
            (None, Some(own)) => {
                self.node_mut(own).tokens = tokens.to_vec();
                own
            }
            (None, None) => {
                pool.hold(*block);
                self.add(Node {
                    block: *block,
                    tokens: tokens.to_vec(),
                    parent,
                    children: vec![],
                    last_used: 0,
                })
            }
        };
        let clock = self.clock;
        self.node_mut(id).last_used = clock;
        full.then_some(id)
    }

    /// Evicts the least recently used block that nothing else needs; returns `false` if there is none.
    pub fn evict(&mut self, pool: &mut BlockPool) -> bool {
        let leaves = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let unused = leaves.filter(|(_, node)| node.children.is_empty() && pool.holders(node.block) == 1);
        let Some((id, _)) = unused.min_by_key(|(_, node)| node.last_used) else {
            return false;
        };
        self.remove(id, pool);
        true
    }

    /// Returns the number of blocks that [`PrefixCache::evict`] could free in sequence. A holder of a block also holds
    /// those before it, so below a block held only by the tree there is no other holder.
    pub fn evictable(&self, pool: &BlockPool) -> usize {
        self.nodes
            .iter()
            .flatten()
            .filter(|node| pool.holders(node.block) == 1)
            .count()
    }

    /// Clears the cache after a change of the weights.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        for node in self.nodes.drain(..).flatten() {
            pool.release(node.block);
        }
        *self = Self::default();
    }

    fn add(&mut self, node: Node) -> NodeId {
        let parent = node.parent;
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[id] = Some(node);
        self.siblings(parent).push(id);
        id
    }

    fn remove(&mut self, id: NodeId, pool: &mut BlockPool) {
        if let Some(node) = self.nodes[id].take() {
            pool.release(node.block);
            self.siblings(node.parent).retain(|&sibling| sibling != id);
            self.vacant.push(id);
        }
    }

    fn children(&self, parent: Option<NodeId>) -> &[NodeId] {
        parent.map_or(&self.roots, |id| &self.node(id).children)
    }

    fn siblings(&mut self, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(id) => &mut self.node_mut(id).children,
            None => &mut self.roots,
        }
    }

    #[expect(clippy::expect_used, reason = "the tree holds ids of its nodes only")]
    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("ids in the tree name nodes")
    }

    #[expect(clippy::expect_used, reason = "the tree holds ids of its nodes only")]
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("ids in the tree name nodes")
    }
}

/// Returns the length of the common prefix of two sequences.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes `tokens` as a sequence would, and lets it go again; what it found at first.
    fn compute(cache: &mut PrefixCache, pool: &mut BlockPool, tokens: &[u32]) -> usize {
        let hit = cache.find(tokens);
        hit.blocks.iter().for_each(|&b| pool.hold(b));
        let (mut blocks, mut node) = (hit.blocks.clone(), hit.node);
        for piece in tokens.chunks(BLOCK_TOKENS).skip(hit.blocks.len()) {
            while pool.free() == 0 {
                assert!(cache.evict(pool), "no block can be freed");
            }
            let mut block = pool.take().unwrap();
            node = cache.insert(pool, node, piece, &mut block).or(node);
            blocks.push(block);
        }
        blocks.into_iter().for_each(|b| pool.release(b));
        hit.tokens()
    }

    fn tokens(start: u32, len: u32) -> Vec<u32> {
        (start..start + len).collect()
    }

    #[test]
    fn finds_the_longest_start() {
        let (mut pool, mut cache) = (BlockPool::new(20), PrefixCache::default());
        assert_eq!(compute(&mut cache, &mut pool, &tokens(0, 80)), 0);
        assert_eq!(cache.find(&tokens(0, 80)).tokens(), 80);
        assert_eq!(cache.find(&tokens(0, 200)).tokens(), 80);
        assert_eq!(cache.find(&tokens(0, 70)).tokens(), 70);
        assert_eq!(cache.find(&tokens(1, 70)).tokens(), 0);
        let mut fork = tokens(0, 80);
        fork[40] = 999;
        assert_eq!(compute(&mut cache, &mut pool, &fork), 40);
        assert_eq!(
            (cache.find(&fork).tokens(), cache.find(&tokens(0, 80)).tokens()),
            (80, 80)
        );
        assert_eq!(pool.capacity() - pool.free(), 5, "the first block is shared");
    }

    #[test]
    fn equal_full_blocks_are_kept_once() {
        let (mut pool, mut cache) = (BlockPool::new(4), PrefixCache::default());
        let (mut a, mut b) = (pool.take().unwrap(), pool.take().unwrap());
        let first = cache.insert(&mut pool, None, &tokens(0, 32), &mut a);
        let second = cache.insert(&mut pool, None, &tokens(0, 32), &mut b);
        assert_eq!((first, a), (second, b));
        assert_eq!((pool.holders(a), pool.free()), (3, 3));
    }

    #[test]
    fn a_growing_block_stays_one_node() {
        let (mut pool, mut cache) = (BlockPool::new(4), PrefixCache::default());
        let mut block = pool.take().unwrap();
        assert_eq!(cache.insert(&mut pool, None, &tokens(0, 5), &mut block), None);
        assert_eq!(cache.find(&tokens(0, 32)).partial, Some((block, 5)));
        assert!(cache.insert(&mut pool, None, &tokens(0, 32), &mut block).is_some());
        assert_eq!(cache.find(&tokens(0, 32)).blocks, [block]);
        assert_eq!(pool.holders(block), 2);
    }

    #[test]
    fn evicts_what_was_used_longest_ago_and_nothing_that_is_held() {
        let (mut pool, mut cache) = (BlockPool::new(4), PrefixCache::default());
        compute(&mut cache, &mut pool, &tokens(0, 64));
        compute(&mut cache, &mut pool, &tokens(100, 64));
        assert_eq!((pool.free(), cache.evictable(&pool)), (0, 4));
        cache.find(&tokens(0, 64));
        compute(&mut cache, &mut pool, &tokens(200, 32));
        assert_eq!(cache.find(&tokens(0, 64)).tokens(), 64);
        assert_eq!(cache.find(&tokens(100, 64)).tokens(), 32);
        let held = cache.find(&tokens(0, 64)).blocks;
        held.iter().for_each(|&b| pool.hold(b));
        while cache.evict(&mut pool) {}
        assert_eq!(cache.find(&tokens(0, 64)).blocks, held);
        assert_eq!(pool.free(), 2);
        cache.clear(&mut pool);
        held.into_iter().for_each(|b| pool.release(b));
        assert_eq!(pool.free(), 4);
    }
}
