//! Writes that survive a power failure: first a file's content, then its name. Created files are private to their
//! owner, since journals and trajectories contain prompts and completions.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Returns options that create a file readable only by its owner.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Creates a directory and its missing parents, private to their owner, and makes their names durable.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        create_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if !dir.is_dir() => Err(error),
        _ => sync_parent(dir),
    }
}

/// Makes everything under `dir` private to its owner.
pub fn make_private(dir: &Path) -> io::Result<()> {
    std::fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => make_private(&path)?,
            false => std::fs::set_permissions(&path, Permissions::from_mode(0o600))?,
        }
    }
    Ok(())
}

/// Makes content and names of everything under `dir` durable.
pub fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            File::open(&path)?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

/// Makes the name of `path` durable by syncing its directory.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Replaces the file at `path` durably and atomically.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_then(path, content, File::sync_all)?;
    sync_parent(path)
}

/// Writes the file at `path` atomically, without waiting for the disk.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_then(path, content, |_| Ok(()))
}

fn replace_then(path: &Path, content: &[u8], written: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let replaced = private()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| written(&file)))
        .and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary); // it only takes space
    }
    replaced
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_the_owners_alone() {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let dir = base.path().join("a/b/c");
        create_dir(&dir).unwrap();
        create_dir(&dir).unwrap();
        for made in ["a", "a/b", "a/b/c"] {
            assert_eq!(mode(&base.path().join(made)), 0o700, "{made}");
        }
        assert_eq!(mode(base.path()), 0o755, "what was there is left as it is");
        replace(&dir.join("replaced"), b"x").unwrap();
        write(&dir.join("written"), b"x").unwrap();
        private().append(true).create(true).open(dir.join("opened")).unwrap();
        for made in ["replaced", "written", "opened"] {
            assert_eq!(mode(&dir.join(made)), 0o600, "{made}");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_the_file_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.json");
        write(&path, b"old").unwrap();
        let full = |_: &File| Err(io::Error::from(io::ErrorKind::StorageFull));
        replace_then(&path, b"new", full).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        std::fs::write(dir.path().join("file"), "").unwrap();
        create_dir(&dir.path().join("file/below")).unwrap_err();
    }
}
