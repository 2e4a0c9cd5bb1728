//! A parameter of a model, frozen or trained.

use candle_core::{Tensor, Var};

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
