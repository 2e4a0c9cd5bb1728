//! An answer being sampled.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::blocks::BlockPool;
use super::constraint::Constraint;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk};
use super::prefix_cache::{Hit, NodeId, PrefixCache, common};
use super::request::{FinishReason, SampleEvent, SampleRequest, SampledToken};
use super::sampler::Draw;

/// A request with its tokens so far and their cache blocks.
pub struct Sequence {
    /// The request; its prompt was moved to `tokens`.
    request: SampleRequest,
    rng: ChaCha8Rng,
    /// Random generator for the tokens.
    uniform: f64,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Grammar of the answer.
    constraint: Option<Constraint>,
    /// Biases of the next token's logits, in the order of ids.
    added: Vec<(u32, f32)>,
    /// Number of tokens whose keys and values are in the cache.
    computed: usize,
    /// Prompt tokens from the prefix cache when the answer began.
    cached: usize,
    started: bool,
    blocks: Vec<BlockId>,
    /// Full blocks known to the prefix cache, and the node of the last.
    known: usize,
    node: Option<NodeId>,
}

impl Sequence {
    /// Creates a sequence without cached tokens.
    pub fn new(mut request: SampleRequest) -> Self {
        let tokens = std::mem::take(&mut request.prompt);
        let grammar = request.grammar.take();
        let mut rng = ChaCha8Rng::seed_from_u64(request.params.seed);
        Self {
            uniform: rng.random(),
            rng,
            prompt_len: tokens.len(),
            constraint: grammar.map(Constraint::new),
            added: request.params.bias.logits.clone(),
            request,
            tokens,
            computed: 0,
            cached: 0,
            started: false,
            blocks: vec![],
            known: 0,
            node: None,
        }
    }

    /// Returns the request's id.
    pub fn id(&self) -> u64 {
        self.request.id
    }

    /// Returns the request's group.
    pub fn group(&self) -> &str {
        &self.request.group
    }

    /// Returns prompt and answer so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of tokens to compute before the next one can be sampled; 1 while decoding.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Returns whether the requester is gone.
    pub fn is_abandoned(&self) -> bool {
        self.request.events.is_closed()
    }

