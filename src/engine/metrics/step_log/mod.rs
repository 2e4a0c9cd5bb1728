//! Where a step's metrics are written: `metrics.jsonl` always, TensorBoard's event files and files of Python dicts where
//! they are asked for.

mod jsonl;
mod python_dicts;
mod tensorboard;

use std::io;
use std::path::Path;

use super::Metrics;
use crate::config::schema::TrainerCommon;
use jsonl::{MetricsFile, number};
use python_dicts::PythonDicts;
use tensorboard::EventFile;

pub use jsonl::FILE_NAME;

/// What is written besides `metrics.jsonl`.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    tensorboard: bool,
    train_dicts: Option<String>,
    val_dicts: Option<String>,
}

impl Wanted {
    /// What a configuration asks for.
    pub fn new(config: &TrainerCommon) -> Self {
        let path = |path: &Option<String>| path.clone().filter(|path| !path.is_empty());
        Self {
            tensorboard: config.logs_to_tensorboard(),
            train_dicts: path(&config.train_print_to_markdown_file_path),
            val_dicts: path(&config.val_print_to_markdown_file_path),
        }
    }
}

/// Records of a log that could not be written yet; each is kept until it is.
#[derive(Debug, Default)]
struct Waiting(Vec<u8>);

impl Waiting {
    /// Writes `record`, after those that wait.
    fn then(&mut self, record: &[u8], append: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.0.extend_from_slice(record);
        if !self.0.is_empty() {
            append(&self.0)?;
            self.0.clear();
        }
        Ok(())
    }
}

/// The open logs of an experiment.
#[derive(Debug)]
pub struct StepLog {
    jsonl: MetricsFile,
    tensorboard: Option<EventFile>,
    train_dicts: Option<PythonDicts>,
    val_dicts: Option<PythonDicts>,
}

impl StepLog {
    /// Goes on with the logs of an experiment, or begins them.
    ///
    /// # Errors
    /// One of the files cannot be opened; the error names it.
    pub fn open(experiment_dir: &Path, wanted: &Wanted) -> io::Result<Self> {
        let named =
            |error: io::Error, name: String| io::Error::new(error.kind(), format!("{name} cannot be written: {error}"));
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
        let dicts = self
            .train_dicts
            .as_mut()
            .filter(|_| metrics.contains_key("episodes"))
            .map_or(Ok(()), |dicts| dicts.append(global_step, metrics));
        self.jsonl.append(global_step, metrics).and(events).and(dicts)
    }

    /// Appends what a step's eval episodes amount to by task.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn append_validation(&mut self, global_step: u64, validation: &Metrics) -> io::Result<()> {
        let dicts = self.val_dicts.as_mut();
        dicts.map_or(Ok(()), |dicts| dicts.append(global_step, validation))
    }

    /// Writes what could not be written before.
    ///
    /// # Errors
    /// One of the logs still cannot be written.
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
