//! Records of the runs on disk, from which a killed research resumes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::ResearchError;
use super::plan::{EVAL, Plan, RunSpec};
use crate::config::small_file::{DATASET_BYTES, read_text};

const FILE: &str = "state.json";
const LOCK: &str = "lock";
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The end of a run, or that there is none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It has not ended.
    #[default]
    Waiting,
    /// It has done its steps, or its time is over.
    Done,
    /// `roll` failed; with its last words.
    Failed(String),
}

/// A metric at a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// Value of the plan's metric.
    pub value: f64,
}

/// What is known of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Name of its files.
    pub name: String,
    /// Its variant.
    pub variant: String,
    /// Its seed.
    pub seed: u64,
    /// Its settings over the job.
    pub settings: Vec<String>,
    /// Whether it has ended.
    pub state: RunState,
    /// Times that `roll` was started for it.
    pub attempts: u32,
    /// Seconds that `roll` took so far.
    pub seconds: f64,
    /// The plan's metric by step.
    pub points: Vec<Point>,
}

impl RunRecord {
    fn new(run: &RunSpec) -> Self {
        Self {
            name: run.name.clone(),
            variant: run.variant.clone(),
            seed: run.seed,
            settings: run.settings.clone(),
            ..Self::default()
        }
    }

    /// Notes the metric of a step; a step that was repeated after a kill counts once.
    pub fn note(&mut self, step: u64, value: f64) {
        self.points.retain(|point| point.step != step);
        self.points.push(Point { step, value });
        self.points.sort_by_key(|point| point.step);
    }

    /// Returns the run's final value: its last evaluation, or the mean of the last updates.
    pub fn final_value(&self, plan: &Plan) -> Option<f64> {
        let count = if plan.metric == EVAL { 1 } else { plan.last() };
        let last = &self.points[self.points.len().saturating_sub(count)..];
        let sum: f64 = last.iter().map(|point| point.value).sum();
        (!last.is_empty()).then(|| sum / last.len() as f64)
    }
}

/// The records of all runs, in a directory that is this process's while it lives.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    /// The records, in the order of the plan's runs.
    pub runs: Vec<RunRecord>,
    _lock: File,
}

impl Records {
    /// Opens the directory of a research; runs whose settings have changed since begin again.
    ///
    /// # Errors
    /// The directory is in use, holds something else, or cannot be written.
    pub fn open(dir: &Path, runs: &[RunSpec]) -> Result<Self, ResearchError> {
        let failed = |error| ResearchError::file(dir, error);
        fs::create_dir_all(dir.join("runs")).map_err(failed)?;
        let dir = dir.canonicalize().map_err(failed)?;
        let lock = File::create(dir.join(LOCK)).map_err(failed)?;
        let began = Instant::now();
        // A killed predecessor may take a moment to end.
        while lock.try_lock().is_err() {
            if began.elapsed() > LOCK_TIMEOUT {
                return Err(ResearchError::Busy(dir));
            }
            std::thread::sleep(LOCK_TIMEOUT / 20);
        }
        let mut known = read(&dir.join(FILE))?;
        known.retain(|record| runs.iter().any(|run| is_of(record, run)));
        let record = |run: &RunSpec| {
            let before = known.iter().find(|record| is_of(record, run));
            before.cloned().unwrap_or_else(|| RunRecord::new(run))
        };
        Ok(Self {
            runs: runs.iter().map(record).collect(),
            dir,
            _lock: lock,
        })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes all records, as a whole or not at all.
    ///
    /// # Errors
    /// The disk fails.
    pub fn save(&self) -> Result<(), ResearchError> {
        write(
            &self.dir,
            FILE,
            &serde_json::to_string_pretty(&self.runs).unwrap_or_default(),
        )
    }
}

fn is_of(record: &RunRecord, run: &RunSpec) -> bool {
    record.name == run.name && record.settings == run.settings
}

fn read(path: &Path) -> Result<Vec<RunRecord>, ResearchError> {
    let text = match read_text(path, DATASET_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ResearchError::file(path, error)),
    };
    serde_json::from_str(&text).map_err(|error| ResearchError::State {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Writes a file by a temporary one that is renamed.
///
/// # Errors
/// The disk fails.
pub fn write(dir: &Path, name: &str, text: &str) -> Result<(), ResearchError> {
    let path = dir.join(name);
    let written = || {
        let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    };
    written().map_err(|error: std::io::Error| ResearchError::file(&path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(metric: &str) -> Plan {
        let text = "{job: j, steps: 10, seeds: [1, 2], variants: [{name: a}, {name: b}]";
        Plan::parse(&format!("{text}, metric: {metric}}}")).unwrap()
    }

    #[test]
    fn what_is_known_survives_and_changed_runs_begin_again() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let runs = plan("reward_mean").runs("p");
        let mut records = Records::open(&out, &runs).unwrap();
        assert!(matches!(Records::open(&out, &runs), Err(ResearchError::Busy(_))));
        records.runs[0].note(1, 0.5);
        records.runs[0].state = RunState::Done;
        records.runs[1].note(1, 0.25);
        records.save().unwrap();
        let expected = records.runs.clone();
        drop(records);
        assert_eq!(Records::open(&out, &runs).unwrap().runs, expected);
        let mut changed = runs.clone();
        changed[0].settings.push("roll.retries=1".into());
        let reopened = Records::open(&out, &changed).unwrap();
        assert_eq!(reopened.runs[0].state, RunState::Waiting);
        assert_eq!(reopened.runs[1], expected[1]);
        drop(reopened);
        fs::write(out.join(FILE), "{}").unwrap();
        assert!(matches!(Records::open(&out, &runs), Err(ResearchError::State { .. })));
    }

    #[test]
    fn the_final_value_is_the_mean_of_the_last_updates_or_the_last_evaluation() {
        let mut record = RunRecord::default();
        assert_eq!(record.final_value(&plan("reward_mean")), None);
        for (step, value) in [(3, 8.0), (1, 1.0), (2, 4.0), (3, 6.0)] {
            record.note(step, value);
        }
        assert_eq!(record.points.len(), 3, "a repeated step counts once");
        assert_eq!(record.final_value(&plan("reward_mean")), Some(5.0));
        assert_eq!(record.final_value(&plan(EVAL)), Some(6.0));
    }
}
