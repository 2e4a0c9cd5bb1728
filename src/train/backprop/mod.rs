//! Forward and backward through the model, layer by layer, so that a layer can be computed again in the backward pass
//! (gradient checkpointing, arXiv 1604.06174) instead of being kept. Two ways: on the CPU's kernels, and on candle's
//! tape for every device.

mod arena;
mod kernels;
mod layer;
mod projection;
pub mod recompute;
mod tape;
#[cfg(test)]
mod tests;

use candle_core::DType;

use super::error::Result;
use super::gradients::Gradients;
use super::packing::MicroBatch;
use crate::config::schema::{Dtype, Kernels};
use crate::model::kernels::train::gemm::{Method, Precision};
use crate::model::{Transformer, Weights};
use arena::Arena;

/// How passes are computed, and the memory that is kept between them.
pub struct Backprop {
    way: Way,
    arena: Arena,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// candle's differentiable operations.
    Tape,
    /// Kernels of our own, for f32 weights on the CPU.
    Kernels(Method),
}

/// A forward pass that can go back.
pub struct Forward<'a>(Pass<'a>);

enum Pass<'a> {
    Tape(tape::Forward<'a>),
    Kernels(Box<kernels::Forward<'a>>),
}

impl Backprop {
    /// The fastest way for the weights; `kernels` may ask for candle's, and `dtype` for products of bf16 (with f32
    /// sums), where weights are f32 on a CPU.
    pub fn choose(weights: &Weights, kernels: Kernels, dtype: Dtype) -> Self {
        let on_cpu = weights.device().is_cpu() && weights.dtype() == DType::F32;
        let precision = match dtype {
            Dtype::Bf16 => Precision::Bf16,
            Dtype::Auto | Dtype::F32 => Precision::F32,
        };
        Self::new(match on_cpu && kernels != Kernels::Plain {
            true => Way::Kernels(Method::best(precision)),
            false => Way::Tape,
        })
    }

    fn new(way: Way) -> Self {
        Self {
            way,
            arena: Arena::default(),
        }
    }

    /// The log-probability of each prediction of a micro-batch, to be called on the threads that compute.
    ///
    /// # Errors
    /// Out of memory, or a token outside the vocabulary.
    pub fn log_probs(&mut self, model: Transformer, micro: &MicroBatch, temperature: f64) -> Result<Vec<f32>> {
        match self.way {
            Way::Tape => tape::log_probs(model, micro, temperature),
            Way::Kernels(_) => Ok(self.forward(model, micro, temperature, true)?.outputs()?.0),
        }
    }

    /// Runs the model over a micro-batch. `recompute` keeps only the layers' inputs.
    ///
    /// # Errors
    /// Out of memory, or a token outside the vocabulary.
    pub fn forward<'a>(
        &'a mut self,
        model: Transformer<'a>,
        micro: &'a MicroBatch,
        temperature: f64,
        recompute: bool,
    ) -> Result<Forward<'a>> {
        Ok(Forward(match self.way {
            Way::Tape => Pass::Tape(tape::Forward::run(model, micro, temperature, recompute)?),
            Way::Kernels(method) => {
                let arena = &mut self.arena;
                let pass = kernels::Forward::run(model, method, micro, temperature as f32, recompute, arena)?;
                Pass::Kernels(Box::new(pass))
            }
        }))
    }
}

impl Forward<'_> {
    /// Log-probability and entropy of each prediction of the micro-batch.
    ///
    /// # Errors
    /// The device failed.
    pub fn outputs(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        match &self.0 {
            Pass::Tape(pass) => pass.outputs(),
            Pass::Kernels(pass) => Ok((pass.found.log_probs.clone(), pass.found.entropies.clone())),
        }
    }

    /// Adds to the gradients of the trained parameters, given those of the loss by log-probability and entropy of each
    /// prediction. Returns the tokens of the batch at whose embedding the gradient is not finite.
    ///
    /// # Errors
    /// Out of memory.
    pub fn backward(self, by_log_prob: &[f32], by_entropy: &[f32], gradients: &mut Gradients) -> Result<Vec<usize>> {
        match self.0 {
            Pass::Tape(pass) => pass.backward(by_log_prob, by_entropy, gradients),
            Pass::Kernels(pass) => pass.backward(by_log_prob, by_entropy, gradients),
        }
    }
}
