//! Snapshots on disk: `ROOT/20260526_120000_123456/ajet/…`, with a description and, once built, the engine beside it.
//!
//! An archive is unpacked to a temporary directory and then renamed, so a snapshot is stored whole or not at all.
//! `ROOT/selected` names the snapshot that the next engine runs, so that a restarted server continues with it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::archive::{Contents, unpack};
use super::error::CodeError;
use super::manifest::check_is_engine;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::training_code::TOP;

/// Number of snapshots kept; older ones are removed.
pub const KEPT: usize = 8;
const DESCRIPTION: &str = "snapshot.json";
const SELECTED: &str = "selected";
/// Prefix of a directory that is being filled.
const UNPACKING: &str = ".unpacking-";
/// Age from which a directory that is being filled is left over from a killed server.
const LEFT_OVER: Duration = Duration::from_secs(3600);
/// Bytes of an archive read at once.
const CHUNK: usize = 256 * 1024;

/// A stored snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    dir: PathBuf,
    /// What was unpacked.
    pub description: Description,
}

/// What is known of a snapshot without reading its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Number of files.
    pub files: u64,
    /// Their total size in bytes.
    pub bytes: u64,
    /// SHA-256 of the archive, in hexadecimal digits.
    pub sha256: String,
}

impl Snapshot {
    fn open(dir: PathBuf) -> Option<Self> {
        let text = read_text(&dir.join(DESCRIPTION), DOCUMENT_BYTES).ok()?;
        let description = serde_json::from_str(&text).ok()?;
        let snapshot = Self { dir, description };
        snapshot.code_path().is_dir().then_some(snapshot)
    }

    /// Returns the directory of the sources.
    pub fn code_path(&self) -> PathBuf {
        self.dir.join(TOP)
    }

    /// Returns where the built engine is, or will be.
    pub fn engine(&self) -> PathBuf {
        self.dir.join("engine")
    }

    /// Returns where the output of the last build is, or will be.
    pub fn build_log(&self) -> PathBuf {
        self.dir.join("build.log")
    }

    /// Returns the snapshot's name, the time at which it was stored.
    pub fn name(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// An archive that is unpacked and checked, but not stored yet. Removed when dropped.
#[derive(Debug)]
pub struct Unpacked {
    dir: TempDir,
    description: Description,
}

impl Unpacked {
    /// Unpacks an archive below `root` and checks that it is an engine's source.
    ///
    /// # Errors
    ///
    /// Fails if the archive is invalid or something else, or if the disk fails; nothing is left behind then.
    pub fn new(archive: &File, root: &Path) -> Result<Self, CodeError> {
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let root = root.canonicalize()?;
        remove_unfinished(&root);
        let dir = tempfile::Builder::new().prefix(UNPACKING).tempdir_in(&root)?;
        let Contents { files, bytes } = unpack(archive, dir.path())?;
        check_is_engine(&dir.path().join(TOP)).map_err(CodeError::NotAnEngine)?;
        let sha256 = digest(archive)?;
        Ok(Self {
            dir,
            description: Description { files, bytes, sha256 },
        })
    }

    /// Returns the directory of the sources.
    pub fn code_path(&self) -> PathBuf {
        self.dir.path().join(TOP)
    }

    /// Stores the snapshot below `root` and selects it. The same archive is not stored twice: its engine may be built.
    ///
    /// # Errors
    ///
    /// Fails if the disk fails.
    pub fn store(self, root: &Path) -> Result<Snapshot, CodeError> {
        let root = root.canonicalize()?;
        let before = list(&root)
            .into_iter()
            .find(|snapshot| snapshot.description == self.description);
        let snapshot = match before {
            Some(before) => before,
            None => {
                let text = serde_json::to_vec(&self.description).map_err(io::Error::other)?;
                fs::write(self.dir.path().join(DESCRIPTION), text)?;
                let dir = root.join(name());
                fs::rename(self.dir.keep(), &dir)?;
                Snapshot {
                    dir,
                    description: self.description,
                }
            }
        };
        select(&root, Some(&snapshot))?;
        remove_old(&root, &snapshot);
        Ok(snapshot)
    }
}

/// Returns a directory name that sorts by time.
fn name() -> String {
    jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S_%6f").to_string()
}

fn digest(archive: &File) -> io::Result<String> {
    let (mut hash, mut chunk, mut at) = (Sha256::new(), vec![0; CHUNK], 0);
    loop {
        match archive.read_at(&mut chunk, at)? {
            0 => break,
            read => {
                hash.update(&chunk[..read]);
                at += read as u64;
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns all snapshots, the oldest first.
pub fn list(root: &Path) -> Vec<Snapshot> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut dirs: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    dirs.sort();
    dirs.into_iter().filter_map(Snapshot::open).collect()
}

/// Returns the selected snapshot, if there is one.
pub fn selected(root: &Path) -> Option<Snapshot> {
    let name = read_text(&root.join(SELECTED), DOCUMENT_BYTES).ok()?;
    list(&root.canonicalize().ok()?)
        .into_iter()
        .find(|snapshot| snapshot.name() == name.trim())
}

/// Selects a snapshot, or none.
///
/// # Errors
///
/// Fails if the disk fails.
pub fn select(root: &Path, snapshot: Option<&Snapshot>) -> io::Result<()> {
    let path = root.join(SELECTED);
    let Some(snapshot) = snapshot else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let mut file = tempfile::Builder::new().prefix(".selected").tempfile_in(root)?;
    writeln!(file, "{}", snapshot.name())?;
    file.persist(path)?;
    Ok(())
}

/// Removes all but the newest snapshots and the selected one.
fn remove_old(root: &Path, selected: &Snapshot) {
    for old in list(root).iter().rev().skip(KEPT).filter(|old| *old != selected) {
        if let Err(error) = fs::remove_dir_all(&old.dir) {
            tracing::warn!("cannot remove the old snapshot {}: {error}", old.dir.display());
        }
    }
}

/// Removes what killed servers left half unpacked.
fn remove_unfinished(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let age = entry
            .metadata()
            .ok()
            .and_then(|found| found.modified().ok()?.elapsed().ok());
        if entry.file_name().to_string_lossy().starts_with(UNPACKING)
            && age.is_some_and(|age| age > LEFT_OVER)
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::warn!("cannot remove {}: {error}", entry.path().display());
        }
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
