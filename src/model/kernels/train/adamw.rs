//! One AdamW step over one parameter in one pass.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::slices;

/// Constants of one step, bias corrections included.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of this parameter.
    pub weight_decay: f64,
    /// Gradients are multiplied by this first (clipping).
    pub gradient_scale: f64,
    /// Number of the step, the first being 1.
    pub step: u64,
}

impl AdamWStep {
    /// 1 − βᵗ of both moments.
    pub fn bias_corrections(&self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 - beta.powf(self.step as f64))
    }
}

const CHUNK: usize = 16 * 1024;

/// Changes weight and moments in place; all four are contiguous f32 CPU tensors of one shape.
///
/// # Errors
/// One of them is not.
pub fn adamw(weight: &Tensor, first: &Tensor, second: &Tensor, gradient: &Tensor, step: &AdamWStep) -> Result<()> {
    slices::with_mut(weight, |w| {
        slices::with_mut(first, |m| {
            slices::with_mut(second, |v| slices::with(gradient, |g| run(w, m, v, g, step)))
        })
    })
}

fn run(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &AdamWStep) -> Result<()> {
    if m.len() != w.len() || v.len() != w.len() || g.len() != w.len() {
        candle_core::bail!("a parameter of {} numbers has a gradient of {}", w.len(), g.len());
    }
    let [beta1, beta2] = step.betas.map(|beta| beta as f32);
    let [rest1, rest2] = step.betas.map(|beta| (1.0 - beta) as f32);
    let [correction1, correction2] = step.bias_corrections();
    let (rate, root) = ((step.lr / correction1) as f32, (1.0 / correction2.sqrt()) as f32);
    let (keep, eps, scale) = (
        (1.0 - step.lr * step.weight_decay) as f32,
        step.eps as f32,
        step.gradient_scale as f32,
    );
    let chunks = w
        .par_chunks_mut(CHUNK)
        .zip(m.par_chunks_mut(CHUNK))
        .zip(v.par_chunks_mut(CHUNK))
        .zip(g.par_chunks(CHUNK));
    chunks.for_each(|(((w, m), v), g)| {
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * scale;
            *m = beta1 * *m + rest1 * g;
            *v = beta2 * *v + rest2 * g * g;
            *w = *w * keep - rate * *m / (v.sqrt() * root + eps);
        }
    });
    Ok(())
}
