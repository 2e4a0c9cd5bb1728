//! AdamW (decoupled weight decay, arXiv 1711.05101) with f32 moments and, if the model computes in a narrower type, f32
//! master weights.

use candle_core::Var;
use indexmap::IndexMap;

use super::adamw_groups::Group;
use super::parameter_state::{ParameterState, decays};
use crate::config::schema::Optim;
use crate::model::Weights;
use crate::model::kernels::Pool;
use crate::model::kernels::adamw::AdamWStep;
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Optimizer of a set of weights.
#[derive(Clone, Debug)]
pub struct AdamW {
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    /// Number of steps taken.
    pub(crate) steps: u64,
    state: State,
}

/// Storage of the optimizer's state.
#[derive(Clone, Debug)]
enum State {
    /// State by parameter name in the model's order, for the kernel, which processes parameters one by one.
    Each(IndexMap<String, ParameterState>),
    /// Many parameters in one tensor, for tensor operations, each of which is a launch on a GPU.
    Grouped(Vec<Group>),
}

impl State {
    fn new(slots: IndexMap<String, ParameterState>) -> Result<Self> {
        let on_kernel = |slot: &ParameterState| slot.master.is_none() && slot.first.device().is_cpu();
        match slots.values().all(on_kernel) {
            true => Ok(Self::Each(slots)),
            false => Ok(Self::Grouped(Group::all(slots)?)),
        }
    }
}

impl AdamW {
    /// Creates zero moments for every trained parameter. On a CPU the threads of `pool` write to their memory now, so
    /// that the first step does not wait for the system to provide it.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn new(weights: &Weights, optim: &Optim, pool: &Pool) -> Result<Self> {
        Self::of_part(weights, optim, pool, |_| true)
    }

    /// As [`new`](Self::new), for the trained parameters of which `part` is true: a step leaves the others alone.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn of_part(weights: &Weights, optim: &Optim, pool: &Pool, part: impl Fn(&str) -> bool) -> Result<Self> {
        let trained = weights.trainable().into_iter().filter(|(name, _)| part(name));
        let (names, vars): (Vec<_>, Vec<_>) = trained.unzip();
        let states = ParameterState::all(&vars, pool)?;
        Ok(Self {
            betas: optim.betas,
            eps: optim.eps,
            weight_decay: optim.weight_decay,
            steps: 0,
            state: State::new(names.into_iter().zip(states).collect())?,
        })
    }

    /// Returns the state by parameter name, sharing memory with the optimizer.
    ///
    /// # Errors
    /// Only errors of the device.
    pub(crate) fn slots(&self) -> Result<IndexMap<String, ParameterState>> {
        match &self.state {
            State::Each(slots) => Ok(slots.clone()),
            State::Grouped(groups) => {
                let slots = groups.iter().map(Group::slots).collect::<Result<Vec<_>>>()?;
                Ok(slots.into_iter().flatten().collect())
            }
        }
    }

    /// Loads a saved state.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub(crate) fn set_slots(&mut self, slots: IndexMap<String, ParameterState>) -> Result<()> {
        self.state = State::new(slots)?;
        Ok(())
    }

    /// Updates the weights in place by one step with the given learning rate and increments their version. Gradients
    /// are multiplied by `gradient_scale` first. A parameter without a gradient only decays.
    ///
    /// # Errors
    /// Fails if out of memory, or if a gradient's shape differs from its parameter's.
    pub fn step(
        &mut self,
        pool: &Pool,
        weights: &mut Weights,
        gradients: &Gradients,
        lr: f64,
        gradient_scale: f64,
    ) -> Result<()> {
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
                        Some(gradient) => slot.step(pool, var, gradient, &step)?,
                        None => slot.step(pool, var, &slot.first.zeros_like()?, &step)?,
                    }
                }
            }
        }
        weights.version += 1;
        Ok(())
    }
}
