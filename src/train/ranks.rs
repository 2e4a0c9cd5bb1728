//! One update on several ranks. Every rank gets the same episodes and makes the same micro-batches; each computes some of
//! them, and owns the optimizer's state of some parameters: gradients are added up where their parameter is owned, which
//! is where its step is made, and the new weights go to all (ZeRO stage 2, arXiv 1910.02054).

use std::sync::Arc;

use candle_core::{DType, Tensor, Var};
use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Result, TrainError};
use super::expert_load::ExpertLoad;
use super::gradients::Gradients;
use super::loss::objective::Totals;
use super::optim::parameter_state::ParameterState;
use super::packing::MicroBatch;
use crate::collective::{Collective, CollectiveError};
use crate::model::Weights;
use crate::model::kernels::tensors::with_mut;

/// The ranks of a trainer, and who owns which parameter.
pub struct Ranks {
    collective: Arc<dyn Collective>,
    owners: IndexMap<String, Parameter>,
}

/// A trained parameter.
struct Parameter {
    owner: usize,
    /// Whether the optimizer keeps the weight in f32 beside the moments.
    has_master: bool,
    shape: Vec<usize>,
}

/// Sums of a rank's micro-batches, apart from gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Memory was insufficient; the rest is empty then.
    pub out_of_memory: bool,
    /// Rows with non-finite values, as indices into the mini-batch.
    pub broken: Vec<usize>,
    /// Sums over tokens.
    pub totals: Totals,
    /// Computed tokens.
    pub tokens: usize,
    /// Tokens that were not computed, since rows share them.
    pub shared_tokens: usize,
    /// Tokens of each expert.
    pub experts: ExpertLoad,
}

impl Ranks {
    /// Assigns the trained parameters to ranks.
    pub fn new(weights: &Weights, collective: Arc<dyn Collective>) -> Self {
        let trained = weights.trainable();
        let sizes: Vec<usize> = trained.iter().map(|(_, var)| var.elem_count()).collect();
        let owners = assign(&sizes, collective.size());
        let parameter = |((name, var), owner): ((String, Var), usize)| {
            let parameter = Parameter {
                owner,
                has_master: var.dtype() != DType::F32,
                shape: var.dims().to_vec(),
            };
            (name, parameter)
        };
        Self {
            owners: trained.into_iter().zip(owners).map(parameter).collect(),
            collective,
        }
    }

    /// Returns whether this rank owns a parameter.
    pub fn owns(&self, name: &str) -> bool {
        let owner = self.owners.get(name).map(|parameter| parameter.owner);
        owner == Some(self.collective.rank())
    }

    /// Returns whether this is the first rank, which writes files.
    pub fn is_first(&self) -> bool {
        self.collective.rank() == 0
    }

    /// Returns the number of trained parameters of all ranks.
    pub fn parameters(&self) -> u64 {
        let sizes = self
            .owners
            .values()
            .map(|parameter| parameter.shape.iter().product::<usize>() as u64);
        sizes.sum()
    }

    /// Returns this rank's share of the micro-batches that `pack` makes with a number of tokens at most. With several
    /// ranks they are smaller, if that is needed to give each rank its part.
    pub fn share(&self, tokens: usize, pack: impl Fn(usize) -> Vec<MicroBatch>) -> Vec<MicroBatch> {
        let micros = pack(tokens);
        if self.collective.is_alone() {
            return micros;
        }
        let total: usize = micros.iter().map(|micro| micro.batch.len()).sum();
        let micros = pack(tokens.min(total.div_ceil(self.collective.size())).max(1));
        let costs: Vec<usize> = micros.iter().map(|micro| micro.batch.len()).collect();
        let owners = assign(&costs, self.collective.size());
        let mine = micros.into_iter().zip(owners);
        mine.filter(|(_, owner)| *owner == self.collective.rank())
            .map(|(micro, _)| micro)
            .collect()
    }

