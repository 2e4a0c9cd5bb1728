//! The job as it ran, kept in the experiment's directory, and what is different in the next one.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::experiment::timestamp;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{self, Node};

/// Directory of an experiment's jobs, one file for each run.
const JOBS: &str = "jobs";

/// What a run compares with the experiment's last one.
const COMPARED: [[&str; 2]; 3] = [["ajet", "task_reader"], ["roll", "agent"], ["roll", "reward"]];

/// Keeps `job`, the text of a job file that runs from `now` on, below an experiment's directory of this machine.
/// Readable by its owner only: a job may name servers and keys.
///
/// # Errors
/// Fails if the file cannot be written.
pub(super) fn keep(job: &str, experiment_dir: &Path, now: SystemTime) -> io::Result<PathBuf> {
    let jobs = experiment_dir.join(JOBS);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs)?;
    let stem = timestamp(now);
    let names = std::iter::once(stem.clone()).chain((2..).map(|number| format!("{stem}_{number}")));
    for name in names {
        let path = jobs.join(format!("{name}.yaml"));
        match std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
        {
            Ok(mut file) => return file.write_all(job.as_bytes()).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    // The names never end.
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The job of the experiment's last run, where one is kept.
pub(super) fn latest(experiment_dir: &Path) -> Option<String> {
    let kept = std::fs::read_dir(experiment_dir.join(JOBS)).ok()?;
    // Their names are times.
    let newest = kept.filter_map(|entry| Some(entry.ok()?.path())).max()?;
    read_given_text(&newest, DOCUMENT_BYTES).ok()
}

/// Dotted keys of tasks, agent and reward that differ between two jobs. The server gets none of them.
pub(super) fn differences(job: &str, before: &str) -> Vec<String> {
    let (Ok(job), Ok(before)) = (config::parse(job), config::parse(before)) else {
        return vec![];
    };
    let differs = |[section, key]: &[&str; 2]| {
        let value = |document: &Node| document.get(section).and_then(|section| section.get(key)).cloned();
        value(&job) != value(&before)
    };
    let differing = COMPARED.iter().filter(|keys| differs(keys));
    differing.map(|keys| keys.join(".")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reward_than_before_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(latest(dir.path()), None);
        let job = "ajet: {task_reader: {type: arithmetic}}\nroll: {steps: 3, reward: {type: exact_match}}";
        keep("roll: {}", dir.path(), SystemTime::UNIX_EPOCH).unwrap();
        keep(job, dir.path(), SystemTime::now()).unwrap();
        assert_eq!(latest(dir.path()).as_deref(), Some(job));
        assert!(differences(job, job).is_empty() && differences(job, "[").is_empty());
        assert!(differences(job, &job.replace("steps: 3", "steps: 4")).is_empty());
        let other = job
            .replace("exact_match", "contains")
            .replace("arithmetic", "reverse_text");
        assert_eq!(differences(job, &other), ["ajet.task_reader", "roll.reward"]);
    }

    #[test]
    fn every_run_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
        let first = keep("a: 1", dir.path(), now).unwrap();
        let second = keep("a: 2", dir.path(), now).unwrap();
        assert_eq!(first, dir.path().join("jobs/19700102_000000.yaml"));
        assert_eq!(second, dir.path().join("jobs/19700102_000000_2.yaml"));
        assert_eq!(std::fs::read_to_string(first).unwrap(), "a: 1");
        assert!(keep("", Path::new("/proc/none"), now).is_err());
    }
}
