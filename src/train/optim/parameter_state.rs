//! AdamW's state of one parameter, and its step with the CPU kernel or in tensor operations.

use candle_core::{DType, Tensor, Var};

use crate::model::ModelError;
use crate::model::kernels::Pool;
use crate::model::kernels::adamw::{AdamWStep, adamw};
use crate::model::kernels::tensors::{Numbers, with_mut, zeros_side_by_side};
use crate::train::error::Result;

/// Optimizer's state of one parameter, in f32.
#[derive(Clone, Debug)]
pub struct ParameterState {
    /// First moment.
    pub first: Tensor,
    /// Second moment.
    pub second: Tensor,
    /// Master weight, if the model has the weight in a narrower type.
    pub master: Option<Tensor>,
}

impl ParameterState {
    /// Creates zero moments of all parameters, which are on one device.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn all(vars: &[Var], pool: &Pool) -> Result<Vec<Self>> {
        let (first, second) = (zero_moments(vars, pool)?, zero_moments(vars, pool)?);
        let moments = first.into_iter().zip(second);
        let state = |(var, (first, second)): (&Var, (Tensor, Tensor))| -> Result<Self> {
            let narrow = var.dtype() != DType::F32;
            let master = narrow
                .then(|| var.as_detached_tensor().to_dtype(DType::F32))
                .transpose()?;
            Ok(Self { first, second, master })
        };
        vars.iter().zip(moments).map(state).collect()
    }

    /// Runs one step in place with the CPU kernel.
    ///
    /// # Errors
    /// Fails if the gradient's shape differs from the parameter's.
    pub fn step(&mut self, pool: &Pool, var: &Var, gradient: &Tensor, step: &AdamWStep) -> Result<()> {
        if gradient.dims() != var.dims() {
            let (own, given) = (var.dims(), gradient.dims());
            let message = format!("a parameter of shape {own:?} has a gradient of {given:?}");
            return Err(ModelError::Tensors(message).into());
        }
        let gradient = gradient.contiguous()?;
        let gradient = Numbers::of(&gradient)?;
        with_mut(var, |weight| {
            with_mut(&self.first, |first| {
                with_mut(&self.second, |second| {
                    adamw(pool, weight, first, second, &gradient, step)
                })
            })
        })???;
        Ok(())
    }

    /// Runs the same step in tensor operations, on any device; returns the new f32 weight.
    pub fn next(&mut self, weight: Tensor, gradient: &Tensor, step: &AdamWStep) -> Result<Tensor> {
        let [beta1, beta2] = step.betas;
        let [correction1, correction2] = step.bias_corrections();
        let gradient = (gradient * step.gradient_scale)?;
        self.first = ((&self.first * beta1)? + (&gradient * (1.0 - beta1))?)?;
        self.second = ((&self.second * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
        let root = ((&self.second / correction2)?.sqrt()? + step.eps)?;
        let change = ((&self.first / root)? * (step.lr / correction1))?;
        let weight = ((weight * (1.0 - step.lr * step.weight_decay))? - change)?;
        self.master = self.master.is_some().then(|| weight.clone());
        Ok(weight)
    }
}

/// Returns f32 zeros of the parameters' shapes on their device.
fn zero_moments(vars: &[Var], pool: &Pool) -> Result<Vec<Tensor>> {
    if vars.iter().all(|var| var.device().is_cpu()) {
        return Ok(zeros_side_by_side(pool, vars.iter().map(|var| var.shape().clone()))?);
    }
    let zeros = vars
        .iter()
        .map(|var| Tensor::zeros(var.shape(), DType::F32, var.device()));
    Ok(zeros.collect::<candle_core::Result<_>>()?)
}

/// Returns whether a parameter decays: one-dimensional ones, norms and biases, do not.
pub fn decays(parameter: &Tensor) -> bool {
    parameter.rank() > 1
}
