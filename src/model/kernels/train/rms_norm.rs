//! y = x / rms(x) · w along the last dimension.

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::slices::{slice, with};
use super::vectorize::{dot, vectorized};

/// Rows of one task; fixed, so that the sum of the weight's gradient has a fixed order.
const ROWS: usize = 64;

/// The norm of x (… × width) with a weight of length width.
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the weight takes a gradient.
    pub train_weight: bool,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (slice(x, xl)?, slice(w, wl)?);
        let block = ROWS * w.len();
        let mut y = vec![0.0; x.len()];
        y.par_chunks_mut(block)
            .zip(x.par_chunks(block))
            .for_each(|(y, x)| forward(x, w, self.eps, y));
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let width = w.elem_count();
        let block = ROWS * width;
        let mut dx = vec![0.0; x.elem_count()];
        let partial = with(x, |x| {
            with(w, |w| {
                with(&g, |g| {
                    let blocks = dx
                        .par_chunks_mut(block)
                        .zip(x.par_chunks(block))
                        .zip(g.par_chunks(block));
                    let one = |((dx, x), g): ((&mut [f32], &[f32]), &[f32])| {
                        let mut dw = vec![0.0; width];
                        backward(x, w, g, self.eps, dx, &mut dw);
                        dw
                    };
                    Ok(blocks.map(one).collect::<Vec<_>>())
                })
            })
        })?;
        let dx = Tensor::from_vec(dx, x.shape(), &Device::Cpu)?;
        if !self.train_weight {
            return Ok((Some(dx), None));
        }
        let mut dw = vec![0.0; width];
        for partial in partial {
            dw.iter_mut().zip(partial).for_each(|(sum, part)| *sum += part);
        }
        Ok((Some(dx), Some(Tensor::from_vec(dw, w.shape(), &Device::Cpu)?)))
    }
}

vectorized! {
    fn forward(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        for (x, y) in x.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
            let inverse = 1.0 / (dot(x, x) / w.len() as f32 + eps).sqrt();
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * inverse * w;
            }
        }
    }
}

vectorized! {
    /// With r = 1 / rms: dx = r·(g·w − x·r²·mean(g·w·x)), dw += g·x·r.
    fn backward(x: &[f32], w: &[f32], g: &[f32], eps: f32, dx: &mut [f32], dw: &mut [f32]) {
        let width = w.len();
        for ((x, g), dx) in x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let inverse = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
            for i in 0..width {
                dx[i] = g[i] * w[i];
                dw[i] += g[i] * x[i] * inverse;
            }
            let along = dot(dx, x) * inverse * inverse / width as f32;
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = inverse * (*dx - x * along);
            }
        }
    }
}
