//! The job as it ran, kept in the experiment's directory.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::experiment::timestamp;

/// Directory of an experiment's jobs, one file for each run.
const JOBS: &str = "jobs";

/// Keeps `job`, the text of a job file that runs from `now` on, below an experiment's directory of this machine. Readable
/// by its owner only: a job may name servers and keys.
///
/// # Errors
/// The file cannot be written.
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

#[cfg(test)]
mod tests {
    use super::*;

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
