//! LM head, log-softmax, the log-probability of a target and the entropy in one: a few rows of logits at a time, never
//! tokens × vocabulary.

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::gemm::{Into, Matrix, Threads, gemm};
use super::slices::{slice, with};
use super::vectorize::{exp, max, sum, vectorized};

/// Most logits held at a time: 64 MB.
const LOGITS: usize = 16 << 20;
/// Most tokens that are taken at a time.
const MOST_TOKENS: usize = 512;

/// hidden (tokens × width), head (vocabulary × width) → 2 × tokens: log-probabilities of the targets, then entropies, of
/// softmax(hidden·headᵀ / temperature). The backward pass computes the logits again.
pub struct LogProbs {
    /// A target a token, inside the vocabulary.
    pub targets: Vec<u32>,
    /// Logits are divided by it.
    pub temperature: f32,
    /// Whether the head takes a gradient.
    pub train_head: bool,
}

impl CustomOp2 for LogProbs {
    fn name(&self) -> &'static str {
        "log_probs"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((tokens, width), (vocabulary, _)) = (xl.shape().dims2()?, wl.shape().dims2()?);
        let (x, w) = (slice(x, xl)?, slice(w, wl)?);
        if let Some(target) = self.targets.iter().find(|target| **target as usize >= vocabulary) {
            candle_core::bail!("target token {target} is outside the vocabulary of {vocabulary}");
        }
        let mut out = vec![0.0; 2 * tokens];
        let (log_probs, entropies) = out.split_at_mut(tokens);
        let step = rows_at_a_time(vocabulary);
        let mut buffer = vec![0.0; step.min(tokens) * vocabulary];
        for start in (0..tokens).step_by(step) {
            let rows = start..(start + step).min(tokens);
            let logits = &mut buffer[..rows.len() * vocabulary];
            self.logits(&x[rows.start * width..rows.end * width], w, vocabulary, logits);
            let outputs = log_probs[rows.clone()].par_iter_mut().zip(&mut entropies[rows.clone()]);
            let inputs = logits.par_chunks(vocabulary).zip(&self.targets[rows]);
            outputs.zip(inputs).for_each(|((log_prob, entropy), (logits, target))| {
                let norm = Norm::of(logits);
                *log_prob = logits[*target as usize] - norm.log_sum;
                *entropy = norm.entropy;
            });
        }
        Ok((CpuStorage::F32(out), Shape::from((2, tokens))))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (tokens, width) = x.dims2()?;
        let vocabulary = w.dim(0)?;
        let g = g.contiguous()?;
        let mut dx = vec![0.0; tokens * width];
        let mut dw = vec![0.0; if self.train_head { vocabulary * width } else { 0 }];
        with(x, |x| {
            with(w, |w| {
                with(&g, |g| {
                    self.backward(x, w, vocabulary, g, &mut dx, &mut dw);
                    Ok(())
                })
            })
        })?;
        let dx = Tensor::from_vec(dx, x.shape(), &Device::Cpu)?;
        let dw = self
            .train_head
            .then(|| Tensor::from_vec(dw, w.shape(), &Device::Cpu))
            .transpose()?;
        Ok((Some(dx), dw))
    }
}

impl LogProbs {
    /// Logits over temperature of some rows.
    fn logits(&self, x: &[f32], w: &[f32], vocabulary: usize, out: &mut [f32]) {
        let width = w.len() / vocabulary;
        let (x, w) = (
            Matrix::new(x, x.len() / width, width),
            Matrix::new(w, vocabulary, width),
        );
        gemm(
            out,
            vocabulary,
            Into::Replace,
            1.0 / self.temperature,
            x,
            w.t(),
            Threads::All,
        );
    }

    fn backward(&self, x: &[f32], w: &[f32], vocabulary: usize, g: &[f32], dx: &mut [f32], dw: &mut [f32]) {
        let width = w.len() / vocabulary;
        let tokens = x.len() / width;
        let (by_log_prob, by_entropy) = g.split_at(tokens);
        let step = rows_at_a_time(vocabulary);
        let mut buffer = vec![0.0; step.min(tokens) * vocabulary];
        for start in (0..tokens).step_by(step) {
            let rows = start..(start + step).min(tokens);
            let x = &x[rows.start * width..rows.end * width];
            let slopes = &mut buffer[..rows.len() * vocabulary];
            self.logits(x, w, vocabulary, slopes);
            let weights = by_log_prob[rows.clone()].par_iter().zip(&by_entropy[rows.clone()]);
            let tasks = slopes
                .par_chunks_mut(vocabulary)
                .zip(&self.targets[rows.clone()])
                .zip(weights);
            tasks.for_each(|((row, target), (by_log_prob, by_entropy))| {
                let norm = Norm::of(row);
                to_slopes(row, norm.log_sum, norm.entropy, *by_log_prob, *by_entropy);
                row[*target as usize] += by_log_prob;
            });
            let scale = 1.0 / self.temperature;
            let slopes = Matrix::new(slopes, rows.len(), vocabulary);
            let dx = &mut dx[rows.start * width..rows.end * width];
            gemm(
                dx,
                width,
                Into::Replace,
                scale,
                slopes,
                Matrix::new(w, vocabulary, width),
                Threads::All,
            );
            if self.train_head {
                gemm(
                    dw,
                    width,
                    Into::Add,
                    scale,
                    slopes.t(),
                    Matrix::new(x, rows.len(), width),
                    Threads::All,
                );
            }
        }
    }
}

/// What a row's softmax is divided by, and its entropy.
struct Norm {
    log_sum: f32,
    entropy: f32,
}

impl Norm {
    fn of(logits: &[f32]) -> Self {
        let (largest, sum, weighted) = exp_sums(logits);
        let log_sum = largest + sum.ln();
        Self {
            log_sum,
            entropy: sum.ln() - weighted / sum,
        }
    }
}

/// Rows whose logits are held together.
fn rows_at_a_time(vocabulary: usize) -> usize {
    (LOGITS / vocabulary).clamp(1, MOST_TOKENS)
}

vectorized! {
    /// max, Σ e^(x − max) and Σ (x − max)·e^(x − max).
    fn exp_sums(logits: &[f32]) -> (f32, f32, f32) {
        let largest = max(logits);
        let total = sum(logits.len(), |i| exp(logits[i] - largest));
        let weighted = sum(logits.len(), |i| {
            let below = logits[i] - largest;
            below * exp(below)
        });
        (largest, total, weighted)
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
