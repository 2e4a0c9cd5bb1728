//! AdamW (decoupled weight decay, arXiv 1711.05101) with f32 moments and, where the model computes in a narrower type,
//! f32 master weights.

use candle_core::{DType, Device, Tensor, Var};
use indexmap::IndexMap;

use super::error::Result;
use super::gradients::Gradients;
use crate::config::schema::Optim;
use crate::model::Weights;
use crate::model::kernels::train::adamw::{AdamWStep, adamw};

/// The optimizer of a set of weights.
#[derive(Clone, Debug)]
pub struct AdamW {
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    /// Steps taken.
    pub(super) steps: u64,
    /// Parameter name → its state, in the model's order.
    pub(super) slots: IndexMap<String, Slot>,
}

/// What the optimizer keeps of one parameter, all f32.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// First moment.
    pub first: Tensor,
    /// Second moment.
    pub second: Tensor,
    /// The weight in full precision, where the model holds it in a narrower type.
    pub master: Option<Tensor>,
}

impl AdamW {
    /// Zero moments for every trained parameter.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(weights: &Weights, optim: &Optim) -> Result<Self> {
        let slots = weights
            .trainable()
            .into_iter()
            .map(|(name, var)| Ok((name, Slot::new(&var)?)));
        Ok(Self {
            betas: optim.betas,
            eps: optim.eps,
            weight_decay: optim.weight_decay,
            steps: 0,
            slots: slots.collect::<Result<_>>()?,
        })
    }

    /// Changes the weights in place by one step with the given learning rate and counts their version up. Gradients
    /// are multiplied by `gradient_scale` first. A parameter without a gradient only decays.
    ///
    /// # Errors
    /// Out of memory, or a gradient of another shape than its parameter.
    pub fn step(&mut self, weights: &mut Weights, gradients: &Gradients, lr: f64, gradient_scale: f64) -> Result<()> {
        self.steps += 1;
        for (name, var) in weights.trainable() {
            let Some(slot) = self.slots.get_mut(&name) else {
                continue;
            };
            let step = AdamWStep {
                lr,
                betas: self.betas,
                eps: self.eps,
                weight_decay: if decays(&var) { self.weight_decay } else { 0.0 },
                gradient_scale,
                step: self.steps,
            };
            match gradients.by_name.get(&name) {
                Some(gradient) => slot.step(&var, gradient, &step)?,
                None => slot.step(&var, &slot.first.zeros_like()?, &step)?,
            }
        }
        weights.version += 1;
        Ok(())
    }
}

/// Norms and biases, the one-dimensional parameters, do not decay.
fn decays(parameter: &Tensor) -> bool {
    parameter.rank() > 1
}

impl Slot {
    fn new(var: &Var) -> Result<Self> {
        let zeros = || Tensor::zeros(var.shape(), DType::F32, var.device());
        let narrow = var.dtype() != DType::F32;
        let master = narrow
            .then(|| var.as_detached_tensor().to_dtype(DType::F32))
            .transpose()?;
        Ok(Self {
            first: zeros()?,
            second: zeros()?,
            master,
        })
    }

    fn step(&mut self, var: &Var, gradient: &Tensor, step: &AdamWStep) -> Result<()> {
        match (&self.master, var.device()) {
            (None, Device::Cpu) => Ok(adamw(var, &self.first, &self.second, &gradient.contiguous()?, step)?),
            _ => self.step_by_tensors(var, gradient, step),
        }
    }

    /// The same step on any device, in candle's operations.
    fn step_by_tensors(&mut self, var: &Var, gradient: &Tensor, step: &AdamWStep) -> Result<()> {
        let [beta1, beta2] = step.betas;
        let [correction1, correction2] = step.bias_corrections();
        let gradient = (gradient.detach() * step.gradient_scale)?;
        self.first = ((&self.first * beta1)? + (&gradient * (1.0 - beta1))?)?;
        self.second = ((&self.second * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
        let root = ((&self.second / correction2)?.sqrt()? + step.eps)?;
        let change = ((&self.first / root)? * (step.lr / correction1))?;
        let weight = self.master.clone().unwrap_or_else(|| var.as_detached_tensor());
        let weight = ((weight * (1.0 - step.lr * step.weight_decay))? - change)?;
        var.set(&weight.to_dtype(var.dtype())?)?;
        self.master = self.master.is_some().then_some(weight);
        Ok(())
    }
}
