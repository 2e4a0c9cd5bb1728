//! One engine for an experiment directory: a lock that the system drops with the process that holds it.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::durable;
use crate::protocol::engine::LOCK_FILE;

/// How long to wait for an engine before. It has ended at most 2 s after its server was killed, unless its disk is slow.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes read of what the holder says of itself.
const HOLDER_BYTES: u64 = 100;

/// Held for as long as its owner may write to the experiment directory.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another engine has it.
    #[error(
        "another engine ({holder}) uses the experiment directory {dir}; hint: stop it, or set another \
         ajet.experiment_name"
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Its process id, and since when.
        holder: String,
    },
    /// The file system refused.
    #[error("cannot lock {path}: {source}")]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl DirectoryLock {
    /// Locks `dir`, and waits up to `patience` for whoever holds it, after a call of `waiting` with its name.
    ///
    /// # Errors
    /// It is held for longer, or the file system refuses.
    pub fn acquire(dir: &Path, patience: Duration, waiting: impl FnOnce(&str)) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let io = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let mut file = durable::private()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(io)?;
        let since = Instant::now();
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(io(source)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = holder(&mut file);
            if since.elapsed() >= patience {
                return Err(LockError::Held {
                    dir: dir.to_owned(),
                    holder,
                });
            }
            if let Some(waiting) = waiting.take() {
                waiting(&holder);
            }
            std::thread::sleep(PAUSE);
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "pid {} since {:.0}", std::process::id(), jiff::Timestamp::now()))
            .map_err(io)?;
        Ok(Self { _file: file })
    }
}

/// What the holder wrote of itself; it may be about to.
fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(HOLDER_BYTES).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match text.lines().next() {
        Some(line) if read.is_ok() && line.starts_with("pid ") && !line.contains(char::is_control) => line.to_owned(),
        _ => "of unknown pid".to_owned(),
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
        let first = DirectoryLock::acquire(dir.path(), PATIENCE, unexpected).unwrap();
        let mut waited = vec![];
        let refused = DirectoryLock::acquire(dir.path(), Duration::ZERO, |_| ())
            .unwrap_err()
            .to_string();
        let patience = Duration::from_millis(50);
        DirectoryLock::acquire(dir.path(), patience, |holder| waited.push(holder.to_owned())).unwrap_err();
        let me = format!("pid {} since 20", std::process::id());
        assert!(
            refused.contains(&format!("another engine ({me}")) && refused.contains("hint:"),
            "{refused}"
        );
        assert!(waited.len() == 1 && waited[0].starts_with(&me), "{waited:?}");
        drop(first);
        DirectoryLock::acquire(dir.path(), PATIENCE, unexpected).unwrap();
    }

    #[test]
    fn the_next_waits_until_the_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(dir.path(), PATIENCE, unexpected).unwrap();
        let (waits, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DirectoryLock::acquire(dir.path(), PATIENCE, |_| waits.send(()).unwrap()));
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
            held.lock().unwrap();
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
