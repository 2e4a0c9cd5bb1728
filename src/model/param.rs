//! Parameters of a model, frozen or trained.

use candle_core::{Tensor, Var};

/// One parameter.
#[derive(Clone, Debug)]
pub enum Param {
    /// Frozen, without a gradient.
    Frozen(Tensor),
    /// Trained: the optimizer changes it in place.
    Trained(Var),
}

impl Param {
    /// Returns the current value, with a gradient if it is trained.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Self::Frozen(t) => t,
            Self::Trained(v) => v.as_tensor(),
        }
    }
}
