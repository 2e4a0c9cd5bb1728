//! The files below a directory.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::roll::tasks::TaskError;

/// Maximum number of files in a data set.
const MOST_FILES: usize = 200_000;

/// The paths of all files below `root`, relative to it and sorted. Links are followed, a directory is visited once, and
/// those whose names begin with a dot are not.
///
/// # Errors
/// Fails if a directory cannot be read, or there are too many files.
pub fn files(root: &Path) -> Result<Vec<String>, TaskError> {
    let mut files = vec![];
    let mut visited = HashSet::new();
    let mut directories = vec![(root.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = directories.pop() {
        let fail = |reason| TaskError::File {
            path: directory.clone(),
            reason,
        };
        let identity = fs::metadata(&directory).map_err(fail)?;
        if !visited.insert((identity.dev(), identity.ino())) {
            continue;
        }
        for entry in fs::read_dir(&directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            // Names that are not UTF-8 fit no pattern; a link to nothing is no file.
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), fs::metadata(entry.path())) else {
                continue;
            };
            let relative = format!("{prefix}{name}");
            if metadata.is_file() {
                files.push(relative);
            } else if metadata.is_dir() && !name.starts_with('.') {
                directories.push((entry.path(), format!("{relative}/")));
            }
            if files.len() > MOST_FILES {
                return Err(TaskError::Layout {
                    path: root.display().to_string(),
                    reason: format!("it has more than {MOST_FILES} files"),
                });
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_and_circles_are_not() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("data");
        fs::create_dir_all(root.path().join(".git")).unwrap();
        fs::create_dir(&below).unwrap();
        fs::write(root.path().join(".git/x.json"), "").unwrap();
        fs::write(below.join("b.csv"), "").unwrap();
        symlink(below.join("b.csv"), root.path().join("a.csv")).unwrap();
        symlink(root.path(), below.join("circle")).unwrap();
        symlink("/nonexistent", below.join("nothing")).unwrap();
        assert_eq!(files(root.path()).unwrap(), ["a.csv", "data/b.csv"]);
        assert!(
            files(&root.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("/none: ")
        );
    }
}
