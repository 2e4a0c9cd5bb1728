//! Rms-norm: x / √(mean(x²) + eps) · w along rows of w's length.

use rayon::prelude::*;

use super::accumulate::add_slice;
use super::vectorize::{dot, vectorized};

/// Rows of one task; fixed, so that the sum of the weight's gradient has a fixed order.
const ROWS: usize = 64;

/// The norm of each row of `x`.
///
/// # Panics
/// Lengths differ. So for the other functions here.
pub fn forward(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths of a norm's rows");
    let block = ROWS * w.len();
    y.par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .for_each(|(y, x)| norm(x, w, eps, y));
}

/// Given the gradient `g` of the result, adds that of the rows to `dx` and, where asked for, that of the weight to `dw`.
pub fn backward(x: &[f32], w: &[f32], g: &[f32], eps: f32, dx: &mut [f32], dw: Option<&mut [f32]>) {
    assert!(x.len() == g.len() && x.len() == dx.len(), "lengths of a norm's rows");
    let block = ROWS * w.len();
    let blocks = dx
        .par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .zip(g.par_chunks(block));
    let one = |((dx, x), g): ((&mut [f32], &[f32]), &[f32])| {
        let mut dw = vec![0.0; w.len()];
        slopes(x, w, g, eps, dx, &mut dw);
        dw
    };
    let partials: Vec<_> = blocks.map(one).collect();
    if let Some(dw) = dw {
        partials.iter().for_each(|partial| add_slice(dw, partial));
    }
}

vectorized! {
    fn norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        for (x, y) in x.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
            let inverse = 1.0 / (dot(x, x) / w.len() as f32 + eps).sqrt();
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * inverse * w;
            }
        }
    }
}

vectorized! {
    /// With r = 1 / rms: dx += r·(g·w − x·r²·mean(g·w·x)), dw += g·x·r.
    fn slopes(x: &[f32], w: &[f32], g: &[f32], eps: f32, dx: &mut [f32], dw: &mut [f32]) {
        let width = w.len();
        for ((x, g), dx) in x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let inverse = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
            let mut along = super::vectorize::sum(width, |i| g[i] * w[i] * x[i]);
            along *= inverse * inverse / width as f32;
            for i in 0..width {
                dw[i] += g[i] * x[i] * inverse;
                dx[i] += inverse * (g[i] * w[i] - x[i] * along);
            }
        }
    }
}
