//! The directory of experiments.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use indexmap::IndexMap;

use super::error::RunsError;
use crate::config::experiment::check_name;
use crate::config::small_file::{DOCUMENT_BYTES, open_regular, read_text};
use crate::protocol::engine::LOCK_FILE;
use crate::protocol::run_files::{CONFIG_FILE, METRICS_FILE};
use crate::protocol::status::Run;

/// Maximum number of listed experiments.
const LISTED: usize = 500;
/// Bytes at the end of a metrics file that are searched for the last step.
const TAIL: u64 = 64 * 1024;

/// Experiments are the directories right below a root.
#[derive(Clone, Debug)]
pub struct Experiments {
    root: PathBuf,
}

impl Experiments {
    /// Experiments below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the directory of an experiment. The name comes from the network: it must be that of a directory right
    /// below the root, and no link.
    ///
    /// # Errors
    /// Fails if there is none of this name.
    pub fn dir(&self, name: &str) -> Result<PathBuf, RunsError> {
        check_name(name).map_err(|_| RunsError::Name(name.chars().take(100).collect()))?;
        let dir = self.root.join(name);
        match fs::symlink_metadata(&dir) {
            Ok(metadata) if metadata.is_dir() => Ok(dir),
            _ => Err(RunsError::NotFound {
                name: name.to_owned(),
                root: self.root.clone(),
            }),
        }
    }

    /// Lists the experiments, the one that changed last first. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the root cannot be read.
    pub fn list(&self) -> Result<Vec<Run>, RunsError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(RunsError::at(&self.root)(error)),
        };
        let dirs = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let is_experiment = entry.file_type().ok()?.is_dir() && is_experiment(&entry.path());
            is_experiment.then(|| (changed(&entry.path()), name, entry.path()))
        });
        let mut dirs: Vec<_> = dirs.collect();
        dirs.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        dirs.truncate(LISTED);
        Ok(dirs
            .into_iter()
            .map(|(changed, name, dir)| run(&dir, name, changed))
            .collect())
    }
}

fn is_experiment(dir: &Path) -> bool {
    [METRICS_FILE, CONFIG_FILE, LOCK_FILE]
        .iter()
        .any(|file| dir.join(file).is_file())
}

/// Returns when an experiment last changed, in Unix seconds.
fn changed(dir: &Path) -> f64 {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let time = modified(&dir.join(METRICS_FILE)).or_else(|_| modified(dir));
    let since = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0.0, |since| since.as_secs_f64())
}

fn run(dir: &Path, name: String, changed: f64) -> Run {
    let last = last_metrics(dir);
    Run {
        name,
        model: model(dir),
        last_step: last.first().map_or(0, step),
        changed,
        current: false,
        reward_mean: last.iter().find_map(|line| line.get("reward_mean").copied().flatten()),
    }
}

fn step(line: &IndexMap<String, Option<f64>>) -> u64 {
    line.get("global_step").copied().flatten().unwrap_or(0.0) as u64
}

/// Returns `ajet.model.path` of the configuration with which an experiment was started.
fn model(dir: &Path) -> Option<String> {
    let text = read_text(&dir.join(CONFIG_FILE), DOCUMENT_BYTES).ok()?;
    let config = crate::config::from_json(&text).ok()?;
    Some(config.model.path)
}

/// Returns the last lines of an experiment's metrics, newest first.
fn last_metrics(dir: &Path) -> Vec<IndexMap<String, Option<f64>>> {
    let text = open_regular(&dir.join(METRICS_FILE))
        .and_then(read_tail)
        .unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n').rev();
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn read_tail(mut file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_listed_with_their_last_step() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Experiments::new(&root.path().join("none")).list().unwrap(), []);
        let dir = root.path().join("a");
        fs::create_dir(&dir).unwrap();
        fs::create_dir(root.path().join("no experiment")).unwrap();
        let lines = "{\"global_step\":1,\"reward_mean\":0.5}\n{\"global_step\":2,\"eval/reward_mean\":1}\n";
        fs::write(dir.join(METRICS_FILE), lines).unwrap();
        let runs = Experiments::new(root.path()).list().unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!(
            (runs[0].name.as_str(), runs[0].last_step, runs[0].reward_mean),
            ("a", 2, Some(0.5))
        );
        assert!(runs[0].changed > 1.7e9);
    }

    #[test]
    fn names_never_lead_elsewhere() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        fs::create_dir_all(root.join("real")).unwrap();
        fs::create_dir(parent.path().join("secret")).unwrap();
        std::os::unix::fs::symlink(parent.path().join("secret"), root.join("link")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let experiments = Experiments::new(&root);
        assert_eq!(experiments.dir("real").unwrap(), root.join("real"));
        for name in [
            "",
            ".",
            "..",
            "../secret",
            "/etc",
            "link",
            "file",
            "absent",
            "real/..",
            "a\0b",
            "real\\",
        ] {
            assert!(experiments.dir(name).is_err(), "{name:?}");
        }
    }
}
