//! Continuous batching: each step computes one token of each decoding sequence and a chunk of those whose prompt is not
//! in the cache yet, all in one batch. Requests join and leave between steps.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blocks::BlockPool;
use super::device_sampler;
use super::error::{InferenceError, Result};
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward, Logits};
use super::prefix_cache::{Hit, PrefixCache};
use super::queue::FairQueue;
use super::request::{FinishReason, SampleEvent, SampleRequest, SampledToken};
use super::sampler::{self, Draw};
use super::sequence::Sequence;
use crate::model::Weights;
use crate::model::kernels::Pool;
use crate::model::memory::retry_smaller;

/// Limits of a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum number of sequences in a batch.
    pub max_num_seqs: usize,
    /// Maximum number of tokens of a prompt and its answer.
    pub max_model_len: usize,
    /// Maximum number of tokens computed per step, at least `max_num_seqs`: bounds the delay that a long prompt causes
    /// for others.
    pub step_tokens: usize,
    /// Memory for caches, in bytes.
    pub cache_bytes: usize,
    /// Vocabulary size of the model.
    pub vocab_size: usize,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Number of sampled tokens.
    pub sampled: usize,
    /// Number of computed prompt tokens.
    pub prefilled: usize,
    /// Number of running sequences.
    pub running: usize,
    /// Number of queued requests.
    pub waiting: usize,
}

/// Totals since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens of all started prompts.
    pub prompt_tokens: u64,
    /// Those served from the prefix cache.
    pub cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Preemptions: sequences that lost their cache for lack of memory.
    pub preemptions: u64,
}

/// Samples many requests together. Owned by one thread, which calls [`Scheduler::step`] while it is not idle.
pub struct Scheduler {
    forward: Box<dyn Forward>,
    pool: Arc<Pool>,
    limits: Limits,
    /// Current maximum number of tokens per step: the limit, reduced when memory was insufficient.
    step_tokens: usize,
    blocks: BlockPool,
    prefixes: PrefixCache,
    waiting: FairQueue<Sequence>,
    /// Preempted sequences, which precede queued ones, oldest first.
    preempted: VecDeque<Sequence>,
    /// Running sequences, oldest first.
    running: Vec<Sequence>,
    totals: Totals,
}

impl Scheduler {
    /// Creates a scheduler for a forward pass, whose logits are sampled on `pool`.
    ///
    /// # Errors
    /// Fails if the cache cannot hold one sequence of maximum length.
    pub fn with_forward(mut forward: Box<dyn Forward>, pool: Arc<Pool>, limits: Limits) -> Result<Self> {
        let blocks = limits.cache_bytes / forward.block_bytes();
        let needed = limits.max_model_len.div_ceil(BLOCK_TOKENS);
        if blocks < needed {
            return Err(InferenceError::CacheTooSmall {
                tokens: blocks * BLOCK_TOKENS,
                needed: limits.max_model_len,
                token_bytes: forward.block_bytes() / BLOCK_TOKENS,
            });
        }
        // A sequence may need its next block while others still hold its last shared one.
        let most = limits.max_num_seqs.saturating_mul(needed + 1).saturating_mul(2);
        let blocks = BlockPool::new(blocks.min(most));
        forward.reserve(blocks.capacity());
        Ok(Self {
            forward,
            pool,
            blocks,
            step_tokens: limits.step_tokens,
            limits,
            prefixes: PrefixCache::default(),
            waiting: FairQueue::default(),
            preempted: VecDeque::new(),
            running: vec![],
            totals: Totals::default(),
        })
    }

    /// Queues a request. An invalid one fails immediately, through its events.
    pub fn submit(&mut self, request: SampleRequest) {
        match self.check(&request) {
            Ok(()) => {
                let sequence = Sequence::new(request);
                let group = sequence.group().to_string();
                self.waiting.push(&group, sequence);
            }
            // The requester may be gone.
            Err(error) => _ = request.events.send(SampleEvent::Failed(error.to_string())),
        }
    }

    /// Cancels all requests immediately.
    pub fn cancel_all(&mut self) {
        for mut sequence in self.take_where(|_| true) {
            sequence.release(&mut self.prefixes, &mut self.blocks);
            sequence.emit(SampleEvent::Finished(FinishReason::Cancelled));
        }
    }

