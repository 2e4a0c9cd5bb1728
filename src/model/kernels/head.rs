//! LM head, log-softmax, the log-probability of each token's target and the entropy, in one operation.
//!
//! Logits are computed in blocks of some tokens × a part of the vocabulary, so that each part of the weight is packed
//! once, and its gradient written once, for many tokens. All logits (tokens × vocabulary) are kept only where the caller
//! has room for them ([`Head::keep`]); otherwise the backward pass computes each block again.

use std::ops::Range;

use super::product::{Compute, Factor, Into, Matrix, Weight, adapted_gemm, gemm};
use super::scores::{LogitScaling, soft_cap, soft_cap_slopes};
use super::softmax::{LogitSums, logit_gradients, logit_sums};
use crate::model::token_set::Allowed;

/// Maximum number of tokens of a block. Few in tests, so that small models have several blocks.
const MOST_TOKENS: usize = if cfg!(test) { 24 } else { 2048 };
/// f32 numbers of the weight that a block multiplies with: 8 MB.
const PART: usize = if cfg!(test) { 2048 } else { 2 << 20 };
/// The words of a block are a multiple of this, and its rows of logits are half of this further apart than they are
/// long, so that they begin in different sets of the caches.
const WORDS: usize = 32;

/// Softmax of the logits of some tokens: scaled products of their hidden states and the weight, over the words that each
/// token may choose from.
pub struct Head<'a> {
    /// The head's weight, vocabulary × width.
    pub weight: Weight<'a>,
    /// Width of a hidden state.
    pub width: usize,
    /// Id of each token's target, less than the size of the vocabulary.
    pub targets: &'a [u32],
    /// Ids that each target was chosen from, one entry per token; empty if none is restricted.
    pub allowed: &'a [Allowed],
    /// Turns products into logits over the temperature.
    pub scaling: LogitScaling,
    /// Computes the products.
    pub compute: Compute<'a>,
    /// Whether the buffer keeps all logits from the forward to the backward pass, which otherwise computes them again.
    pub keep: bool,
}

/// Log-probability and entropy of each token; all vectors have one number per token.
#[derive(Clone, Debug, Default)]
pub struct Distributions {
    /// Natural logarithm of the target's probability.
    pub log_probs: Vec<f32>,
    /// Entropy of the distribution in nats.
    pub entropies: Vec<f32>,
    /// Logarithm of the softmax's denominator, from which the backward pass computes probabilities.
    log_sums: Vec<f32>,
}

/// Tokens and words whose logits are computed together.
struct Block {
    tokens: Range<usize>,
    words: Range<usize>,
    /// Where in the buffer they begin.
    start: usize,
}