    /// Returns the number of blocks for all tokens so far.
    pub fn blocks_needed(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK_TOKENS)
    }

    /// Returns the number of blocks missing for all tokens so far.
    pub fn blocks_missing(&self) -> usize {
        self.blocks_needed() - self.blocks.len()
    }

    /// Returns whether `other` will compute more of this sequence's tokens than the `found` cached ones, so that
    /// waiting for it saves work.
    pub fn gains_from(&self, other: &Self, found: usize) -> bool {
        let shared = common(&self.tokens, &other.tokens).min(self.tokens.len() - 1);
        other.remaining() > 1 && shared > found && (shared - found) * 2 > self.tokens.len() - found
    }

    /// Starts from a prefix cache hit. The hit's blocks are held already; `copy` is a block of the sequence's own with
    /// the contents of the hit's partial one.
    pub fn begin(&mut self, hit: Hit, copy: Option<BlockId>) {
        debug_assert!(self.blocks.is_empty(), "sequence {} has begun", self.id());
        self.computed = hit.tokens();
        if !self.started {
            self.cached = self.computed.min(self.prompt_len);
        }
        self.known = hit.blocks.len();
        self.node = hit.node;
        self.blocks = hit.blocks;
        self.blocks.extend(copy);
    }

    /// Adds a block.
    pub fn push_block(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Returns its next `count` tokens to compute.
    pub fn chunk(&self, count: usize) -> Chunk<'_> {
        Chunk {
            tokens: &self.tokens[self.computed..self.computed + count],
            start: self.computed,
            blocks: &self.blocks,
            logits: count == self.remaining(),
        }
    }

    /// Records that `count` tokens were computed. Full blocks, and the last one of a whole prompt, are added to the
    /// prefix cache.
    pub fn advance(&mut self, count: usize, cache: &mut PrefixCache, pool: &mut BlockPool) {
        self.computed += count;
        while (self.known + 1) * BLOCK_TOKENS <= self.computed {
            self.publish(BLOCK_TOKENS, cache, pool);
        }
        if self.computed == self.prompt_len {
            self.publish(self.computed % BLOCK_TOKENS, cache, pool);
        }
    }

    /// Adds the next block, with its first `count` tokens, to the prefix cache.
    fn publish(&mut self, count: usize, cache: &mut PrefixCache, pool: &mut BlockPool) {
        if count == 0 {
            return;
        }
        let start = self.known * BLOCK_TOKENS;
        let tokens = &self.tokens[start..start + count];
        if let Some(node) = cache.insert(pool, self.node, tokens, &mut self.blocks[self.known]) {
            self.node = Some(node);
            self.known += 1;
        }
    }

    /// Releases its blocks; those in the prefix cache can be found again.
    pub fn release(&mut self, cache: &mut PrefixCache, pool: &mut BlockPool) {
        self.publish(self.computed - self.known * BLOCK_TOKENS, cache, pool);
        self.forget(pool);
    }

    /// Drops its blocks without keeping them in the prefix cache: their contents are stale.
    pub fn forget(&mut self, pool: &mut BlockPool) {
        self.blocks.drain(..).for_each(|block| pool.release(block));
        (self.computed, self.known, self.node) = (0, 0, None);
    }

    /// Returns how to sample its next token; the same until it is accepted. Waits for what its grammar allows.
    pub fn next_draw(&mut self) -> Draw<'_> {
        if let Some(constraint) = &mut self.constraint {
            constraint.wait();
        }
        Draw {
            params: &self.request.params,
            uniform: self.uniform,
            forced_token: self
                .request
                .forced_tokens
                .get(self.tokens.len() - self.prompt_len)
                .copied(),
            added: &self.added,
            allowed: self.constraint.as_ref().and_then(Constraint::allowed),
        }
    }

    /// Counts a token of the answer, for penalties.
    fn penalise(&mut self, id: u32) {
        let bias = &self.request.params.bias;
        let first = bias.presence_penalty != 0.0 && !self.tokens[self.prompt_len..].contains(&id);
        let less = bias.frequency_penalty + if first { bias.presence_penalty } else { 0.0 };
        if less == 0.0 {
            return;
        }
        match self.added.binary_search_by_key(&id, |(token, _)| *token) {
            Ok(at) => self.added[at].1 -= less,
            Err(at) => self.added.insert(at, (id, -less)),
        }
    }

    /// Accepts the sampled token and reports it. Returns the finish reason if the answer ends.
    pub fn accept(&mut self, token: Option<SampledToken>) -> Option<SampleEvent> {
        if let Some(error) = self.constraint.as_ref().and_then(Constraint::failure) {
            return Some(SampleEvent::Failed(error.to_string()));
        }
        let Some(token) = token else {
            return Some(SampleEvent::Failed(
                "the model's logits are not finite; hint: check the weights, or resume from an earlier checkpoint"
                    .into(),
            ));
        };
        self.uniform = self.rng.random();
        let id = token.id;
        if !self.started {
            self.started = true;
            self.emit(SampleEvent::Started {
                cached_tokens: self.cached,
            });
        }
        self.penalise(id);
        self.tokens.push(id);
        self.emit(SampleEvent::Token(token));
        let params = &self.request.params;
        if let Some(constraint) = &mut self.constraint {
            constraint.push(id);
        }
        let stopped = self.request.stop.as_mut().is_some_and(|stop| stop.push(id));
        // Without end tokens, a complete grammar is what ends the answer.
        let complete =
            params.stop_token_ids.is_empty() && self.constraint.as_mut().is_some_and(Constraint::is_complete);
        if stopped || complete || params.stop_token_ids.contains(&id) {
            Some(SampleEvent::Finished(FinishReason::Stop))
        } else if self.tokens.len() - self.prompt_len >= params.max_tokens {
            Some(SampleEvent::Finished(FinishReason::Length))
        } else {
            None
        }
    }

    /// Sends an event to the requester, who may be gone; the next step notices.
    pub fn emit(&self, event: SampleEvent) {
        let _ = self.request.events.send(event);
    }
}
