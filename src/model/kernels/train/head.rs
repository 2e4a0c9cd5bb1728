//! LM head, log-softmax, the log-probability of a target and the entropy in one: a few rows of logits at a time, never
//! tokens × vocabulary.

use rayon::prelude::*;

use super::gemm::{Into, Matrix, Method, Threads, gemm};
use super::vectorize::{exp, max, sum, vectorized};

/// Most logits held at a time: 100 MB.
const LOGITS: usize = 25 << 20;
/// Most tokens that are taken at a time.
const MOST_TOKENS: usize = 512;

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

impl Head<'_> {
    /// Logits that are held at a time.
    pub fn buffer_len(&self) -> usize {
        self.rows_at_a_time().min(self.targets.len()) * self.vocabulary()
    }

    /// Log-probabilities and entropies, given hidden states (tokens × width) and room for
    /// [`buffer_len`](Self::buffer_len) logits.
    ///
    /// # Panics
    /// Lengths do not fit, or a target is outside the vocabulary.
    pub fn forward(&self, hidden: &[f32], buffer: &mut [f32]) -> Distributions {
        let (tokens, vocabulary) = (self.targets.len(), self.vocabulary());
        let mut found = Distributions {
            log_probs: vec![0.0; tokens],
            entropies: vec![0.0; tokens],
            log_sums: vec![0.0; tokens],
        };
        for rows in self.steps() {
            let logits = &mut buffer[..rows.len() * vocabulary];
            self.logits(&hidden[rows.start * self.width..rows.end * self.width], logits);
            let log_sums = found.log_sums[rows.clone()].par_iter_mut();
            let outputs = log_sums
                .zip(&mut found.entropies[rows.clone()])
                .zip(&mut found.log_probs[rows.clone()]);
            let inputs = logits.par_chunks(vocabulary).zip(&self.targets[rows]);
            outputs
                .zip(inputs)
                .for_each(|(((log_sum, entropy), log_prob), (logits, target))| {
                    let (largest, sum, weighted) = exp_sums(logits);
                    *log_sum = largest + sum.ln();
                    *entropy = sum.ln() - weighted / sum;
                    *log_prob = logits[*target as usize] - *log_sum;
                });
        }
        found
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
        (by_log_prob, by_entropy): (&[f32], &[f32]),
        buffer: &mut [f32],
        dx: &mut [f32],
        mut dw: Option<(&mut [f32], Into)>,
    ) {
        let (vocabulary, width) = (self.vocabulary(), self.width);
        let scale = 1.0 / self.temperature;
        for rows in self.steps() {
            let x = &hidden[rows.start * width..rows.end * width];
            let slopes = &mut buffer[..rows.len() * vocabulary];
            self.logits(x, slopes);
            let tasks = slopes.par_chunks_mut(vocabulary).zip(rows.clone());
            tasks.for_each(|(row, token)| {
                let by_log_prob = by_log_prob[token];
                to_slopes(
                    row,
                    found.log_sums[token],
                    found.entropies[token],
                    by_log_prob,
                    by_entropy[token],
                );
                row[self.targets[token] as usize] += by_log_prob;
            });
            let slopes = Matrix::new(slopes, rows.len(), vocabulary);
            let dx = &mut dx[rows.start * width..rows.end * width];
            let weight = Matrix::new(self.weight, vocabulary, width);
            gemm(
                self.method,
                (dx, width),
                Into::Replace,
                scale,
                slopes,
                weight,
                Threads::All,
            );
            if let Some((dw, into)) = &mut dw {
                let x = Matrix::new(x, rows.len(), width);
                gemm(self.method, (dw, width), *into, scale, slopes.t(), x, Threads::All);
                *into = Into::Add;
            }
        }
    }

    fn vocabulary(&self) -> usize {
        self.weight.len() / self.width
    }

    fn rows_at_a_time(&self) -> usize {
        (LOGITS / self.vocabulary()).clamp(1, MOST_TOKENS)
    }

    fn steps(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (tokens, step) = (self.targets.len(), self.rows_at_a_time());
        (0..tokens)
            .step_by(step)
            .map(move |start| start..(start + step).min(tokens))
    }

    /// Logits over temperature of some rows.
    fn logits(&self, x: &[f32], out: &mut [f32]) {
        let vocabulary = self.vocabulary();
        let x = Matrix::new(x, x.len() / self.width, self.width);
        let weight = Matrix::new(self.weight, vocabulary, self.width);
        let scale = 1.0 / self.temperature;
        gemm(
            self.method,
            (out, vocabulary),
            Into::Replace,
            scale,
            x,
            weight.t(),
            Threads::All,
        );
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
