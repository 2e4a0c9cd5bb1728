//! Operations made of tensor operations both ways: the value is computed first, outside the tape, and put on it with a
//! function for its gradient. So a backward pass can leave out what is frozen and compute again what was too large to
//! keep, on every device.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, CustomOp3, Layout, MetalStorage, Result, Shape, Storage, Tensor, bail,
};

/// A value, and its gradient as a function of the operands and the value's gradient. Recording copies the value once.
pub(super) struct Recorded<F> {
    pub name: &'static str,
    /// Contiguous.
    pub value: Tensor,
    pub backward: F,
}

impl<F> Recorded<F> {
    /// A copy of the value's memory, which `of` knows to be of one kind.
    fn copy<S: BackendStorage>(&self, of: impl Fn(&Storage) -> Option<&S>) -> Result<(S, Shape)> {
        let (storage, layout) = self.value.storage_and_layout();
        match of(&storage) {
            Some(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            None => bail!("{}: the value is on another device than the operands", self.name),
        }
    }

    fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        self.copy(|storage| match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        })
    }

    fn on_cuda(&self) -> Result<(CudaStorage, Shape)> {
        self.copy(|storage| match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        })
    }

    fn on_metal(&self) -> Result<(MetalStorage, Shape)> {
        self.copy(|storage| match storage {
            Storage::Metal(storage) => Some(storage),
            _ => None,
        })
    }
}

type Two = (Option<Tensor>, Option<Tensor>);
type Three = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl<F: Fn(&Tensor, &Tensor, &Tensor) -> Result<Two>> CustomOp2 for Recorded<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_cuda()
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        self.on_metal()
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, _value: &Tensor, gradient: &Tensor) -> Result<Two> {
        (self.backward)(&a.detach(), &b.detach(), gradient)
    }
}

impl<F: Fn([&Tensor; 3], &Tensor) -> Result<Three>> CustomOp3 for Recorded<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_cuda()
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.on_metal()
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, c: &Tensor, _value: &Tensor, gradient: &Tensor) -> Result<Three> {
        (self.backward)([&a.detach(), &b.detach(), &c.detach()], gradient)
    }
}
