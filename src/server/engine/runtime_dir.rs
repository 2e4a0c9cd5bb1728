//! The directory in which an engine and its server meet: private to the user, and gone with the server.
//!
//! Whoever can open the engine's socket can steer the engine, so no one else may enter the directory, whatever the umask.
//! A server that is killed leaves its directory behind; the next one removes it. A lock, which the system drops with its
//! process, tells those that are in use.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// How the directories are named, with random digits after it.
const PREFIX: &str = "ajet-swarm-engine-";
/// Only the user.
const MODE: u32 = 0o700;
/// What a directory may hold.
const FILES: [&str; 2] = ["engine.sock", "config.yaml"];
/// Maximum length of the path of what the directories lie in: that of a socket has about 108 bytes.
const BASE_BYTES: usize = 60;
/// How often another name is tried.
const TRIES: usize = 16;

/// A directory of one engine, removed when this is dropped.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// Held open, and locked, for as long as the directory is in use.
    _lock: File,
}

impl RuntimeDir {
    /// A new one, after those of servers that are gone were removed.
    ///
    /// # Errors
    ///
    /// It cannot be made.
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
            // Fails if anything is there already, so that it is ours and nobody else's.
            DirBuilder::new().mode(MODE).create(&path)?;
            // A umask may have taken bits of the user's own. Another server that starts just now may take it for a leftover.
            if fs::set_permissions(&path, PermissionsExt::from_mode(MODE)).is_ok()
                && let Ok(lock) = File::open(&path)
                && lock.try_lock().is_ok()
                && is_at(&lock, &path)
            {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::Error::other("another process removes the engine's directory"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The user's own runtime directory, if there is one, or else that of temporary files.
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

/// Whether `path` still leads to the open directory.
fn is_at(open: &File, path: &Path) -> bool {
    match (open.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Removes the directories of this user whose servers are gone.
fn remove_leftovers(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named_so = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_our_dir = || fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && is_ours(&found));
        if !is_named_so || !is_our_dir() {
            continue;
        }
        match File::open(&path).map(|dir| (dir.try_lock(), dir)) {
            // Locked until it is removed, so that two servers do not do the same.
            Ok((Ok(()), dir)) if is_at(&dir, &path) => remove(&path),
            Ok((Err(TryLockError::WouldBlock), _)) => {}
            other => tracing::debug!("the directory {} is left: {other:?}", path.display()),
        }
    }
}

/// Removes what such a directory holds, and it; anything else in it is not ours to remove.
fn remove(path: &Path) {
    for file in FILES {
        match fs::remove_file(path.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::debug!("removing {file}: {error}"),
            _ => {}
        }
    }
    if let Err(error) = fs::remove_dir(path) {
        tracing::debug!("removing {}: {error}", path.display());
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
