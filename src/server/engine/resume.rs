//! Experiments that a server left unfinished. What an engine was started with lies in the experiment's directory until a
//! client stops it, so that a server that was killed, or a machine that was restarted, goes on where it was.

use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::small_file::{DOCUMENT_BYTES, open_regular, read_text};
use crate::protocol::engine::LOCK_FILE;

/// The configuration of an experiment that nobody has stopped, in its directory.
const FILE: &str = "unfinished.yaml";

/// Notes that the experiment in `dir` runs with this configuration.
///
/// # Errors
///
/// The file cannot be written.
pub fn note(dir: &Path, config_yaml: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".unfinished").tempfile_in(dir)?;
    io::Write::write_all(&mut file, config_yaml.as_bytes())?;
    file.persist(dir.join(FILE))?;
    Ok(())
}

/// Whether an engine, of this server or another, uses the experiment in `dir`.
pub fn is_in_use(dir: &Path) -> bool {
    let is_locked = |file: fs::File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    fs::File::open(dir).is_ok_and(is_locked) || open_regular(&dir.join(LOCK_FILE)).is_ok_and(is_locked)
}

/// A client stopped the experiment in `dir`, which another server may be running all the same.
pub fn clear(dir: &Path) {
    if is_in_use(dir) {
        return;
    }
    match fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} cannot be removed: {error}", dir.join(FILE).display());
        }
        Ok(()) | Err(_) => {}
    }
}

/// The configuration with which the experiment in `dir` ran.
///
/// # Errors
///
/// A sentence: there is none, or it cannot be read.
pub fn config(dir: &Path) -> Result<String, String> {
    read_text(&dir.join(FILE), DOCUMENT_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{} holds no experiment that was interrupted; hint: name the directory that has {FILE} in it, or sync a \
             configuration with the same ajet.experiment_dir, which goes on from its last checkpoint too",
            dir.display()
        ),
        _ => format!("{} cannot be read: {error}", dir.join(FILE).display()),
    })
}

/// The experiment right below `base` that was begun last and not stopped.
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
        note(&one, "ajet: {}").unwrap();
        assert_eq!(config(&one).unwrap(), "ajet: {}");
        assert_eq!(latest(base.path()), Some(one.clone()));
        assert!(config(&two).unwrap_err().contains("no experiment that was interrupted"));
        note(&two, "ajet: {a: 1}").unwrap();
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