    /// Returns whether nothing is queued or running.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.preempted.is_empty() && self.running.is_empty()
    }

    /// Returns the numbers of running sequences and of queued requests.
    pub fn request_counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len() + self.preempted.len())
    }

    /// Returns the totals since the scheduler was created.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the number of free cache blocks and of all blocks.
    pub fn block_counts(&self) -> (usize, usize) {
        (self.blocks.free(), self.blocks.capacity())
    }

    /// Releases the memory of all caches. Running sequences recompute theirs.
    pub fn release_caches(&mut self) {
        self.drop_caches();
        self.forward.release_blocks();
        self.step_tokens = self.limits.step_tokens;
    }

    /// Takes over changed weights. Running sequences continue with them, after recomputing their caches.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn refresh(&mut self, weights: &Weights) -> Result<()> {
        self.drop_caches();
        self.forward.refresh(weights)
    }

    /// Performs one batched forward pass and samples a token for each sequence that is ready. If memory is
    /// insufficient, the step is made smaller.
    ///
    /// # Errors
    /// Fails if the forward pass does, or if memory is insufficient for one token. Requests stay queued.
    pub fn step(&mut self) -> Result<StepReport> {
        self.drop_abandoned();
        self.admit()?;
        let remaining: Vec<usize> = self.running.iter().map(Sequence::remaining).collect();
        let planned = plan(&remaining, self.step_tokens).iter().sum();
        let attempt = |tokens| self.compute(tokens);
        let (report, tokens) = retry_smaller(planned, 1, InferenceError::is_out_of_memory, attempt)
            .map_err(InferenceError::or_no_memory)?;
        if tokens < planned {
            self.step_tokens = tokens;
        }
        Ok(report)
    }

    fn check(&self, request: &SampleRequest) -> Result<()> {
        sampler::check(&request.params)?;
        let (prompt, max_tokens) = (request.prompt.len(), request.params.max_tokens);
        if prompt == 0 {
            return Err(InferenceError::EmptyPrompt);
        }
        let limit = self.limits.max_model_len;
        if prompt.saturating_add(max_tokens) > limit {
            return Err(InferenceError::TooLong {
                prompt,
                max_tokens,
                limit,
            });
        }
        let vocab_size = self.limits.vocab_size;
        let mut tokens = request.prompt.iter().chain(&request.forced_tokens);
        if let Some(&token) = tokens.find(|&&token| token as usize >= vocab_size) {
            return Err(InferenceError::UnknownToken { token, vocab_size });
        }
        match self.knows(request.id) {
            true => Err(InferenceError::DuplicateId(request.id)),
            false => Ok(()),
        }
    }

    fn knows(&self, id: u64) -> bool {
        let is = |sequence: &Sequence| sequence.id() == id;
        self.waiting.any(is) || self.preempted.iter().any(is) || self.running.iter().any(is)
    }

    /// Removes sequences from all lists.
    fn take_where(&mut self, mut gone: impl FnMut(&Sequence) -> bool) -> Vec<Sequence> {
        let mut taken: Vec<Sequence> = self.running.extract_if(.., |s| gone(s)).collect();
        let (out, stay) = self.preempted.drain(..).partition(|s| gone(s));
        self.preempted = stay;
        taken.extend::<VecDeque<Sequence>>(out);
        taken.extend(self.waiting.remove(gone));
        taken
    }

    /// Removes the sequences of requests whose receiver is gone.
    fn drop_abandoned(&mut self) {
        for mut sequence in self.take_where(Sequence::is_abandoned) {
            sequence.release(&mut self.prefixes, &mut self.blocks);
        }
    }

    fn drop_caches(&mut self) {
        self.running.iter_mut().for_each(|s| s.forget(&mut self.blocks));
        self.prefixes.clear(&mut self.blocks);
        // They are admitted again, with blocks for all their tokens.
        self.preempted = self.running.drain(..).chain(self.preempted.drain(..)).collect();
    }

    /// Admits queued sequences while the batch has room and memory suffices for all their tokens.
    fn admit(&mut self) -> Result<()> {
        while self.running.len() < self.limits.max_num_seqs {
            // Leave each running sequence a block to grow into.
            let room = (self.blocks.free() + self.prefixes.evictable(&self.blocks)).saturating_sub(self.running.len());
            let (running, prefixes) = (&self.running, &mut self.prefixes);
            let mut found = Hit::default();
            let mut ready = |sequence: &Sequence| {
                // The last token is always computed, since its logits are needed.
                found = prefixes.find(&sequence.tokens()[..sequence.tokens().len() - 1]);
                let fits = sequence.blocks_needed() <= room;
                fits && !running.iter().any(|other| sequence.gains_from(other, found.tokens()))
            };
            let next = match self.preempted.front() {
                Some(sequence) if ready(sequence) => self.preempted.pop_front(),
                Some(_) => None,
                None => self.waiting.pop(ready),
            };
            let Some(sequence) = next else { break };
            self.begin(sequence, found)?;
        }
        Ok(())
    }

    /// Gives a sequence its prefix from the cache, and blocks for the rest of its tokens.
    fn begin(&mut self, mut sequence: Sequence, hit: Hit) -> Result<()> {
        hit.blocks.iter().for_each(|&block| self.blocks.hold(block));
        let source = hit.partial.map(|(block, _)| block);
        source.iter().for_each(|&block| self.blocks.hold(block)); // protect it from eviction in favour of its own copy
        let copy = match source {
            Some(_) => self.take_block(),
            None => None,
        };
        if let (Some(from), Some(to)) = (source, copy) {
            self.forward.copy_block(from, to)?;
        }
        source.iter().for_each(|&block| self.blocks.release(block));
        let hit = Hit {
            partial: hit.partial.filter(|_| copy.is_some()),
            ..hit
        };
        self.totals.prompt_tokens += sequence.tokens().len() as u64;
        self.totals.cached_tokens += hit.tokens() as u64;
        sequence.begin(hit, copy);
        for _ in 0..sequence.blocks_missing() {
            // `admit` counted them; if one is missing anyway, `make_room` handles it later.
            let Some(block) = self.take_block() else { break };
            sequence.push_block(block);
        }
        self.running.push(sequence);
        Ok(())
    }

    fn take_block(&mut self) -> Option<BlockId> {
        if self.blocks.free() == 0 {
            self.prefixes.evict(&mut self.blocks);
        }
        self.blocks.take()
    }

    /// Gives every planned sequence the blocks it lacks. If none are left, the youngest sequence is preempted and
    /// restarts later: so the oldest always makes progress, and eventually all do.
    fn make_room(&mut self, counts: &mut Vec<usize>) {
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].blocks_missing() == 0 || counts[at] == 0 {
                at += 1;
            } else if let Some(block) = self.take_block() {
                self.running[at].push_block(block);
            } else if let Some(mut youngest) = self.running.pop() {
                counts.pop();
                youngest.release(&mut self.prefixes, &mut self.blocks);
                self.preempted.push_front(youngest);
                self.totals.preemptions += 1;
            }
        }
    }

    /// Computes and samples with at most this many tokens. A failure changes nothing.
    fn compute(&mut self, tokens: usize) -> Result<StepReport> {
        let remaining: Vec<usize> = self.running.iter().map(Sequence::remaining).collect();
        let mut counts = plan(&remaining, tokens);
        self.make_room(&mut counts);
        let drawn = self.draw(&counts)?;
        let prompts = remaining.iter().zip(&counts).filter(|(remaining, _)| **remaining > 1);
        let prefilled = prompts.map(|(_, count)| count).sum();
        let sampled = self.advance(&counts, drawn);
        self.totals.computed_tokens += prefilled as u64;
        let (running, waiting) = self.request_counts();
        Ok(StepReport {
            sampled,
            prefilled,
            running,
            waiting,
        })
    }

    /// Runs the forward pass for the planned counts and samples the next tokens of the sequences that are ready, where
    /// their logits are.
    fn draw(&mut self, counts: &[usize]) -> Result<Vec<Option<SampledToken>>> {
        let planned = || self.running.iter().zip(counts).filter(|(_, count)| **count > 0);
        let chunks: Vec<Chunk> = planned().map(|(sequence, &count)| sequence.chunk(count)).collect();
        if chunks.is_empty() {
            return Ok(vec![]);
        }
        let logits = self.forward.forward(&chunks)?;
        let running = self.running.iter_mut().zip(counts);
        let ready = running.filter(|(sequence, count)| **count > 0 && **count == sequence.remaining());
        let draws: Vec<Draw> = ready.map(|(sequence, _)| sequence.next_draw()).collect();
        match logits {
            _ if draws.is_empty() => Ok(vec![]),
            Logits::Host(logits) => Ok(sampler::draw_all(&self.pool, &logits, &draws)),
            Logits::Device(logits) => device_sampler::draw(&logits, &draws),
        }
    }

    /// Updates the sequences with what was computed and sampled; finished ones leave. Returns the number of sampled
    /// tokens.
    fn advance(&mut self, counts: &[usize], drawn: Vec<Option<SampledToken>>) -> usize {
        let sampled = drawn.len();
        let mut drawn = drawn.into_iter();
        let mut ends = vec![];
        for (sequence, &count) in self.running.iter_mut().zip(counts) {
            let ready = count > 0 && count == sequence.remaining();
            sequence.advance(count, &mut self.prefixes, &mut self.blocks);
            if ready && let Some(token) = drawn.next() {
                ends.extend(sequence.accept(token).map(|end| (sequence.id(), end)));
            }
        }
        for (id, end) in ends {
            let Some(place) = self.running.iter().position(|s| s.id() == id) else {
                continue;
            };
            let mut sequence = self.running.remove(place);
            sequence.release(&mut self.prefixes, &mut self.blocks);
            sequence.emit(end);
        }
        sampled
    }
}

/// Plans the number of tokens per running sequence in a step, given how many each has left before it can sample: one
/// for decoding sequences, the rest of the budget for the others, oldest first.
pub fn plan(remaining: &[usize], budget: usize) -> Vec<usize> {
    let decoding = remaining.iter().filter(|&&r| r == 1).count().min(budget);
    let (mut to_decode, mut to_others) = (decoding, budget - decoding);
    let count = |&remaining: &usize| {
        let left = if remaining == 1 { &mut to_decode } else { &mut to_others };
        let count = remaining.min(*left);
        *left -= count;
        count
    };
    remaining.iter().map(count).collect()
}
