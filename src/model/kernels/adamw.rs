//! One AdamW step over one parameter in one pass.

use super::isa::kernel;
use super::threads::Pool;

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
    /// Returns 1 − βᵗ of both moments.
    pub fn bias_corrections(&self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 - beta.powf(self.step as f64))
    }

    fn factors(&self) -> Factors {
        let [correction1, correction2] = self.bias_corrections();
        Factors {
            betas: self.betas.map(|beta| beta as f32),
            rests: self.betas.map(|beta| (1.0 - beta) as f32),
            rate: (self.lr / correction1) as f32,
            root: (1.0 / correction2.sqrt()) as f32,
            keep: (1.0 - self.lr * self.weight_decay) as f32,
            eps: self.eps as f32,
            scale: self.gradient_scale as f32,
        }
    }
}

/// What each number of a parameter is treated with.
#[derive(Clone, Copy)]
struct Factors {
    betas: [f32; 2],
    rests: [f32; 2],
    rate: f32,
    root: f32,
    keep: f32,
    eps: f32,
    scale: f32,
}

const CHUNK: usize = 16 * 1024;

/// Updates a weight and its moments in place (Loshchilov & Hutter 2019).
///
/// # Panics
/// Panics if the lengths differ.
pub fn adamw(
    pool: &Pool,
    weight: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    step: &AdamWStep,
) {
    let lengths = [first.len(), second.len(), gradient.len()];
    assert!(
        lengths.iter().all(|length| *length == weight.len()),
        "a parameter of {} numbers has moments and a gradient of {lengths:?}",
        weight.len()
    );
    let factors = step.factors();
    let moments = first.chunks_mut(CHUNK).zip(second.chunks_mut(CHUNK));
    let chunks = weight.chunks_mut(CHUNK).zip(moments).zip(gradient.chunks(CHUNK));
    pool.each(chunks, |((w, (m, v)), g)| change(pool.isa(), w, m, v, g, factors));
}

kernel! {
    fn change<V>(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], by: Factors) {
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * by.scale;
            *m = by.betas[0] * *m + by.rests[0] * g;
            *v = by.betas[1] * *v + by.rests[1] * g * g;
            *w = *w * by.keep - by.rate * *m / (v.sqrt() * by.root + by.eps);
        }
    }
}
