//! Where a step's metrics are written: `metrics.jsonl` always, TensorBoard's event files where they are asked for.

mod jsonl;
mod tensorboard;

use std::io;
use std::path::Path;

use super::metrics::Metrics;
use jsonl::MetricsFile;
use tensorboard::EventFile;

pub use jsonl::FILE_NAME;

/// The open logs of an experiment.
#[derive(Debug)]
pub struct StepLog {
    jsonl: MetricsFile,
    tensorboard: Option<EventFile>,
}

impl StepLog {
    /// Goes on with the logs of an experiment, or begins them.
    ///
    /// # Errors
    /// `metrics.jsonl` cannot be opened.
    pub fn open(experiment_dir: &Path, tensorboard: bool) -> io::Result<Self> {
        Ok(Self {
            jsonl: MetricsFile::open(experiment_dir)?,
            tensorboard: tensorboard.then(|| EventFile::new(experiment_dir)),
        })
    }

    /// Whether the update of this step is recorded.
    pub fn has_update(&self, global_step: u64) -> bool {
        self.jsonl.has_update(global_step)
    }

    /// Appends a step's metrics to every log.
    ///
    /// # Errors
    /// One of the logs could not be written.
    pub fn append(&mut self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let events = self
            .tensorboard
            .as_mut()
            .map_or(Ok(()), |events| events.append(global_step, metrics));
        self.jsonl.append(global_step, metrics).and(events)
    }
}
