//! Rotary embedding, half-split, with a table row for each token.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::slices::{slice, with};
use super::vectorize::vectorized;

/// Tokens of one task.
const TOKENS: usize = 32;

/// Turns tokens × (heads · 2·half). The tables are tokens × half.
pub struct Rope {
    /// cos of each token's angles.
    pub cos: Tensor,
    /// sin of each token's angles.
    pub sin: Tensor,
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = layout.shape().dims2()?.1;
        Ok((
            CpuStorage::F32(self.turn(slice(x, layout)?, width, 1.0)?),
            layout.shape().clone(),
        ))
    }

    /// The gradient is turned back.
    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let width = x.dims2()?.1;
        let dx = with(&g.contiguous()?, |g| self.turn(g, width, -1.0))?;
        Ok(Some(Tensor::from_vec(dx, x.shape(), &Device::Cpu)?))
    }
}

impl Rope {
    fn turn(&self, x: &[f32], width: usize, direction: f32) -> Result<Vec<f32>> {
        let half = self.cos.dim(1)?;
        let mut y = vec![0.0; x.len()];
        with(&self.cos, |cos| {
            with(&self.sin, |sin| {
                let tasks = y.par_chunks_mut(TOKENS * width).zip(x.par_chunks(TOKENS * width));
                let tables = cos.par_chunks(TOKENS * half).zip(sin.par_chunks(TOKENS * half));
                tasks
                    .zip(tables)
                    .for_each(|((y, x), (cos, sin))| turn(x, cos, sin, width, half, direction, y));
                Ok(())
            })
        })?;
        Ok(y)
    }
}

vectorized! {
    fn turn(x: &[f32], cos: &[f32], sin: &[f32], width: usize, half: usize, direction: f32, y: &mut [f32]) {
        let tokens = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for ((x, y), (cos, sin)) in tokens.zip(cos.chunks_exact(half).zip(sin.chunks_exact(half))) {
            for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
                let ((x0, x1), (y0, y1)) = (x.split_at(half), y.split_at_mut(half));
                for i in 0..half {
                    let s = direction * sin[i];
                    y0[i] = x0[i] * cos[i] - x1[i] * s;
                    y1[i] = x1[i] * cos[i] + x0[i] * s;
                }
            }
        }
    }
}
