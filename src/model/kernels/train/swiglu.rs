//! silu(gate) · up, element by element.

use rayon::prelude::*;

use super::vectorize::{sigmoid, vectorized};

/// Numbers of one task.
const CHUNK: usize = 8 * 1024;

/// y = silu(gate) · up.
///
/// # Panics
/// Lengths differ. So for the other function here.
pub fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert!(
        gate.len() == up.len() && gate.len() == y.len(),
        "lengths of gate and up"
    );
    let chunks = y
        .par_chunks_mut(CHUNK)
        .zip(gate.par_chunks(CHUNK))
        .zip(up.par_chunks(CHUNK));
    chunks.for_each(|((y, gate), up)| gated(gate, up, y));
}

/// Given the gradient `g` of the result, gate and up become their gradients.
pub fn backward(gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    assert!(
        gate.len() == up.len() && gate.len() == g.len(),
        "lengths of gate and up"
    );
    let chunks = gate
        .par_chunks_mut(CHUNK)
        .zip(up.par_chunks_mut(CHUNK))
        .zip(g.par_chunks(CHUNK));
    chunks.for_each(|((gate, up), g)| to_slopes(gate, up, g));
}

vectorized! {
    fn gated(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(*gate) * up;
        }
    }
}

vectorized! {
    /// With s = sigmoid(gate): dgate = g·up·s·(1 + gate·(1 − s)), dup = g·gate·s.
    fn to_slopes(gate: &mut [f32], up: &mut [f32], g: &[f32]) {
        for ((gate, up), g) in gate.iter_mut().zip(up).zip(g) {
            let s = sigmoid(*gate);
            (*gate, *up) = (g * *up * s * (1.0 + *gate * (1.0 - s)), g * *gate * s);
        }
    }
}
