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

use super::config::{ModelConfig, Rope};
use super::error::Result;
use super::packed_batch::PackedBatch;
use super::routing::ExpertLoads;

/// What the layers need to know about a batch, made once a pass.
#[derive(Clone, Debug)]
pub struct BatchContext {
    /// The tokens and their forest.
    pub batch: Arc<PackedBatch>,
    /// Tables of each rotary embedding of the model.
    pub ropes: Vec<RopeTables>,
    /// What each expert has computed; a layer that is computed again counts again.
    pub loads: ExpertLoads,
}

/// Cosines and sines of each token's rotary angles, each tokens × half of what is rotated of a head, f32.
#[derive(Clone, Debug)]
pub struct RopeTables {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
}

impl BatchContext {
    /// Checks the batch and computes its rotary tables.
    ///
    /// # Errors
    /// Fails if the batch is malformed.
    pub fn new(batch: &PackedBatch, config: &ModelConfig, device: &Device) -> Result<Self> {
        batch.validate()?;
        let tables = |rope: &Rope| -> Result<RopeTables> {
            let (cos, sin) = rope.tables(batch.positions.iter().copied());
            let shape = (batch.len(), rope.inv_freq.len());
            Ok(RopeTables {
                cos: Tensor::from_vec(cos, shape, device)?,
                sin: Tensor::from_vec(sin, shape, device)?,
            })
        };
        let experts = |layer| config.layer_experts(layer).map_or(0, |experts| experts.count);
        Ok(Self {
            ropes: config.ropes.iter().map(tables).collect::<Result<_>>()?,
            loads: ExpertLoads::new((0..config.layers.len()).map(experts)),
            batch: Arc::new(batch.clone()),
        })
    }
}

/// 0 where a key's place is at most the query's (`places`, … × 1, f32) and within its window, −∞ elsewhere: … × keys.
///
/// # Errors
/// Fails if out of memory.
pub fn visible(places: &Tensor, keys: usize, window: Option<usize>) -> candle_core::Result<Tensor> {
    let device = places.device();
    let key_places = Tensor::arange(0f32, keys as f32, device)?;
    let mut seen = key_places.broadcast_le(places)?;
    if let Some(window) = window {
        seen = (seen * key_places.broadcast_gt(&(places - window as f64)?)?)?;
    }
    let everywhere = |value: f32| Tensor::new(value, device)?.broadcast_as(seen.shape());
    seen.where_cond(&everywhere(0.0)?, &everywhere(f32::NEG_INFINITY)?)
}

/// c·tanh(x / c), or x without a cap c.
///
/// # Errors
/// Fails if out of memory.
pub fn soft_cap(x: &Tensor, cap: Option<f32>) -> candle_core::Result<Tensor> {
    match cap.map(f64::from) {
        Some(cap) => (x / cap)?.tanh()? * cap,
        None => Ok(x.clone()),
    }
}

/// The derivative of the soft cap where its result is `capped`: 1 − (capped / c)².
fn soft_cap_slopes(capped: &Tensor, cap: f32) -> candle_core::Result<Tensor> {
    (capped / f64::from(cap))?.sqr()?.affine(-1.0, 1.0)
}
