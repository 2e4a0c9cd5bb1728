//! AdamW for many parameters at once, in tensor operations. Moments and master weights of a group are contiguous, so
//! that a step takes 15 kernel launches per group and two copies per parameter, instead of 17 launches per parameter.
//! For a model of 290 parameters with half a billion numbers these are about 750 launches instead of 5,000 (3 ms
//! instead of 20), and 60 bytes per number: 30 GB, or 10 ms at 3 TB/s, about 1 % of an update.

use candle_core::{DType, Tensor, Var};
use indexmap::IndexMap;

use super::parameter_state::{ParameterState, decays};
use crate::model::kernels::adamw::AdamWStep;
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Maximum size of a group of several parameters in numbers: its temporary tensors take 256 MB each.
const MOST_NUMBERS: usize = 64 << 20;

/// Parameters with the same weight decay, and their state.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    decay: bool,
    /// Offset of each parameter, by name.
    members: IndexMap<String, Member>,
    /// State of all members, flattened.
    state: ParameterState,
}

#[derive(Clone, Debug)]
struct Member {
    start: usize,
    shape: Vec<usize>,
}

impl Member {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Group {
    /// Concatenates the states of parameters.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn all(slots: IndexMap<String, ParameterState>) -> Result<Vec<Self>> {
        Self::all_of_at_most(MOST_NUMBERS, slots)
    }

    fn all_of_at_most(most: usize, slots: IndexMap<String, ParameterState>) -> Result<Vec<Self>> {
        let (matrices, vectors): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(_, slot)| decays(&slot.first));
        let mut groups = vec![];
        for (decay, slots) in [(true, matrices), (false, vectors)] {
            let mut gathered: Vec<(String, ParameterState)> = vec![];
            let mut numbers = 0;
            for (name, slot) in slots {
                let len = slot.first.elem_count();
                if numbers + len > most && !gathered.is_empty() {
                    groups.push(Self::of(decay, std::mem::take(&mut gathered))?);
                    numbers = 0;
                }
                numbers += len;
                gathered.push((name, slot));
            }
            if !gathered.is_empty() {
                groups.push(Self::of(decay, gathered)?);
            }
        }
        Ok(groups)
    }

    fn of(decay: bool, slots: Vec<(String, ParameterState)>) -> Result<Self> {
        let flat = |part: fn(&ParameterState) -> &Tensor| {
            let parts: Vec<&Tensor> = slots.iter().map(|(_, slot)| part(slot)).collect();
            one_behind_the_other(&parts)
        };
        // All parameters of a model have one type, so either all or none have master weights.
        let masters: Option<Vec<&Tensor>> = slots.iter().map(|(_, slot)| slot.master.as_ref()).collect();
        let state = ParameterState {
            first: flat(|slot| &slot.first)?,
            second: flat(|slot| &slot.second)?,
            master: masters.map(|masters| one_behind_the_other(&masters)).transpose()?,
        };
        let mut start = 0;
        let members = slots.into_iter().map(|(name, slot)| {
            let shape = slot.first.dims().to_vec();
            let member = Member { start, shape };
            start += member.len();
            (name, member)
        });
        Ok(Self {
            decay,
            members: members.collect(),
            state,
        })
    }

    /// Returns the state of each member, sharing the group's memory.
    ///
    /// # Errors
    /// Never fails for groups made by [`Group::all`].
    pub fn slots(&self) -> Result<Vec<(String, ParameterState)>> {
        let slot = |(name, member): (&String, &Member)| {
            let part = |flat: &Tensor| -> Result<Tensor> {
                Ok(flat.narrow(0, member.start, member.len())?.reshape(&member.shape[..])?)
            };
            let slot = ParameterState {
                first: part(&self.state.first)?,
                second: part(&self.state.second)?,
                master: self.state.master.as_ref().map(part).transpose()?,
            };
            Ok((name.clone(), slot))
        };
        self.members.iter().map(slot).collect()
    }

    /// Runs one step for all members. A parameter without a gradient only decays.
    ///
    /// # Errors
    /// Fails if out of memory, or if a gradient's shape differs from its parameter's.
    pub fn step(&mut self, vars: &IndexMap<String, Var>, gradients: &Gradients, step: &AdamWStep) -> Result<()> {
        let step = AdamWStep {
            weight_decay: if self.decay { step.weight_decay } else { 0.0 },
            ..*step
        };
        let own = |name: &String, member: &Member| match gradients.by_name.get(name) {
            Some(gradient) => Ok(gradient.detach()),
            None => Tensor::zeros(&member.shape[..], DType::F32, self.state.first.device()),
        };
        let gradient = self.members.iter().map(|(name, member)| own(name, member));
        let gradient = gradient.collect::<candle_core::Result<Vec<_>>>()?;
        let gradient = one_behind_the_other(&gradient.iter().collect::<Vec<_>>())?;
        let weight = match &self.state.master {
            Some(master) => master.clone(),
            None => {
                let weights: Vec<Tensor> = self
                    .members
                    .keys()
                    .map(|name| vars[name].as_detached_tensor())
                    .collect();
                one_behind_the_other(&weights.iter().collect::<Vec<_>>())?
            }
        };
        let weight = self.state.next(weight, &gradient, &step)?;
        for (name, member) in &self.members {
            let var = &vars[name];
            let own = weight.narrow(0, member.start, member.len())?;
            var.set(&own.to_dtype(var.dtype())?.reshape(&member.shape[..])?)?;
        }
        Ok(())
    }
}

