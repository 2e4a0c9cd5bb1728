//! LM head, log-softmax, the log-probability of a target and the entropy in one: the logits of a part of the vocabulary
//! at a time, never tokens × vocabulary. So each part of the weight is packed and its gradient written once for many
//! tokens.

use std::ops::Range;

use rayon::prelude::*;

use super::gemm::{Into, Matrix, Method, Threads, gemm};
use super::vectorize::{exp, max, sum, vectorized};

/// Most tokens that are taken at a time. Few in tests, so that small models have several blocks.
const MOST_TOKENS: usize = if cfg!(test) { 24 } else { 2048 };
/// Numbers of the part of the weight that is taken at a time: 8 MB.
const PART: usize = if cfg!(test) { 2048 } else { 2 << 20 };
/// A part is a multiple of so many words, and a row of logits longer than a part by half as many, so that rows begin in
/// different sets of the caches.
const WORDS: usize = 32;

/// The distributions softmax(hidden·headᵀ / temperature) of some tokens, of whose parts only what is asked for is kept.
pub struct Head<'a> {
    /// Vocabulary × width.
    pub weight: &'a [f32],
    /// Length of a hidden state.
    pub width: usize,
    /// A target a token, inside the vocabulary.
    pub targets: &'a [u32],
    /// Logits are divided by it.
    pub temperature: f32,
    /// How products are computed.
    pub method: Method,
}

/// What is known about each token's distribution.
#[derive(Clone, Debug, Default)]
pub struct Distributions {
    /// Log-probability of the target.
    pub log_probs: Vec<f32>,
    /// Entropy.
    pub entropies: Vec<f32>,
    /// Logarithm of the sum that the softmax divides by.
    log_sums: Vec<f32>,
}

/// What is known of a token's distribution after some of its logits.
#[derive(Clone, Copy, Default)]
struct Sums {
    largest: f32,
    /// Σ e^(x − largest).
    total: f32,
    /// Σ (x − largest)·e^(x − largest).
    weighted: f32,
    /// The target's logit, once it was among them.
    target: f32,
}

/// Tokens and words whose logits are held.
struct Block {
    tokens: Range<usize>,
    words: Range<usize>,
}

impl Head<'_> {
    /// Numbers that the logits held at a time take.
    pub fn buffer_len(&self) -> usize {
        self.targets.len().min(MOST_TOKENS) * self.stride()
    }

    /// Log-probabilities and entropies, given hidden states (tokens × width) and room for
    /// [`buffer_len`](Self::buffer_len) logits.
    ///
    /// # Panics
    /// Lengths do not fit, or a target is outside the vocabulary.
    pub fn forward(&self, hidden: &[f32], buffer: &mut [f32]) -> Distributions {
        let vocabulary = self.vocabulary();
        assert!(
            self.targets.iter().all(|target| (*target as usize) < vocabulary),
            "a target is outside the vocabulary of {vocabulary}"
        );
        let mut sums = vec![Sums::default(); self.targets.len()];
        for block in self.blocks() {
            self.logits(hidden, &block, buffer);
            let tokens = sums[block.tokens.clone()]
                .par_iter_mut()
                .zip(&self.targets[block.tokens]);
            let rows = buffer.par_chunks(self.stride());
            tokens.zip(rows).for_each(|((sums, target), row)| {
                let logits = &row[..block.words.len()];
                let found = Sums::of(logits);
                *sums = if block.words.start == 0 { found } else { sums.and(found) };
                if block.words.contains(&(*target as usize)) {
                    sums.target = logits[*target as usize - block.words.start];
                }
            });
        }
        let log_sum = |sums: &Sums| sums.largest + sums.total.ln();
        Distributions {
            log_probs: sums.iter().map(|sums| sums.target - log_sum(sums)).collect(),
            entropies: sums
                .iter()
                .map(|sums| sums.total.ln() - sums.weighted / sums.total)
                .collect(),
            log_sums: sums.iter().map(log_sum).collect(),
        }
    }

    /// Given the slopes of a loss by each log-probability and entropy, that by the hidden states overwrites `dx`, and
    /// that by the weight is put where `dw` says. Computes the logits again.
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
        let (width, scale) = (self.width, 1.0 / self.temperature);
        for block in self.blocks() {
            self.logits(hidden, &block, buffer);
            self.slopes(found, by, &block, buffer);
            let Block { tokens, words } = block;
            let slopes = Matrix::strided(buffer, tokens.len(), words.len(), self.stride());
            let weight = Matrix::new(self.part(self.weight, &words), words.len(), width);
            let into = if words.start == 0 { Into::Replace } else { Into::Add };
            let rows = tokens.start * width..tokens.end * width;
            let dx = (&mut dx[rows.clone()], width);
            gemm(self.method, dx, into, scale, slopes, weight, Threads::All);
            if let Some((dw, into)) = &mut dw {
                let into = if tokens.start == 0 { *into } else { Into::Add };
                let x = Matrix::new(&hidden[rows], tokens.len(), width);
                let dw = (&mut dw[words.start * width..words.end * width], width);
                gemm(self.method, dw, into, scale, slopes.t(), x, Threads::All);
            }
        }
    }

    /// Logits of a block become derivatives by them.
    fn slopes(
        &self,
        found: &Distributions,
        (by_log_prob, by_entropy): (&[f32], &[f32]),
        block: &Block,
        rows: &mut [f32],
    ) {
        let tasks = rows.par_chunks_mut(self.stride()).zip(block.tokens.clone());
        tasks.for_each(|(row, token)| {
            let row = &mut row[..block.words.len()];
            let (log_sum, entropy) = (found.log_sums[token], found.entropies[token]);
            to_slopes(row, log_sum, entropy, by_log_prob[token], by_entropy[token]);
            let target = self.targets[token] as usize;
            if block.words.contains(&target) {
                row[target - block.words.start] += by_log_prob[token];
            }
        });
    }

    fn vocabulary(&self) -> usize {
        self.weight.len() / self.width
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
        parts(self.targets.len(), MOST_TOKENS).flat_map(move |tokens| {
            parts(vocabulary, step).map(move |words| Block {
                tokens: tokens.clone(),
                words,
            })
        })
    }

    fn part<'x>(&self, weight: &'x [f32], words: &Range<usize>) -> &'x [f32] {
        &weight[words.start * self.width..words.end * self.width]
    }

    /// Logits over temperature of a block.
    fn logits(&self, hidden: &[f32], block: &Block, out: &mut [f32]) {
        let Block { tokens, words } = block;
        let x = &hidden[tokens.start * self.width..tokens.end * self.width];
        let x = Matrix::new(x, tokens.len(), self.width);
        let weight = Matrix::new(self.part(self.weight, words), words.len(), self.width);
        let out = (out, self.stride());
        gemm(
            self.method,
            out,
            Into::Replace,
            1.0 / self.temperature,
            x,
            weight.t(),
            Threads::All,
        );
    }
}

