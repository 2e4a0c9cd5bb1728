//! What a configuration needs of a machine before there is one: memory by part, where the time of a step goes, and which
//! settings to take. Everything is computed from the model's shape, by the formulas with which the engine decides where it
//! has them.

mod advice;
pub mod device;
#[cfg(test)]
mod docs_tests;
mod memory;
mod report;
pub mod shapes;
mod time;

use serde::Serialize;

pub use advice::{Advice, Remedy};
pub use device::Device;
pub use memory::Memory;
pub use report::report;
pub use time::{Binding, Phase, Time};

use crate::config::Ajet;
use crate::model::ModelConfig;

/// Machines and how they are connected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machines {
    /// Device of a rank; on a CPU its share of the machine.
    pub device: Device,
    /// Ranks on each machine.
    pub per_node: usize,
    /// Number of machines.
    pub nodes: usize,
    /// Bytes per second between two machines, in one direction.
    pub network: f64,
}

impl Machines {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.per_node * self.nodes
    }
}

/// Mean lengths of episodes, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lengths {
    /// Tokens before the first sampled one.
    pub prompt: usize,
    /// Tokens after that.
    pub response: usize,
}

/// A configuration on machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Number of the model's parameters.
    pub parameters: usize,
    /// Number of trained parameters.
    pub trained: usize,
    /// Machines.
    pub machines: Machines,
    /// Mean lengths of episodes.
    pub lengths: Lengths,
    /// Memory of a rank.
    pub memory: Memory,
    /// Time of a step, if it fits.
    pub time: Option<Time>,
    /// What to set.
    pub advice: Advice,
    /// Memory and time with these settings, if they fit.
    pub advised: Option<(Memory, Time)>,
}

/// Computes what a configuration needs.
pub fn plan(model: &ModelConfig, ajet: &Ajet, machines: &Machines, lengths: Lengths) -> Plan {
    let of = |ajet: &Ajet| {
        let memory = Memory::new(model, ajet, machines);
        let time = memory
            .fits()
            .then(|| Time::new(model, ajet, machines, lengths, &memory));
        (memory, time)
    };
    let (advice, advised) = advice::advice(model, ajet, machines, lengths);
    let (advised_memory, advised_time) = of(&advised);
    let (memory, time) = of(ajet);
    Plan {
        parameters: model.num_parameters(),
        trained: memory::trained_sizes(model, ajet).iter().sum(),
        machines: machines.clone(),
        lengths,
        memory,
        time,
        advice,
        advised: advised_time.map(|time| (advised_memory, time)),
    }
}
