//! The trainer's state on disk: the optimizer's moments as safetensors, counters as JSON.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor, safetensors};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::error::{Result, TrainError};
use super::optim::parameter_state::ParameterState;
use super::trainer::Trainer;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::model::load::finite;

/// File of the moments.
pub const MOMENTS_FILE: &str = "trainer.safetensors";
/// File of the counters.
pub const COUNTERS_FILE: &str = "trainer.json";

/// Content of `trainer.json`. Learning rate and the order of mini-batches follow from `updates`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Counters {
    /// Version of the layout.
    format: u32,
    /// Number of updates.
    updates: u64,
    /// Number of optimizer steps.
    optimizer_steps: u64,
    /// Number of trained parameters, to detect another model or LoRA shape.
    parameters: u64,
}

/// What a trainer needs to continue.
pub struct TrainerState {
    slots: IndexMap<String, ParameterState>,
    counters: Counters,
}

impl TrainerState {
    /// Writes the state into an existing directory.
    ///
    /// # Errors
    /// Fails if the files cannot be written.
    pub fn write(self, dir: &Path) -> Result<()> {
        let mut tensors: HashMap<String, Tensor> = HashMap::new();
        for (name, slot) in self.slots {
            tensors.insert(format!("{name}.first"), slot.first);
            tensors.insert(format!("{name}.second"), slot.second);
            if let Some(master) = slot.master {
                tensors.insert(format!("{name}.master"), master);
            }
        }
        safetensors::save(&tensors, dir.join(MOMENTS_FILE))?;
        let text = serde_json::to_string_pretty(&self.counters).map_err(|e| state_error(dir, COUNTERS_FILE, e))?;
        std::fs::write(dir.join(COUNTERS_FILE), text).map_err(|e| state_error(dir, COUNTERS_FILE, e))
    }
}

const FORMAT: u32 = 1;

impl Trainer {
    /// Writes the state into an existing directory. A trainer that loads it continues as if never stopped.
    ///
    /// # Errors
    /// Fails if the files cannot be written.
    pub fn save_state(&self, dir: &Path) -> Result<()> {
        self.state()?.map_or(Ok(()), |state| state.write(dir))
    }

    /// Returns the state of all ranks, on the first one; `None` on the others. All ranks call this at the same time; any
    /// number of ranks can load the state.
    ///
    /// # Errors
    /// Fails if out of memory, or if another rank has ended.
    pub fn state(&self) -> Result<Option<TrainerState>> {
        let slots = self.ranks.gather(self.optimizer.slots()?)?;
        Ok(self.ranks.is_first().then(|| TrainerState {
            slots,
            counters: self.counters(),
        }))
    }

    /// Loads a saved state.
    ///
    /// # Errors
    /// Fails if the files are missing or damaged, or belong to another model or LoRA shape; the trainer is then
    /// unchanged.
    pub fn load_state(&mut self, dir: &Path) -> Result<()> {
        let text =
            read_text(&dir.join(COUNTERS_FILE), DOCUMENT_BYTES).map_err(|e| state_error(dir, COUNTERS_FILE, e))?;
        let counters: Counters = serde_json::from_str(&text).map_err(|e| state_error(dir, COUNTERS_FILE, e))?;
        if counters.format != FORMAT {
            let message = format!(
                "unsupported format version {}; this program reads {FORMAT}",
                counters.format
            );
            return Err(state_error(dir, COUNTERS_FILE, message));
        }
        let own = self.counters().parameters;
        if counters.parameters != own {
            return Err(TrainError::OtherModel {
                saved: counters.parameters,
                own,
            });
        }
        let path = dir.join(MOMENTS_FILE);
        let mut tensors = safetensors::load(&path, &Device::Cpu).map_err(|e| state_error(dir, MOMENTS_FILE, e))?;
        let mut slots = self.optimizer.slots()?;
        for (name, slot) in &mut slots {
            let mut take = |part: &str, old: &Tensor| -> Result<Tensor> {
                let name = format!("{name}.{part}");
                let found = tensors.remove(&name).filter(|found| found.dims() == old.dims());
                let message = || format!("no tensor `{name}` of shape {:?}", old.dims());
                let found = found.ok_or_else(|| state_error(dir, MOMENTS_FILE, message()))?;
                finite::check(&found, &name, &path.display().to_string())?;
                Ok(found.to_device(old.device())?)
            };
            slot.first = take("first", &slot.first)?;
            slot.second = take("second", &slot.second)?;
            slot.master = slot.master.as_ref().map(|master| take("master", master)).transpose()?;
        }
        self.optimizer.set_slots(slots)?;
        self.optimizer.steps = counters.optimizer_steps;
        self.updates = counters.updates;
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters {
            format: FORMAT,
            updates: self.updates,
            optimizer_steps: self.optimizer.steps,
            parameters: self.ranks.parameters(),
        }
    }
}

fn state_error(dir: &Path, file: &str, reason: impl ToString) -> TrainError {
    TrainError::State {
        path: dir.join(file),
        reason: reason.to_string(),
    }
}
