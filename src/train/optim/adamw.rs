//! AdamW (decoupled weight decay, arXiv 1711.05101) with f32 moments and, where the model computes in a narrower type,
//! f32 master weights.

use candle_core::{DType, Device, Tensor, Var};
use indexmap::IndexMap;

use super::adamw_groups::Group;
use crate::config::schema::Optim;
use crate::model::kernels::train::adamw::{AdamWStep, adamw};
use crate::model::kernels::train::slices::{Numbers, with_mut, zeros};
use crate::model::{ModelError, Weights};
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// The optimizer of a set of weights.
#[derive(Clone, Debug)]
pub struct AdamW {
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    /// Steps taken.
    pub(crate) steps: u64,
    state: State,
}

/// Where the optimizer's state lies.
#[derive(Clone, Debug)]
enum State {
    /// Parameter name → its state, in the model's order: for the kernel, which takes one parameter after the other.
    Each(IndexMap<String, Slot>),
    /// Many parameters in one tensor: for tensor operations, each of which is a launch on a GPU.
    Grouped(Vec<Group>),
}

impl State {
    fn new(slots: IndexMap<String, Slot>) -> Result<Self> {
        let on_kernel = |slot: &Slot| slot.master.is_none() && slot.first.device().is_cpu();
        match slots.values().all(on_kernel) {
            true => Ok(Self::Each(slots)),
            false => Ok(Self::Grouped(Group::all(slots)?)),
        }
    }
}

/// What the optimizer keeps of one parameter, all f32.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
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
            state: State::new(slots.collect::<Result<_>>()?)?,
        })
    }

    /// Parameter name → its state, sharing memory with the optimizer.
    ///
    /// # Errors
    /// None but the device's.
    pub(crate) fn slots(&self) -> Result<IndexMap<String, Slot>> {
        match &self.state {
            State::Each(slots) => Ok(slots.clone()),
            State::Grouped(groups) => {
                let slots = groups.iter().map(Group::slots).collect::<Result<Vec<_>>>()?;
                Ok(slots.into_iter().flatten().collect())
            }
        }
    }

    /// Takes over a saved state.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn set_slots(&mut self, slots: IndexMap<String, Slot>) -> Result<()> {
        self.state = State::new(slots)?;
        Ok(())
    }

    /// Changes the weights in place by one step with the given learning rate and counts their version up. Gradients
    /// are multiplied by `gradient_scale` first. A parameter without a gradient only decays.
    ///
    /// # Errors
    /// Out of memory, or a gradient of another shape than its parameter.
    pub fn step(&mut self, weights: &mut Weights, gradients: &Gradients, lr: f64, gradient_scale: f64) -> Result<()> {
        self.steps += 1;
        let step = AdamWStep {
            lr,
            betas: self.betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            gradient_scale,
            step: self.steps,
        };
        let trained: IndexMap<String, Var> = weights.trainable().into_iter().collect();
        match &mut self.state {
            State::Grouped(groups) => groups
                .iter_mut()
                .try_for_each(|group| group.step(&trained, gradients, &step))?,
            State::Each(slots) => {
                for (name, slot) in slots {
                    let var = &trained[name];
                    let step = AdamWStep {
                        weight_decay: if decays(var) { step.weight_decay } else { 0.0 },
                        ..step
                    };
                    match gradients.by_name.get(name) {
                        Some(gradient) => slot.step(var, gradient, &step)?,
                        None => slot.step(var, &slot.first.zeros_like()?, &step)?,
                    }
                }
            }
        }
        weights.version += 1;
        Ok(())
    }
}

/// Norms and biases, the one-dimensional parameters, do not decay.
pub(crate) fn decays(parameter: &Tensor) -> bool {
    parameter.rank() > 1
}

impl Slot {
    fn new(var: &Var) -> Result<Self> {
        let zeros = || match var.device() {
            Device::Cpu => zeros(var.shape()),
            device => Tensor::zeros(var.shape(), DType::F32, device),
        };
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
        if gradient.dims() != var.dims() {
            let (own, given) = (var.dims(), gradient.dims());
            let message = format!("a parameter of shape {own:?} has a gradient of {given:?}");
            return Err(ModelError::Tensors(message).into());
        }
        let gradient = gradient.contiguous()?;
        let gradient = Numbers::of(&gradient)?;
        with_mut(var, |weight| {
            with_mut(&self.first, |first| {
                with_mut(&self.second, |second| adamw(weight, first, second, &gradient, step))
            })
        })???;
        Ok(())
    }

    /// The same step in tensor operations, on any device: from a weight in f32 to the next one.
    pub(crate) fn next(&mut self, weight: Tensor, gradient: &Tensor, step: &AdamWStep) -> Result<Tensor> {
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
