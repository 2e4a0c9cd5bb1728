//! Logs of a step's metrics: `metrics.jsonl` always; TensorBoard's event files and files of Python dicts if configured.

mod jsonl;
mod python_dicts;
mod tensorboard;
mod thinning;

use std::io;
use std::path::Path;

use super::Metrics;
use crate::config::schema::TrainerCommon;
use jsonl::{MetricsFile, number};
use python_dicts::PythonDicts;
use tensorboard::EventFile;

pub use jsonl::FILE_NAME;

/// Logs to write besides `metrics.jsonl`.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    tensorboard: bool,
    train_dicts: Option<String>,
    val_dicts: Option<String>,
}

impl LogOptions {
    /// Returns the logs that a configuration enables.
    pub fn new(config: &TrainerCommon) -> Self {
        let path = |path: &Option<String>| path.clone().filter(|path| !path.is_empty());
        Self {
            tensorboard: config.logs_to_tensorboard(),
            train_dicts: path(&config.train_print_to_markdown_file_path),
            val_dicts: path(&config.val_print_to_markdown_file_path),
        }
    }
}

/// Records that could not be written yet.
#[derive(Debug, Default)]
struct PendingRecords(Vec<u8>);

impl PendingRecords {
    /// Writes `record` after the pending ones.
    fn then(&mut self, record: &[u8], append: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.0.extend_from_slice(record);
        if !self.0.is_empty() {
            append(&self.0)?;
            self.0.clear();
        }
        Ok(())
    }
}

/// Open logs of an experiment.
#[derive(Debug)]
pub struct StepLog {
    jsonl: MetricsFile,
    tensorboard: Option<EventFile>,
    train_dicts: Option<PythonDicts>,
    val_dicts: Option<PythonDicts>,
}

impl StepLog {
    /// Opens or creates the logs of an experiment.
    ///
    /// # Errors
    /// Fails if one of the files cannot be opened; the error names it.
    pub fn open(experiment_dir: &Path, wanted: &LogOptions) -> io::Result<Self> {
        let named =
            |error: io::Error, name: String| io::Error::new(error.kind(), format!("cannot write {name}: {error}"));
        let dicts = |key: &str, path: &Option<String>| {
            let opened = path.as_ref().map(|path| {
                PythonDicts::open(Path::new(path))
                    .map_err(|error| named(error, format!("ajet.trainer_common.{key}: {path}")))
            });
            opened.transpose()
        };
        let jsonl = MetricsFile::open(experiment_dir)
            .map_err(|error| named(error, experiment_dir.join(FILE_NAME).display().to_string()))?;
        Ok(Self {
            jsonl,
            tensorboard: wanted.tensorboard.then(|| EventFile::new(experiment_dir)),
            train_dicts: dicts("train_print_to_markdown_file_path", &wanted.train_dicts)?,
            val_dicts: dicts("val_print_to_markdown_file_path", &wanted.val_dicts)?,
        })
    }

    /// Returns whether the update of this step is recorded.
    pub fn has_update(&self, global_step: u64) -> bool {
        self.jsonl.has_update(global_step)
    }

    /// Appends a step's metrics to every log.
    ///
    /// # Errors
    /// Fails if one of the logs cannot be written.
    pub fn append(&mut self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let events = self
            .tensorboard
            .as_mut()
            .map_or(Ok(()), |events| events.append(global_step, metrics));
        let dicts = self
            .train_dicts
            .as_mut()
            .filter(|_| metrics.contains_key("episodes"))
            .map_or(Ok(()), |dicts| dicts.append(global_step, metrics));
        self.jsonl.append(global_step, metrics).and(events).and(dicts)
    }

    /// Appends the by-task metrics of a step's eval episodes.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn append_validation(&mut self, global_step: u64, validation: &Metrics) -> io::Result<()> {
        let dicts = self.val_dicts.as_mut();
        dicts.map_or(Ok(()), |dicts| dicts.append(global_step, validation))
    }

    /// Writes pending records.
    ///
    /// # Errors
    /// Fails if one of the logs still cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut outcome = self.jsonl.flush();
        if let Some(events) = &mut self.tensorboard {
            outcome = outcome.and(events.flush());
        }
        for dicts in [&mut self.train_dicts, &mut self.val_dicts].into_iter().flatten() {
            outcome = outcome.and(dicts.flush());
        }
        outcome
    }
}
