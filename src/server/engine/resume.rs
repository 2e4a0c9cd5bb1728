//! Unfinished experiments. The configuration of a running experiment lies in its directory until a client stops the
//! engine, so that after a server crash or a reboot the experiment can be resumed.

use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::small_file::{DOCUMENT_BYTES, open_regular, read_text};
use crate::protocol::engine::LOCK_FILE;

/// File in the experiment directory with the configuration of an experiment that was not stopped.
const FILE: &str = "unfinished.yaml";

/// Records that the experiment in `dir` runs with this configuration.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub fn record(dir: &Path, config: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".unfinished").tempfile_in(dir)?;
    io::Write::write_all(&mut file, config.as_bytes())?;
    file.persist(dir.join(FILE))?;
    Ok(())
}

/// Returns whether an engine of any server uses the experiment in `dir`.
pub fn is_in_use(dir: &Path) -> bool {
    let is_locked = |file: fs::File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    fs::File::open(dir).is_ok_and(is_locked) || open_regular(&dir.join(LOCK_FILE)).is_ok_and(is_locked)
}

/// Removes the record of the experiment in `dir` after a client stopped it, unless another server is running it.
pub fn clear(dir: &Path) {
    if is_in_use(dir) {
        return;
    }
    match fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {error}", dir.join(FILE).display());
        }
        Ok(()) | Err(_) => {}
    }
}

/// Reads the configuration of the interrupted experiment in `dir`.
///
/// # Errors
///
/// Returns a message if there is none or it cannot be read.
pub fn config(dir: &Path) -> Result<String, String> {
    read_text(&dir.join(FILE), DOCUMENT_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "no interrupted experiment in {}; hint: name a directory that contains {FILE}, or sync a \
             configuration with the same ajet.experiment_dir, which also resumes from its last checkpoint",
            dir.display()
        ),
        _ => format!("cannot read {}: {error}", dir.join(FILE).display()),
    })
}

/// Returns the experiment directly below `base` that was started last and not stopped.
pub fn latest(base: &Path) -> Option<PathBuf> {
    let begun = |dir: &PathBuf| -> Option<SystemTime> { fs::metadata(dir.join(FILE)).ok()?.modified().ok() };
    let dirs = fs::read_dir(base).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    dirs.filter_map(|dir| Some((begun(&dir)?, dir)))
        .max()
        .map(|(_, dir)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_unfinished_from_its_start_until_it_is_stopped() {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(latest(&base.path().join("none")), None);
        let [one, two] = ["one", "two"].map(|name| base.path().join(name));
        for dir in [&one, &two] {
            fs::create_dir(dir).unwrap();
        }
        assert_eq!(latest(base.path()), None);
        record(&one, "ajet: {}").unwrap();
        assert_eq!(config(&one).unwrap(), "ajet: {}");
        assert_eq!(latest(base.path()), Some(one.clone()));
        assert!(config(&two).unwrap_err().contains("no interrupted experiment"));
        record(&two, "ajet: {a: 1}").unwrap();
        let older = SystemTime::now() - std::time::Duration::from_secs(60);
        fs::File::open(one.join(FILE)).unwrap().set_modified(older).unwrap();
        assert_eq!(latest(base.path()), Some(two.clone()));
        let lock = fs::File::create(two.join(LOCK_FILE)).unwrap();
        lock.lock().unwrap();
        clear(&two);
        assert!(is_in_use(&two) && config(&two).is_ok(), "another server runs it");
        drop(lock);
        clear(&two);
        clear(&two);
        assert!(!is_in_use(&two) && !is_in_use(&one));
        fs::remove_file(two.join(LOCK_FILE)).unwrap();
        assert_eq!(latest(base.path()), Some(one));
        assert_eq!(fs::read_dir(&two).unwrap().count(), 0, "nothing is left behind");
    }
}