impl Sums {
    fn of(logits: &[f32]) -> Self {
        let (largest, total, weighted) = exp_sums(logits);
        Self {
            largest,
            total,
            weighted,
            target: 0.0,
        }
    }

    /// Those of this one's logits and of `next`'s.
    fn and(self, next: Self) -> Self {
        let largest = self.largest.max(next.largest);
        let shifted = |sums: Self| {
            let (by, share) = (sums.largest - largest, (sums.largest - largest).exp());
            (share * sums.total, share * (sums.weighted + by * sums.total))
        };
        let ((total, weighted), (next_total, next_weighted)) = (shifted(self), shifted(next));
        Self {
            largest,
            total: total + next_total,
            weighted: weighted + next_weighted,
            ..self
        }
    }
}

vectorized! {
    /// max, Σ e^(x − max) and Σ (x − max)·e^(x − max).
    fn exp_sums(logits: &[f32]) -> (f32, f32, f32) {
        const LANES: usize = 16;
        let largest = max(logits);
        let (mut totals, mut weighted) = ([0f32; LANES], [0f32; LANES]);
        let chunks = logits.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for lane in 0..LANES {
                let below = chunk[lane] - largest;
                let share = exp(below);
                totals[lane] += share;
                weighted[lane] += below * share;
            }
        }
        let total = totals.iter().sum::<f32>() + sum(rest.len(), |i| exp(rest[i] - largest));
        let of_rest = sum(rest.len(), |i| (rest[i] - largest) * exp(rest[i] - largest));
        (largest, total, weighted.iter().sum::<f32>() + of_rest)
    }
}

vectorized! {
    /// Logits become derivatives by them, the target's own 1 left out: with p the softmax and H the entropy,
    /// −p·(by_log_prob + by_entropy·(log p + H)).
    fn to_slopes(row: &mut [f32], log_sum: f32, entropy: f32, by_log_prob: f32, by_entropy: f32) {
        for value in row.iter_mut() {
            let log_p = *value - log_sum;
            *value = -exp(log_p) * (by_log_prob + by_entropy * (log_p + entropy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::kernels::train::gemm::Precision;

    #[test]
    #[should_panic(expected = "a target is outside the vocabulary of 3")]
    fn a_target_in_no_part_of_the_vocabulary_is_caught() {
        let head = Head {
            weight: &[0.0; 6],
            width: 2,
            targets: &[3],
            temperature: 1.0,
            method: Method::best(Precision::F32),
        };
        head.forward(&[0.0; 2], &mut vec![0.0; head.buffer_len()]);
    }
}
