//! Lock of an experiment directory for one engine, released by the kernel when the process ends.
//!
//! Both the directory itself is locked, whatever path leads to it, and a file in it, which names the holder; network
//! file systems can only lock files.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::durable;
use crate::config::small_file::open_regular_with;
use crate::protocol::engine::LOCK_FILE;

/// Maximum wait for an earlier engine, which ends at most 2 s after its server was killed unless its disk is slow. Shorter
/// than the 30 s for which `start_engine` waits for the boot, so that its answer names the holder.
pub const TIMEOUT: Duration = Duration::from_secs(25);
/// Delay between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum bytes read of the holder's description.
const HOLDER_BYTES: u64 = 100;

/// Lock held while its owner may write to the experiment directory.
#[derive(Debug)]
pub struct DirectoryLock {
    _dir: File,
    _file: File,
}

/// Reasons why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another engine holds the lock.
    #[error(
        "another engine ({holder}) is using the experiment directory {dir}; hint: stop it, or set another \
         ajet.experiment_name"
    )]
    Held {
        /// Experiment directory.
        dir: PathBuf,
        /// Process id and start time of the holder.
        holder: String,
    },
    /// The file system failed.
    #[error("cannot lock {path}: {source}")]
    Io {
        /// Lock file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl DirectoryLock {
    /// Locks `dir`, waiting up to `timeout` for another holder, after calling `waiting` with its name.
    ///
    /// # Errors
    /// Fails if it is held for longer, or if the file system fails.
    pub fn acquire(dir: &Path, timeout: Duration, waiting: impl FnOnce(&str)) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let io = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let since = Instant::now();
        let mut waiting = Some(waiting);
        let directory = File::open(dir).map_err(io)?;
        let mut file = loop {
            // Opened in each attempt, since the locked file may have been deleted in the meantime.
            let options = &mut durable::private();
            let mut file = open_regular_with(options.read(true).append(true).create(true), &path).map_err(io)?;
            let is_ours = !is_held(&directory);
            match file.try_lock() {
                Ok(()) if is_ours => break file,
                Err(TryLockError::Error(source)) => return Err(io(source)),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
            }
            let holder = holder(&mut file);
            if since.elapsed() >= timeout {
                return Err(LockError::Held {
                    dir: dir.to_owned(),
                    holder,
                });
            }
            if let Some(waiting) = waiting.take() {
                waiting(&holder);
            }
            drop(file);
            std::thread::sleep(PAUSE);
        };
        let me = format!("pid {} since {:.0}\n", std::process::id(), jiff::Timestamp::now());
        let _ = file.set_len(0).and_then(|()| file.write_all(me.as_bytes())); // on a full disk the holder stays unnamed
        Ok(Self {
            _dir: directory,
            _file: file,
        })
    }
}

/// Locks the directory; returns whether another process holds it. Where directories cannot be locked, it is never held.
fn is_held(directory: &File) -> bool {
    matches!(directory.try_lock(), Err(TryLockError::WouldBlock))
}

/// Returns the holder's description, which may not be written yet.
fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(HOLDER_BYTES).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match text.lines().next() {
        Some(line) if read.is_ok() && line.starts_with("pid ") && !line.contains(char::is_control) => line.to_owned(),
        _ => "unknown pid".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unexpected(holder: &str) {
        panic!("waits for {holder}");
    }

    #[test]
    fn a_held_directory_is_refused_with_its_holder_and_free_when_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(dir.path(), TIMEOUT, unexpected).unwrap();
        let mut waited = vec![];
        let refused = DirectoryLock::acquire(dir.path(), Duration::ZERO, |_| ())
            .unwrap_err()
            .to_string();
        let timeout = Duration::from_millis(50);
        DirectoryLock::acquire(dir.path(), timeout, |holder| waited.push(holder.to_owned())).unwrap_err();
        let me = format!("pid {} since 20", std::process::id());
        assert!(
            refused.contains(&format!("another engine ({me}")) && refused.contains("hint:"),
            "{refused}"
        );
        assert!(waited.len() == 1 && waited[0].starts_with(&me), "{waited:?}");
        drop(first);
        DirectoryLock::acquire(dir.path(), TIMEOUT, unexpected).unwrap();
    }

    // One that is deleted, or whose directory is reached by another path or has got another name, is as good as before.
    #[test]
    fn no_path_and_no_tidying_lead_around_the_lock() {
        type Change = fn(&Path) -> PathBuf;
        let changes: [(&str, Change); 5] = [
            ("the file deleted", |dir| {
                std::fs::remove_file(dir.join(LOCK_FILE)).unwrap();
                dir.to_owned()
            }),
            ("the file replaced", |dir| {
                durable::replace(&dir.join(LOCK_FILE), b"pid 1 since 2000\n").unwrap();
                dir.to_owned()
            }),
            ("a link", |dir| {
                let link = dir.with_file_name("link");
                std::os::unix::fs::symlink(dir, &link).unwrap();
                link
            }),
            ("another name", |dir| {
                let moved = dir.with_file_name("moved");
                std::fs::rename(dir, &moved).unwrap();
                moved
            }),
            ("moved, and the file deleted", |dir| {
                let moved = dir.with_file_name("moved");
                std::fs::rename(dir, &moved).unwrap();
                std::fs::remove_file(moved.join(LOCK_FILE)).unwrap();
                moved
            }),
        ];
        for (name, change) in changes {
            let base = tempfile::tempdir().unwrap();
            let dir = base.path().join("experiment");
            std::fs::create_dir(&dir).unwrap();
            let first = DirectoryLock::acquire(&dir, TIMEOUT, unexpected).unwrap();
            let path = change(&dir);
            for _ in 0..2 {
                let refused = DirectoryLock::acquire(&path, Duration::ZERO, |_| ()).unwrap_err();
                assert!(refused.to_string().contains("another engine"), "{name}: {refused}");
            }
            drop(first);
            DirectoryLock::acquire(&path, TIMEOUT, unexpected).unwrap();
        }
    }

    #[test]
    fn the_next_waits_until_the_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(dir.path(), TIMEOUT, unexpected).unwrap();
        let (waits, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DirectoryLock::acquire(dir.path(), TIMEOUT, |_| waits.send(()).unwrap()));
            told.recv().unwrap();
            drop(first);
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn whatever_the_lock_file_holds_a_message_stays_readable() {
        let long = "pid ".repeat(1000);
        for text in ["", "\n", "\0\0\0", "rm -rf\n", "pid \x1b]52;c;\x07 since\n", &long] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(LOCK_FILE);
            std::fs::write(&path, text).unwrap();
            let held = File::open(&path).unwrap();
            held.lock().unwrap(); // as an engine does where directories cannot be locked
            let refused = DirectoryLock::acquire(dir.path(), Duration::ZERO, |_| ())
                .unwrap_err()
                .to_string();
            assert!(
                refused.len() < 500 && !refused.contains(char::is_control),
                "{refused:?}"
            );
        }
    }
}
