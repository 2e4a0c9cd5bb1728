//! The one set of weights that sampler and trainer share.

use candle_core::{Tensor, Var};
use indexmap::IndexMap;

use super::config::ModelConfig;

/// One parameter.
#[derive(Clone, Debug)]
pub enum Param {
    /// Never changes; costs no gradient.
    Frozen(Tensor),
    /// Changed in place by the optimizer.
    Trained(Var),
}

impl Param {
    /// Its present value; gradients flow to it where it is trained.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Self::Frozen(t) => t,
            Self::Trained(v) => v.as_tensor(),
        }
    }
}

/// Every parameter by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`; linear weights are out × in).
#[derive(Clone, Debug)]
pub struct Weights {
    /// The architecture.
    pub config: ModelConfig,
    /// Name → parameter, in the model's order.
    pub params: IndexMap<String, Param>,
    /// Grows with every update, so that packed copies and caches know when they are stale.
    pub version: u64,
}