    /// Combines the parts of all ranks.
    ///
    /// # Errors
    /// Fails with an error of insufficient memory on all ranks if it was so on one; all then try smaller micro-batches.
    /// Any other error of a rank ends that rank, and so all of them.
    pub fn combine(&self, part: Result<Part>) -> Result<Part> {
        if self.collective.is_alone() {
            return part;
        }
        let (part, error) = match part {
            Ok(part) => (part, None),
            Err(error) if error.is_out_of_memory() => {
                let part = Part {
                    out_of_memory: true,
                    ..Part::default()
                };
                (part, Some(error))
            }
            Err(error) => return Err(error),
        };
        let parts: Vec<Part> = self.exchange(&part)?;
        if let Some(rank) = parts.iter().position(|part| part.out_of_memory) {
            return Err(error.unwrap_or(TrainError::RankOutOfMemory { rank }));
        }
        let mut all = Part::default();
        for part in parts {
            all.broken.extend(part.broken);
            all.totals.add(&part.totals);
            all.tokens += part.tokens;
            all.shared_tokens += part.shared_tokens;
            all.experts.merge(&part.experts);
        }
        all.broken.sort_unstable();
        Ok(all)
    }

    /// Adds up the gradients of all ranks. Each rank keeps those of its own parameters.
    ///
    /// # Errors
    /// Fails if out of memory, or if another rank has ended.
    pub fn reduce(&self, weights: &Weights, gradients: &mut Gradients) -> Result<()> {
        if self.collective.is_alone() {
            return Ok(());
        }
        for (name, var) in weights.trainable() {
            if !gradients.by_name.contains_key(&name) {
                // Without a micro-batch of its own a rank adds nothing.
                match var.device().is_cpu() {
                    true => gradients.add_to(&name, var.shape(), |_| ())?,
                    false => gradients.add(&name, &Tensor::zeros(var.shape(), DType::F32, var.device())?)?,
                }
            }
            let owner = self.owners.get(&name).map_or(0, |parameter| parameter.owner);
            let sum = edit(&gradients.by_name[&name], |values| {
                self.collective.reduce(values, owner)
            })?;
            match owner == self.collective.rank() {
                true => gradients.by_name.insert(name, sum),
                false => gradients.forget(&name),
            };
        }
        Ok(())
    }

    /// Returns the l2 norm of all gradients from those of each rank's.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    pub fn norm(&self, own: f64) -> Result<f64> {
        if self.collective.is_alone() {
            return Ok(own);
        }
        let norms: Vec<f64> = self.exchange(&own)?;
        let squares: f64 = norms.into_iter().map(|norm| norm * norm).sum();
        Ok(squares.sqrt())
    }

    /// Copies each parameter from its owner to all ranks.
    ///
    /// # Errors
    /// Fails if out of memory, or if another rank has ended.
    pub fn spread(&self, weights: &Weights) -> Result<()> {
        if self.collective.is_alone() {
            return Ok(());
        }
        for (name, var) in weights.trainable() {
            let owner = self.owners.get(&name).map_or(0, |parameter| parameter.owner);
            let spread = edit(var.as_tensor(), |values| self.collective.broadcast(values, owner))?;
            if !var.device().is_cpu() || var.dtype() != DType::F32 {
                var.set(&spread.to_dtype(var.dtype())?)?;
            }
        }
        Ok(())
    }

    /// Completes log-probabilities of which each rank has computed some; a row's are empty where another rank has them.
    /// `lengths` are those of all wanted rows, 0 for the others.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    pub fn complete(&self, scores: &mut [Vec<f32>], lengths: impl Iterator<Item = usize>) -> Result<()> {
        if self.collective.is_alone() {
            return Ok(());
        }
        for (scores, length) in scores.iter_mut().zip(lengths) {
            scores.resize(length, 0.0);
        }
        let mut flat = scores.concat();
        self.collective.all_reduce(&mut flat)?;
        let mut rest = &flat[..];
        for scores in scores {
            let (own, after) = rest.split_at(scores.len());
            scores.copy_from_slice(own);
            rest = after;
        }
        Ok(())
    }

    /// Returns the optimizer's state of all parameters, from that of each rank's.
    ///
    /// # Errors
    /// Fails if out of memory, or if another rank has ended.
    pub fn gather(&self, mut own: IndexMap<String, ParameterState>) -> Result<IndexMap<String, ParameterState>> {
        if self.collective.is_alone() {
            return Ok(own);
        }
        let mut all = IndexMap::new();
        for (name, parameter) in &self.owners {
            let own = own.shift_remove(name);
            let part = |own: Option<&Tensor>| -> Result<Tensor> {
                let tensor = match own {
                    Some(own) => own.copy()?,
                    None => Tensor::zeros(&parameter.shape[..], DType::F32, &candle_core::Device::Cpu)?,
                };
                edit(&tensor, |values| self.collective.broadcast(values, parameter.owner))
            };
            let first = part(own.as_ref().map(|own| &own.first))?;
            let second = part(own.as_ref().map(|own| &own.second))?;
            let master = parameter
                .has_master
                .then(|| part(own.as_ref().and_then(|own| own.master.as_ref())))
                .transpose()?;
            // Only the first rank writes them down.
            if self.is_first() {
                all.insert(name.clone(), ParameterState { first, second, master });
            }
        }
        Ok(all)
    }

    /// Returns what each rank gives.
    fn exchange<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let mine = rmp_serde::to_vec_named(mine).map_err(|error| invalid(self.collective.rank(), error))?;
        let all = self.collective.all_gather(&mine)?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            rmp_serde::from_slice(&bytes).map_err(|error| invalid(rank, error).into())
        };
        all.into_iter().enumerate().map(read).collect()
    }
}

