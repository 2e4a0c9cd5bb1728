//! The directory in which all snapshots are built, one after the other.
//!
//! cargo rebuilds what lies at another path or has a newer time. So every snapshot is copied to the same path, and a file
//! that is equal there already is left alone with its time: a build then costs what has changed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Makes `to` an exact copy of `from`; equal files keep their times.
///
/// # Errors
///
/// Fails if a file cannot be read, written or removed.
pub fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut wanted = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        wanted.insert(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => {
                remove_unless(&target, |metadata| metadata.is_dir())?;
                mirror(&source, &target)?;
            }
            false => {
                remove_unless(&target, |metadata| metadata.is_file())?;
                copy_changed(&source, &target)?;
            }
        }
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !wanted.contains(&entry.file_name()) {
            remove_unless(&entry.path(), |_| false)?;
        }
    }
    Ok(())
}

/// Removes what is at `path` unless it is of the wanted kind.
fn remove_unless(path: &Path, is_wanted: impl Fn(&fs::Metadata) -> bool) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if is_wanted(&metadata) => Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn copy_changed(source: &Path, target: &Path) -> io::Result<()> {
    let wanted = fs::read(source)?;
    match fs::read(target) {
        Ok(present) if present == wanted => Ok(()),
        _ => fs::write(target, wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_copy_is_exact_and_equal_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for (path, text) in [("a.rs", "1"), ("deep/b.rs", "2"), ("kind", "file"), ("was_file/c", "3")] {
            let path = from.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for (path, text) in [
            ("a.rs", "1"),
            ("deep/b.rs", "old"),
            ("deep/gone.rs", "x"),
            ("gone/d", "x"),
        ] {
            let path = to.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(to.join("kind/below")).unwrap();
        fs::write(to.join("was_file"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", to.join("link")).unwrap();
        let time = |path: &str| {
            let metadata = fs::metadata(to.join(path)).unwrap();
            (metadata.ino(), metadata.mtime_nsec(), metadata.mtime())
        };
        let before = time("a.rs");
        mirror(&from, &to).unwrap();
        assert_eq!(time("a.rs"), before, "an equal file keeps its time");
        for (path, text) in [("a.rs", "1"), ("deep/b.rs", "2"), ("kind", "file"), ("was_file/c", "3")] {
            assert_eq!(fs::read_to_string(to.join(path)).unwrap(), text, "{path}");
        }
        for path in ["deep/gone.rs", "gone", "link"] {
            assert!(fs::symlink_metadata(to.join(path)).is_err(), "{path}");
        }
        assert!(Path::new("/etc/passwd").exists());
    }
}
