//! The directory of an engine's socket and configuration: private to the user, removed when the server ends.
//!
//! Access to the engine's socket means control of the engine, so no other user may enter the directory, whatever the
//! umask. A killed server leaves its directory behind; the next server removes it. A lock, which the kernel releases
//! with the process, marks the directories in use.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Prefix of the directory names; random digits follow.
const PREFIX: &str = "ajet-swarm-engine-";
/// Permissions: this user only.
const MODE: u32 = 0o700;
/// Files that a directory may contain.
const FILES: [&str; 2] = ["engine.sock", "config.json"];
/// Maximum length of the base directory's path: a socket's path may have only about 108 bytes.
const BASE_BYTES: usize = 60;
/// Attempts to find an unused name.
const TRIES: usize = 16;

/// Directory of one engine, removed on drop.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Kept open and locked while the directory is in use.
    _lock: File,
}

impl RuntimeDir {
    /// Creates a directory, after removing those of servers that have ended.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created.
    pub fn new() -> io::Result<Self> {
        let base = base(
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            std::env::temp_dir(),
        );
        Self::below(&base)
    }

    fn below(base: &Path) -> io::Result<Self> {
        remove_leftovers(base);
        for _ in 0..TRIES {
            let path = base.join(format!("{PREFIX}{:016x}", rand::random::<u64>()));
            // Fails if the path exists, so that the directory is certainly ours.
            DirBuilder::new().mode(MODE).create(&path)?;
            // The umask may have removed permissions of the user. Another starting server may take the new directory
            // for a leftover.
            if fs::set_permissions(&path, PermissionsExt::from_mode(MODE)).is_ok()
                && let Ok(lock) = File::open(&path)
                && lock.try_lock().is_ok()
                && is_at(&lock, &path)
            {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::Error::other(
            "another process keeps removing the engine's runtime directory",
        ))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Returns the user's runtime directory if there is one, otherwise the temporary directory.
fn base(runtime: Option<PathBuf>, temporary: PathBuf) -> PathBuf {
    let is_short = |path: &PathBuf| path.as_os_str().len() <= BASE_BYTES;
    let private = runtime.filter(|path| {
        let metadata = fs::symlink_metadata(path);
        metadata.is_ok_and(|found| found.is_dir() && is_ours(&found) && found.mode() & 0o077 == 0)
    });
    let usable = private.filter(is_short).or(Some(temporary).filter(is_short));
    usable.unwrap_or_else(|| "/tmp".into())
}

fn is_ours(metadata: &fs::Metadata) -> bool {
    metadata.uid() == geteuid().as_raw()
}

/// Returns whether `path` still leads to the open directory.
fn is_at(open: &File, path: &Path) -> bool {
    match (open.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Removes this user's directories whose servers have ended.
fn remove_leftovers(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named_so = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_our_dir = || fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && is_ours(&found));
        if !is_named_so || !is_our_dir() {
            continue;
        }
        match File::open(&path).map(|dir| (dir.try_lock(), dir)) {
            // Locked until removed, so that two servers do not remove the same directory.
            Ok((Ok(()), dir)) if is_at(&dir, &path) => remove(&path),
            Ok((Err(TryLockError::WouldBlock), _)) => {}
            other => tracing::debug!("keeping the directory {}: {other:?}", path.display()),
        }
    }
}

/// Removes the directory and its known files; a directory with any other file is kept.
fn remove(path: &Path) {
    for file in FILES {
        match fs::remove_file(path.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::debug!("cannot remove {file}: {error}"),
            _ => {}
        }
    }
    if let Err(error) = fs::remove_dir(path) {
        tracing::debug!("cannot remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn directories_are_private_and_go_when_they_are_dropped() {
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::below(base.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
        for file in FILES {
            fs::write(dir.path().join(file), "").unwrap();
        }
        drop(dir);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn those_of_dead_servers_are_removed_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let in_use = RuntimeDir::below(base.path()).unwrap();
        let dead = at(&format!("{PREFIX}dead"));
        let kept = [at(&format!("{PREFIX}foreign-files")), at("ajet-swarm-job"), at("other")];
        for dir in kept.iter().chain([&dead]) {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("engine.sock"), "").unwrap();
        }
        fs::write(kept[0].join("thesis.tex"), "").unwrap();
        let (file, link) = (at(&format!("{PREFIX}file")), at(&format!("{PREFIX}link")));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&kept[2], &link).unwrap();
        let new = RuntimeDir::below(base.path()).unwrap();
        assert!(!dead.exists());
        for path in kept
            .iter()
            .chain([&file, &link, &in_use.path, &new.path, &kept[2].join("engine.sock")])
        {
            assert!(path.exists(), "{}", path.display());
        }
        assert!(kept[0].join("thesis.tex").exists());
    }

    #[test]
    fn many_servers_may_start_at_once() {
        let base = tempfile::tempdir().unwrap();
        let starts: Vec<_> = (0..8)
            .map(|_| {
                let base = base.path().to_owned();
                std::thread::spawn(move || (0..20).map(|_| RuntimeDir::below(&base).unwrap()).collect::<Vec<_>>())
            })
            .collect();
        let dirs: Vec<_> = starts.into_iter().flat_map(|start| start.join().unwrap()).collect();
        assert!(dirs.iter().all(|dir| dir.path().is_dir()));
        drop(dirs);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_users_runtime_directory_is_preferred_where_it_is_private_and_short() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let runtime = dir.path().to_owned();
        fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
        let temporary = || PathBuf::from("/var/tmp");
        assert_eq!(base(Some(runtime.clone()), temporary()), runtime);
        fs::set_permissions(&runtime, PermissionsExt::from_mode(0o750)).unwrap();
        let long = PathBuf::from(format!("/{}", "x".repeat(BASE_BYTES)));
        for other in [Some(runtime), Some("/no/such/dir".into()), Some(long.clone()), None] {
            assert_eq!(base(other, temporary()), temporary());
        }
        assert_eq!(base(None, long), PathBuf::from("/tmp"));
    }
}
