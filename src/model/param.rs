//! Parameters of a model, frozen or trained.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};

use super::error::Result;
use super::kernels::{Isa, QuantizedMatrix};

/// One parameter.
#[derive(Clone, Debug)]
pub enum Param {
    /// Frozen, without a gradient.
    Frozen(Tensor),
    /// Frozen in the blocks of its GGUF file; out × in. Only the CPU kernels compute with it.
    Quantized(Arc<QuantizedMatrix>),
    /// Trained: the optimizer changes it in place.
    Trained(Var),
}

impl Param {
    /// Returns the current value, with a gradient if it is trained; `None` if it is quantised.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Frozen(t) => Some(t),
            Self::Quantized(_) => None,
            Self::Trained(v) => Some(v.as_tensor()),
        }
    }

    /// Returns the current value without a gradient; a quantised one as new f32 numbers.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn value(&self) -> Result<Tensor> {
        match self {
            Self::Frozen(t) => Ok(t.detach()),
            Self::Quantized(q) => {
                let shape = (q.outputs(), q.inputs());
                Ok(Tensor::from_vec(q.to_numbers(Isa::detect()), shape, &Device::Cpu)?)
            }
            Self::Trained(v) => Ok(v.as_detached_tensor()),
        }
    }

    /// Returns the shape.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            Self::Quantized(q) => vec![q.outputs(), q.inputs()],
            Self::Frozen(t) => t.dims().to_vec(),
            Self::Trained(v) => v.dims().to_vec(),
        }
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.dims().iter().product()
    }

    /// Returns the bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Quantized(q) => q.bytes(),
            _ => self.count() * self.dtype().size_in_bytes(),
        }
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.tensor().map_or(Device::Cpu, |t| t.device().clone())
    }

    /// Returns the type that it is computed with.
    pub fn dtype(&self) -> DType {
        self.tensor().map_or(DType::F32, Tensor::dtype)
    }
}
