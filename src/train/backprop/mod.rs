//! Forward and backward pass of the model, layer by layer, so that a layer can be recomputed in the backward pass
//! instead of stored (gradient checkpointing, arXiv 1604.06174). There are two implementations: the CPU kernels, and
//! candle's autograd for every device.

mod arena;
mod autograd;
mod kernels;
mod layer;
pub mod memory;
mod mixture;
mod pass;
mod projection;
pub mod recompute;
#[cfg(test)]
mod tests;
mod weight;

use std::sync::Arc;

use candle_core::DType;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::error::{Result, TrainError};
use super::gradients::Gradients;
use super::packing::MicroBatch;
use crate::config::schema::{Dtype, Kernels};
use crate::model::kernels::Compute;
use crate::model::kernels::{Pool, Precision};
use crate::model::{Transformer, Weights, compute_pool};
use arena::Arena;

/// Implementation of the passes, and the memory kept between them.
pub struct Backprop {
    method: Method,
    pool: Arc<Pool>,
    arena: Arena,
}

#[derive(Debug)]
enum Method {
    /// candle's autograd, on the CPU with its own thread pool.
    Autograd(Option<ThreadPool>),
    /// Our kernels, for f32 weights on the CPU.
    Kernels(Precision),
}

/// Result of a forward pass, for the backward pass.
pub struct Forward<'a>(Pass<'a>);

enum Pass<'a> {
    Autograd(autograd::Forward<'a>, Option<&'a ThreadPool>),
    Kernels(Box<kernels::Forward<'a>>),
}

impl Backprop {
    /// Chooses the fastest implementation for the weights. `kernels` may require candle's, and `dtype` bf16 products
    /// (with f32 sums) for f32 weights on a CPU.
    ///
    /// # Errors
    /// Fails if threads cannot be started.
    pub fn choose(weights: &Weights, kernels: Kernels, dtype: Dtype, pool: Arc<Pool>) -> Result<Self> {
        let on_cpu = weights.device().is_cpu();
        let method = match on_cpu && weights.dtype() == DType::F32 && kernels != Kernels::Plain {
            true => Method::Kernels(compute_pool::precision(dtype)),
            false => Method::Autograd(on_cpu.then(|| candle_threads(pool.threads())).transpose()?),
        };
        Ok(Self::new(method, pool))
    }

    fn new(method: Method, pool: Arc<Pool>) -> Self {
        Self {
            method,
            pool,
            arena: Arena::default(),
        }
    }

    /// Returns whether passes write gradients into memory that can be used again.
    pub fn writes_in_place(&self) -> bool {
        matches!(self.method, Method::Kernels(_))
    }

    /// Returns the log-probability of each prediction of a micro-batch.
    ///
    /// # Errors
    /// Fails if out of memory, or for a token outside the vocabulary.
    pub fn log_probs(&mut self, model: Transformer, micro: &MicroBatch, temperature: f64) -> Result<Vec<f32>> {
        match &self.method {
            Method::Autograd(threads) => run_on(threads.as_ref(), || autograd::log_probs(model, micro, temperature)),
            Method::Kernels(_) => Ok(self.forward(model, micro, temperature, true)?.outputs()?.0),
        }
    }

    /// Runs the forward pass of a micro-batch. With `recompute`, only the inputs of layers are stored.
    ///
    /// # Errors
    /// Fails if out of memory, or for a token outside the vocabulary.
    pub fn forward<'a>(
        &'a mut self,
        model: Transformer<'a>,
        micro: &'a MicroBatch,
        temperature: f64,
        recompute: bool,
    ) -> Result<Forward<'a>> {
        Ok(Forward(match &self.method {
            Method::Autograd(threads) => {
                let threads = threads.as_ref();
                let run = || autograd::Forward::run(model, micro, temperature, recompute);
                Pass::Autograd(run_on(threads, run)?, threads)
            }
            Method::Kernels(precision) => {
                let (compute, arena) = (Compute::new(&self.pool, *precision), &mut self.arena);
                let pass = kernels::Forward::run(model, compute, micro, temperature, recompute, arena)?;
                Pass::Kernels(Box::new(pass))
            }
        }))
    }
}

/// Returns the threads of candle's operations. Their number is fixed, so that results are reproducible.
fn candle_threads(count: usize) -> Result<ThreadPool> {
    let builder = ThreadPoolBuilder::new().num_threads(count);
    let named = builder.thread_name(|number| format!("train-{number}"));
    named.build().map_err(TrainError::Threads)
}

fn run_on<R: Send>(threads: Option<&ThreadPool>, work: impl FnOnce() -> R + Send) -> R {
    match threads {
        Some(threads) => threads.install(work),
        None => work(),
    }
}

impl Forward<'_> {
    /// Returns the log-probability and entropy of each prediction of the micro-batch.
    ///
    /// # Errors
    /// Fails if the device does.
    pub fn outputs(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        match &self.0 {
            Pass::Autograd(pass, threads) => run_on(*threads, || pass.outputs()),
            Pass::Kernels(pass) => Ok((pass.found.log_probs.clone(), pass.found.entropies.clone())),
        }
    }

    /// Returns the numbers of tokens that each expert has computed, by layer.
    pub fn expert_loads(&self) -> Vec<Vec<u64>> {
        match &self.0 {
            Pass::Autograd(pass, _) => pass.context.loads.counts(),
            Pass::Kernels(pass) => pass.context.loads.counts(),
        }
    }

    /// Adds to the gradients of the trained parameters, given the gradients of the loss with respect to log-probability
    /// and entropy of each prediction. Returns the tokens of the batch whose gradient at the lowest layer that it is
    /// computed for is not finite.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(self, by_log_prob: &[f32], by_entropy: &[f32], gradients: &mut Gradients) -> Result<Vec<usize>> {
        match self.0 {
            Pass::Autograd(pass, threads) => run_on(threads, || pass.backward(by_log_prob, by_entropy, gradients)),
            Pass::Kernels(pass) => pass.backward(by_log_prob, by_entropy, gradients),
        }
    }
}