impl Head<'_> {
    /// Returns the length of the buffer for logits, in f32 numbers.
    pub fn buffer_len(&self) -> usize {
        let ends = self
            .blocks()
            .map(|block| block.start + block.tokens.len() * self.stride());
        ends.max().unwrap_or(0)
    }

    /// Computes log-probabilities and entropies from hidden states (tokens × width), with room for
    /// [`buffer_len`](Self::buffer_len) logits.
    ///
    /// # Panics
    /// Panics if lengths do not match, or a target is outside the vocabulary.
    pub fn forward(&self, hidden: &[f32], buffer: &mut [f32]) -> Distributions {
        let vocabulary = self.vocabulary();
        assert!(
            self.targets.iter().all(|target| (*target as usize) < vocabulary),
            "a target is outside the vocabulary of {vocabulary}"
        );
        let pool = self.compute.pool;
        // Each token's sums and its target's logit.
        let mut found = vec![(LogitSums::default(), 0.0); self.targets.len()];
        for block in self.blocks() {
            let buffer = &mut buffer[block.start..];
            self.allowed_logits(hidden, &block, buffer);
            let tokens = found[block.tokens.clone()].iter_mut().zip(&self.targets[block.tokens]);
            let rows = buffer.chunks(self.stride());
            pool.each(tokens.zip(rows), |(((sums, target_logit), target), row)| {
                let logits = &row[..block.words.len()];
                let next = logit_sums(pool.isa(), logits);
                *sums = if block.words.start == 0 { next } else { sums.and(next) };
                if block.words.contains(&(*target as usize)) {
                    *target_logit = logits[*target as usize - block.words.start];
                }
            });
        }
        let log_sums: Vec<f32> = found.iter().map(|(sums, _)| sums.largest + sums.total.ln()).collect();
        let entropy = |(sums, _): &(LogitSums, f32)| sums.total.ln() - sums.weighted / sums.total;
        Distributions {
            log_probs: found
                .iter()
                .zip(&log_sums)
                .map(|((_, target), sum)| target - sum)
                .collect(),
            entropies: found.iter().map(entropy).collect(),
            log_sums,
        }
    }

    /// Computes gradients from those of the loss by each log-probability and each entropy (`by`, tokens each): overwrites
    /// `dx` (tokens × width) with the gradient of the hidden states, and writes or adds that of the weight to `dw`
    /// (vocabulary × width). The buffer holds the forward pass's logits if they are kept, and is overwritten.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn backward(
        &self,
        hidden: &[f32],
        found: &Distributions,
        by: (&[f32], &[f32]),
        buffer: &mut [f32],
        dx: &mut [f32],
        mut dw: Option<(&mut [f32], Into)>,
    ) {
        let (width, scale) = (self.width, self.scaling.scale as f32);
        for block in self.blocks() {
            let buffer = &mut buffer[block.start..];
            if !self.keep {
                self.allowed_logits(hidden, &block, buffer);
            }
            self.to_gradients(found, by, &block, buffer);
            let Block { tokens, words, .. } = block;
            let gradients = Matrix::strided(buffer, tokens.len(), words.len(), self.stride());
            let into = if words.start == 0 { Into::Replace } else { Into::Add };
            let rows = tokens.start * width..tokens.end * width;
            let dx = (&mut dx[rows.clone()], width);
            adapted_gemm(self.compute, dx, into, scale, gradients, (self.part(&words), None));
            if let Some((dw, into)) = &mut dw {
                let into = if tokens.start == 0 { *into } else { Into::Add };
                let x = Matrix::new(&hidden[rows], tokens.len(), width);
                let dw = (&mut dw[words.start * width..words.end * width], width);
                gemm(self.compute, dw, into, scale, gradients.t(), x);
            }
        }
    }

    /// Replaces the logits of a block by the loss's gradients by them.
    fn to_gradients(
        &self,
        found: &Distributions,
        (by_log_prob, by_entropy): (&[f32], &[f32]),
        block: &Block,
        rows: &mut [f32],
    ) {
        let pool = self.compute.pool;
        pool.each(
            rows.chunks_mut(self.stride()).zip(block.tokens.clone()),
            |(row, token)| {
                let row = &mut row[..block.words.len()];
                let slopes = self.slopes(row);
                let (log_sum, entropy) = (found.log_sums[token], found.entropies[token]);
                logit_gradients(pool.isa(), row, log_sum, entropy, by_log_prob[token], by_entropy[token]);
                let target = self.targets[token] as usize;
                if block.words.contains(&target) {
                    row[target - block.words.start] += by_log_prob[token];
                }
                // what is not allowed has no gradient, and its slope need not be finite
                let bent = row.iter_mut().zip(slopes).filter(|(by, _)| **by != 0.0);
                bent.for_each(|(by, slope)| *by *= slope);
            },
        );
    }

    /// Derivatives of capped logits by what is capped; nothing without a cap.
    fn slopes(&self, logits: &[f32]) -> Vec<f32> {
        let Some(cap) = self.scaling.softcap else {
            return vec![];
        };
        let mut slopes = vec![0.0; logits.len()];
        soft_cap_slopes(self.compute.pool.isa(), logits, cap as f32, &mut slopes);
        slopes
    }

    fn vocabulary(&self) -> usize {
        self.weight.outputs(self.width)
    }

    /// Words of a part.
    fn words(&self) -> usize {
        let words = (PART / self.width / WORDS).max(1) * WORDS;
        words.min(self.vocabulary())
    }

    /// From one row of logits to the next.
    fn stride(&self) -> usize {
        self.words().next_multiple_of(WORDS) + WORDS / 2
    }

    fn blocks(&self) -> impl Iterator<Item = Block> {
        let parts = |total: usize, step: usize| {
            (0..total)
                .step_by(step)
                .map(move |start| start..total.min(start + step))
        };
        let (vocabulary, step) = (self.vocabulary(), self.words());
        let blocks = parts(self.targets.len(), MOST_TOKENS)
            .flat_map(move |tokens| parts(vocabulary, step).map(move |words| (tokens.clone(), words)));
        let (keep, stride, mut end) = (self.keep, self.stride(), 0);
        blocks.map(move |(tokens, words)| {
            let start = if keep { end } else { 0 };
            end += tokens.len() * stride;
            Block { tokens, words, start }
        })
    }

    /// Words × width.
    fn part(&self, words: &Range<usize>) -> Factor<'_> {
        self.weight.factor((words.start, words.len()), self.width)
    }

    /// Logits over temperature of a block.
    fn logits(&self, hidden: &[f32], block: &Block, out: &mut [f32]) {
        let Block { tokens, words, .. } = block;
        let x = &hidden[tokens.start * self.width..tokens.end * self.width];
        let x = Matrix::new(x, tokens.len(), self.width);
        let weight = self.part(words).t();
        let (scale, stride) = (self.scaling.scale as f32, self.stride());
        let logits = (&mut *out, stride);
        adapted_gemm(self.compute, logits, Into::Replace, scale, x, (weight, None));
        if let Some(cap) = self.scaling.softcap {
            let pool = self.compute.pool;
            let rows = out.chunks_mut(stride).take(tokens.len());
            pool.each(rows, |row| soft_cap(pool.isa(), &mut row[..words.len()], cap as f32));
        }
    }

    /// Logits over temperature of a block, without the tokens that are not allowed.
    fn allowed_logits(&self, hidden: &[f32], block: &Block, out: &mut [f32]) {
        self.logits(hidden, block, out);
        let allowed = self.allowed.get(block.tokens.clone()).unwrap_or_default();
        for (row, allowed) in out.chunks_mut(self.stride()).zip(allowed) {
            if let Some(allowed) = allowed {
                allowed.restrict(&mut row[..block.words.len()], block.words.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::product::Precision;
    use super::super::threads::Pool;
    use super::*;

    #[test]
    #[should_panic(expected = "a target is outside the vocabulary of 3")]
    fn a_target_in_no_part_of_the_vocabulary_is_caught() {
        let pool = Pool::new(1);
        let head = Head {
            weight: Weight::Numbers(&[0.0; 6]),
            width: 2,
            targets: &[3],
            allowed: &[],
            scaling: LogitScaling {
                scale: 1.0,
                softcap: None,
            },
            compute: Compute::new(&pool, Precision::F32),
            keep: false,
        };
        head.forward(&[0.0; 2], &mut vec![0.0; head.buffer_len()]);
    }
}
