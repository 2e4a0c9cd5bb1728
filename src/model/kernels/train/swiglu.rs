//! silu(gate) · up.

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::slices::{slice, with};
use super::vectorize::{sigmoid, vectorized};

/// Numbers of one task.
const CHUNK: usize = 8 * 1024;

/// silu(gate) · up, element by element.
pub struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, gate: &CpuStorage, gl: &Layout, up: &CpuStorage, ul: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (slice(gate, gl)?, slice(up, ul)?);
        let mut y = vec![0.0; gate.len()];
        let chunks = y
            .par_chunks_mut(CHUNK)
            .zip(gate.par_chunks(CHUNK))
            .zip(up.par_chunks(CHUNK));
        chunks.for_each(|((y, gate), up)| forward(gate, up, y));
        Ok((CpuStorage::F32(y), gl.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (mut dgate, mut dup) = (vec![0.0; gate.elem_count()], vec![0.0; gate.elem_count()]);
        with(gate, |gate| {
            with(up, |up| {
                with(&g, |g| {
                    let outputs = dgate.par_chunks_mut(CHUNK).zip(dup.par_chunks_mut(CHUNK));
                    let inputs = gate
                        .par_chunks(CHUNK)
                        .zip(up.par_chunks(CHUNK))
                        .zip(g.par_chunks(CHUNK));
                    outputs
                        .zip(inputs)
                        .for_each(|((dgate, dup), ((gate, up), g))| backward(gate, up, g, dgate, dup));
                    Ok(())
                })
            })
        })?;
        let tensor = |values| Tensor::from_vec(values, gate.shape(), &Device::Cpu);
        Ok((Some(tensor(dgate)?), Some(tensor(dup)?)))
    }
}

vectorized! {
    fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(*gate) * up;
        }
    }
}

vectorized! {
    /// With s = sigmoid(gate): dgate = g·up·s·(1 + gate·(1 − s)), dup = g·gate·s.
    fn backward(gate: &[f32], up: &[f32], g: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        for ((dgate, dup), ((gate, up), g)) in dgate.iter_mut().zip(dup).zip(gate.iter().zip(up).zip(g)) {
            let s = sigmoid(*gate);
            *dgate = g * up * s * (1.0 + gate * (1.0 - s));
            *dup = g * gate * s;
        }
    }
}
