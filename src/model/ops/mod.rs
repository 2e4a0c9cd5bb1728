//! The differentiable operations of the transformer, for any device.

mod attention;
mod linear;
mod log_probs;
pub mod plain;
mod recorded;
pub mod restricted;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::config::Rope;
use super::error::Result;
use super::packed::PackedBatch;

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
    /// Fails if the batch is malformed.
    pub fn new(batch: &PackedBatch, rope: &Rope, device: &Device) -> Result<Self> {
        batch.validate()?;
        let (cos, sin) = rope.tables(batch.positions.iter().copied());
        let shape = (batch.len(), rope.inv_freq.len());
        Ok(Self {
            cos: Tensor::from_vec(cos, shape, device)?,
            sin: Tensor::from_vec(sin, shape, device)?,
            batch: Arc::new(batch.clone()),
        })
    }
}

/// 0 where a key's place is at most the query's (`places`, … × 1, f32), −∞ elsewhere: … × keys.
///
/// # Errors
/// Fails if out of memory.
pub fn visible(places: &Tensor, keys: usize) -> candle_core::Result<Tensor> {
    let device = places.device();
    let seen = Tensor::arange(0f32, keys as f32, device)?.broadcast_le(places)?;
    let everywhere = |value: f32| Tensor::new(value, device)?.broadcast_as(seen.shape());
    seen.where_cond(&everywhere(0.0)?, &everywhere(f32::NEG_INFINITY)?)
}
