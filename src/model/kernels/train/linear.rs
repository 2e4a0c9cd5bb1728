//! y = x·Wᵀ, and the same with a low-rank adapter, with backward passes that leave out what is frozen.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Device, Layout, Result, Shape, Tensor};

use super::gemm::{Into, Matrix, Threads, gemm};
use super::slices::{slice, with};

/// y = x·Wᵀ: tokens × in, out × in → tokens × out.
pub struct Linear {
    /// Whether W takes a gradient.
    pub train_weight: bool,
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((tokens, _), (out, _)) = (xl.shape().dims2()?, wl.shape().dims2()?);
        let y = forward(slice(x, xl)?, tokens, slice(w, wl)?, out);
        Ok((CpuStorage::F32(y), Shape::from((tokens, out))))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let dx = product(&g, w, Turn::Neither)?;
        let dw = self.train_weight.then(|| product(&g, x, Turn::First)).transpose()?;
        Ok((Some(dx), dw))
    }
}

/// y = x·Wᵀ + scale·(x·Aᵀ)·Bᵀ with W frozen; the three operands are x (tokens × in), A (rank × in), B (out × rank).
pub struct AdaptedLinear {
    /// W, out × in, contiguous.
    pub weight: Tensor,
    /// alpha / rank.
    pub scale: f32,
}

impl CustomOp3 for AdaptedLinear {
    fn name(&self) -> &'static str {
        "adapted_linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((tokens, _), (rank, _), (out, _)) = (xl.shape().dims2()?, al.shape().dims2()?, bl.shape().dims2()?);
        let x = slice(x, xl)?;
        let mut y = with(&self.weight, |w| Ok(forward(x, tokens, w, out)))?;
        let narrow = forward(x, tokens, slice(a, al)?, rank);
        let (narrow, b) = (
            Matrix::new(&narrow, tokens, rank),
            Matrix::new(slice(b, bl)?, out, rank),
        );
        gemm(&mut y, out, Into::Add, self.scale, narrow, b.t(), Threads::All);
        Ok((CpuStorage::F32(y), Shape::from((tokens, out))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (tokens, columns) = x.dims2()?;
        let rank = a.dim(0)?;
        let narrow = product(x, a, Turn::Second)?;
        let narrow_g = (product(&g, b, Turn::Neither)? * self.scale as f64)?;
        let da = product(&narrow_g, x, Turn::First)?;
        let db = (product(&g, &narrow, Turn::First)? * self.scale as f64)?;
        let dx = product(&g, &self.weight, Turn::Neither)?;
        super::slices::with_mut(&dx, |dx| {
            with(&narrow_g, |narrow_g| {
                with(a, |a| {
                    let (narrow_g, a) = (Matrix::new(narrow_g, tokens, rank), Matrix::new(a, rank, columns));
                    gemm(dx, columns, Into::Add, 1.0, narrow_g, a, Threads::All);
                    Ok(())
                })
            })
        })?;
        Ok((Some(dx), Some(da), Some(db)))
    }
}

/// x·Wᵀ.
fn forward(x: &[f32], tokens: usize, w: &[f32], out: usize) -> Vec<f32> {
    let columns = w.len() / out;
    let mut y = vec![0.0; tokens * out];
    let (x, w) = (Matrix::new(x, tokens, columns), Matrix::new(w, out, columns));
    gemm(&mut y, out, Into::Replace, 1.0, x, w.t(), Threads::All);
    y
}

/// Which factor of a product is transposed.
#[derive(PartialEq, Eq)]
enum Turn {
    Neither,
    First,
    Second,
}

/// a·b, aᵀ·b or a·bᵀ of contiguous matrices, outside any gradient.
fn product(a: &Tensor, b: &Tensor, turn: Turn) -> Result<Tensor> {
    let ((ra, ca), (rb, cb)) = (a.dims2()?, b.dims2()?);
    let (m, n) = (
        if turn == Turn::First { ca } else { ra },
        if turn == Turn::Second { rb } else { cb },
    );
    let mut out = vec![0.0; m * n];
    with(a, |a| {
        with(b, |b| {
            let (a, b) = (Matrix::new(a, ra, ca), Matrix::new(b, rb, cb));
            let a = if turn == Turn::First { a.t() } else { a };
            let b = if turn == Turn::Second { b.t() } else { b };
            gemm(&mut out, n, Into::Replace, 1.0, a, b, Threads::All);
            Ok(())
        })
    })?;
    Tensor::from_vec(out, (m, n), &Device::Cpu)
}