fn invalid(rank: usize, error: impl std::fmt::Display) -> CollectiveError {
    CollectiveError::Message {
        rank,
        reason: error.to_string(),
    }
}

/// Lends the values of a tensor on any device for a change; returns the changed tensor. One of f32 on the CPU is changed
/// in place.
fn edit(tensor: &Tensor, change: impl FnOnce(&mut [f32]) -> crate::collective::Result<()>) -> Result<Tensor> {
    if tensor.device().is_cpu() && tensor.dtype() == DType::F32 && tensor.is_contiguous() {
        with_mut(tensor, change)??;
        return Ok(tensor.clone());
    }
    let mut values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    change(&mut values)?;
    Ok(Tensor::from_vec(values, tensor.shape(), tensor.device())?)
}

/// Returns the number of parameters whose optimizer's state the rank with the most of them has.
pub fn most_owned(sizes: &[usize], ranks: usize) -> usize {
    let mut owned = vec![0; ranks];
    for (size, owner) in sizes.iter().zip(assign(sizes, ranks)) {
        owned[owner] += size;
    }
    owned.into_iter().max().unwrap_or(0)
}

/// Assigns work to ranks so that the costs are about equal: the most expensive first, each to the rank with the least
/// (longest processing time, Graham 1969). Returns the rank of each.
fn assign(costs: &[usize], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|item| std::cmp::Reverse(costs[*item]));
    let mut loads = vec![0; ranks];
    let mut owners = vec![0; costs.len()];
    for item in order {
        // There is at least one rank.
        let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        owners[item] = least;
        loads[least] += costs[item];
    }
    owners
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn work_is_assigned_by_cost() {
        assert_eq!(assign(&[5, 3, 3, 1], 2), [0, 1, 1, 0]);
        assert_eq!(assign(&[1, 1, 1], 1), [0, 0, 0]);
        assert_eq!(assign(&[2], 3), [0]);
        assert_eq!(assign(&[], 3), Vec::<usize>::new());
        assert_eq!(most_owned(&[5, 3, 3, 1], 2), 6);
        assert_eq!(most_owned(&[], 2), 0);
    }

    proptest! {
        /// Graham's bound: at most 4/3 of the best possible, which is at least the mean and the largest item.
        #[test]
        fn loads_are_balanced(costs in prop::collection::vec(1_usize..1000, 1..60), ranks in 1_usize..9) {
            let mut loads = vec![0; ranks];
            for (cost, owner) in costs.iter().zip(assign(&costs, ranks)) {
                loads[owner] += cost;
            }
            let (total, largest) = (costs.iter().sum::<usize>(), *costs.iter().max().unwrap());
            let most = *loads.iter().max().unwrap();
            prop_assert!(most <= total.div_ceil(ranks) + largest);
            prop_assert_eq!(loads.iter().sum::<usize>(), total);
        }
    }
}
