//! The differentiable operations of the transformer, chosen by device in one place.

mod attention;
mod fast;
mod linear;
mod log_probs;
pub mod plain;
mod recorded;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::config::{ModelConfig, Rope};
use super::error::Result;
use super::packed::PackedBatch;

/// Which operations compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops {
    /// candle's tensor operations, on any device.
    Plain,
    /// Kernels of our own with a backward pass, for f32 on CPU.
    Kernels,
}

/// What the layers need to know about a batch, made once a pass.
#[derive(Clone, Debug)]
pub struct BatchContext {
    /// The tokens and their forest.
    pub batch: Arc<PackedBatch>,
    /// cos of each token's rotary angles, tokens × head_dim / 2, f32.
    pub cos: Tensor,
    /// sin of each token's rotary angles, tokens × head_dim / 2, f32.
    pub sin: Tensor,
}

impl BatchContext {
    /// Checks the batch and computes its rotary tables.
    ///
    /// # Errors
    /// The batch is malformed.
    pub fn new(batch: &PackedBatch, rope: &Rope, device: &Device) -> Result<Self> {
        batch.validate()?;
        let angles_at = |position: u32| rope.inv_freq.iter().map(move |f| position as f32 * f);
        let angles: Vec<f32> = batch.positions.iter().copied().flat_map(angles_at).collect();
        let shape = (batch.len(), rope.inv_freq.len());
        let table = |f: fn(f32) -> f32| -> Result<Tensor> {
            let values: Vec<f32> = angles.iter().map(|a| f(*a) * rope.attention_factor).collect();
            Ok(Tensor::from_vec(values, shape, device)?)
        };
        Ok(Self {
            cos: table(f32::cos)?,
            sin: table(f32::sin)?,
            batch: Arc::new(batch.clone()),
        })
    }
}

impl Ops {
    /// The fastest operations for weights of a type on a device; `plain` asks for candle's own.
    pub fn choose(device: &Device, dtype: DType, plain: bool) -> Self {
        match device.is_cpu() && dtype == DType::F32 && !plain {
            true => Self::Kernels,
            false => Self::Plain,
        }
    }

    /// y = x·wᵀ (+ bias); see [`plain::linear`].
    ///
    /// # Errors
    /// Shapes that do not fit; out of memory. So for the other operations.
    pub fn linear(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Self::Plain => plain::linear(x, weight, bias),
            Self::Kernels => fast::linear(x, weight, bias),
        }
    }

    /// y = x·wᵀ (+ bias) + scale·(x·aᵀ)·bᵀ, w frozen; a is rank × in and b out × rank, both f32.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn adapted_linear(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        (a, b): (&Tensor, &Tensor),
        scale: f64,
    ) -> Result<Tensor> {
        match self {
            Self::Plain => plain::adapted_linear(x, weight, bias, (a, b), scale),
            Self::Kernels => fast::adapted_linear(x, weight, bias, (a, b), scale),
        }
    }

    /// Rms-norm along the last dimension; see [`plain::rms_norm`].
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn rms_norm(self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        match self {
            Self::Plain => plain::rms_norm(x, weight, eps),
            Self::Kernels => fast::rms_norm(x, weight, eps),
        }
    }

    /// Rotary embedding of tokens × (heads · head_dim); see [`plain::rope`].
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn rope(self, x: &Tensor, heads: usize, context: &BatchContext) -> Result<Tensor> {
        match self {
            Self::Plain => plain::rope(x, heads, context),
            Self::Kernels => fast::rope(x, context),
        }
    }

    /// silu(gate) · up.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn swiglu(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain => plain::swiglu(gate, up),
            Self::Kernels => fast::swiglu(gate, up),
        }
    }

    /// Attention over the batch's forest; see [`plain::attention`].
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn attention(
        self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        config: &ModelConfig,
        context: &BatchContext,
    ) -> Result<Tensor> {
        match self {
            Self::Plain => plain::attention(q, k, v, config, context),
            Self::Kernels => fast::attention(q, k, v, config, context),
        }
    }

    /// Log-probabilities of targets and entropies; see [`plain::log_probs`].
    ///
    /// # Errors
    /// As [`Ops::linear`].
    pub fn log_probs(
        self,
        hidden: &Tensor,
        head: &Tensor,
        targets: &[u32],
        temperature: f64,
    ) -> Result<(Tensor, Tensor)> {
        match self {
            Self::Plain => plain::log_probs(hidden, head, targets, temperature),
            Self::Kernels => fast::log_probs(hidden, head, targets, temperature),
        }
    }
}

/// 0 where a key's place is at most the query's (`places`, … × 1, f32), −∞ elsewhere: … × keys.
///
/// # Errors
/// Out of memory.
pub fn visible(places: &Tensor, keys: usize) -> candle_core::Result<Tensor> {
    let device = places.device();
    let seen = Tensor::arange(0f32, keys as f32, device)?.broadcast_le(places)?;
    let everywhere = |value: f32| Tensor::new(value, device)?.broadcast_as(seen.shape());
    seen.where_cond(&everywhere(0.0)?, &everywhere(f32::NEG_INFINITY)?)
}