fn one_behind_the_other(parts: &[&Tensor]) -> Result<Tensor> {
    let parts = parts.iter().map(|part| part.flatten_all());
    Ok(Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::config::schema::Optim;
    use crate::model::config::{Family, ModelConfig};
    use crate::model::kernels::Pool;
    use crate::model::weights::random_tensors;
    use crate::model::{Trainable, Weights};
    use crate::train::AdamW;

    fn slots() -> IndexMap<String, ParameterState> {
        let shapes: [(&str, &[usize]); 5] = [
            ("a", &[2, 3]),
            ("norm", &[3]),
            ("b", &[4, 1]),
            ("c", &[5, 5]),
            ("n", &[2]),
        ];
        let slot = |(i, (name, shape)): (usize, (&str, &[usize]))| {
            let fill = |x: f64| {
                Tensor::ones(shape, DType::F32, &Device::Cpu)
                    .unwrap()
                    .affine(x, 0.0)
                    .unwrap()
            };
            let slot = ParameterState {
                first: fill(i as f64),
                second: fill(10.0 * i as f64),
                master: Some(fill(-(i as f64))),
            };
            (name.to_string(), slot)
        };
        shapes.into_iter().enumerate().map(slot).collect()
    }

    #[test]
    fn parameters_are_grouped_by_decay_and_size_and_keep_their_state() {
        let groups = Group::all_of_at_most(12, slots()).unwrap();
        let names: Vec<Vec<&String>> = groups.iter().map(|group| group.members.keys().collect()).collect();
        assert_eq!(names, [vec!["a", "b"], vec!["c"], vec!["norm", "n"]]);
        assert_eq!(
            groups.iter().map(|group| group.decay).collect::<Vec<_>>(),
            [true, true, false]
        );
        let expected = slots();
        for (name, slot) in groups.iter().flat_map(|group| group.slots().unwrap()) {
            let values = |x: &Tensor| (x.dims().to_vec(), x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
            assert_eq!(values(&slot.first), values(&expected[&name].first));
            assert_eq!(values(&slot.second), values(&expected[&name].second));
            assert_eq!(
                values(&slot.master.unwrap()),
                values(expected[&name].master.as_ref().unwrap())
            );
        }
    }

    #[test]
    fn groups_step_as_the_kernel_does_and_in_bf16_by_their_master_weights() {
        let config = ModelConfig::small(Family::Qwen2);
        let weights = |dtype: DType| {
            let tensors = random_tensors(&config, 0.3, 7).unwrap();
            let tensors = tensors.into_iter().map(|(name, t)| (name, t.to_dtype(dtype).unwrap()));
            Weights::new(config.clone(), tensors.collect(), &Trainable::All).unwrap()
        };
        let (mut by_kernel, mut narrow) = (weights(DType::F32), weights(DType::BF16));
        let optim = Optim {
            lr: 1e-4, // too little for bf16 to show at every number
            ..Optim::default()
        };
        let (mut kernel, mut grouped) = (
            AdamW::new(&by_kernel, &optim, &Pool::new(1)).unwrap(),
            AdamW::new(&narrow, &optim, &Pool::new(1)).unwrap(),
        );
        let pool = Pool::new(2);
        let start = grouped.slots().unwrap();
        for (name, var) in by_kernel.trainable() {
            var.set(start[&name].master.as_ref().unwrap()).unwrap(); // both begin with what bf16 can hold
        }
        for step in 0..3 {
            let mut gradients = Gradients::default();
            for (i, (name, var)) in by_kernel.trainable().iter().enumerate().skip(step % 2) {
                let gradient = (var.as_detached_tensor() * (0.1 * (i + step) as f64)).unwrap();
                gradients.add(name, &gradient).unwrap();
            }
            kernel.step(&pool, &mut by_kernel, &gradients, optim.lr, 0.5).unwrap();
            grouped.step(&pool, &mut narrow, &gradients, optim.lr, 0.5).unwrap();
        }
        let slots = grouped.slots().unwrap();
        for ((name, exact), (_, rounded)) in by_kernel.trainable().iter().zip(narrow.trainable()) {
            let largest = |a: &Tensor, b: &Tensor| {
                let difference = (a - b).unwrap().abs().unwrap().flatten_all().unwrap();
                difference.max(0).unwrap().to_scalar::<f32>().unwrap()
            };
            let master = slots[name].master.as_ref().unwrap();
            assert!(largest(exact.as_tensor(), master) < 1e-6, "{name}");
            let expected = master.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
            assert_eq!(
                largest(&rounded.to_dtype(DType::F32).unwrap(), &expected),
                0.0,
                "{name}"
            );
        }
    }
}
