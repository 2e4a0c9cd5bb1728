//! y = x·Wᵀ on any device, with candle's matrix product but a backward pass that leaves out what is frozen: candle's own
//! computes both gradients always, which costs LoRA a third of its arithmetic and a gradient as large as each weight.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, MetalStorage, Result, Shape, Tensor};

/// tokens × in, out × in → tokens × out.
///
/// 2·tokens·in·out operations forward, as many for x's gradient and, where W is trained, for W's. W's gradient is taken
/// as gᵀ·x, so that it lies in memory as W does.
pub(super) struct Linear {
    /// Whether W takes a gradient.
    pub train_weight: bool,
}

fn forward<S: BackendStorage>(x: &S, x_layout: &Layout, w: &S, w_layout: &Layout) -> Result<(S, Shape)> {
    let ((tokens, columns), (out, _)) = (x_layout.shape().dims2()?, w_layout.shape().dims2()?);
    let y = x.matmul(w, (1, tokens, out, columns), x_layout, &w_layout.transpose(0, 1)?)?;
    Ok((y, Shape::from((tokens, out))))
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        forward(x, xl, w, wl)
    }

    fn cuda_fwd(&self, x: &CudaStorage, xl: &Layout, w: &CudaStorage, wl: &Layout) -> Result<(CudaStorage, Shape)> {
        forward(x, xl, w, wl)
    }

    fn metal_fwd(&self, x: &MetalStorage, xl: &Layout, w: &MetalStorage, wl: &Layout) -> Result<(MetalStorage, Shape)> {
        forward(x, xl, w, wl)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (g, x, w) = (g.contiguous()?, x.detach(), w.detach());
        let by_weight = self.train_weight.then(|| g.t()?.matmul(&x)).transpose()?;
        Ok((Some(g.matmul(&w)?), by_weight))
    }
}
