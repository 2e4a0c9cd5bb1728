//! The files of a checkout of ajet-swarm that are its training code: those that git tracks, as they are on disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config::experiment::BASE as EXPERIMENTS;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::training_code::{ARCHIVE_BYTES, PACKAGE, TOP, package_name};

/// Mode of a regular file in git's index; the last digits vary.
const REGULAR: &str = "100";

/// Reasons why there are no sources to send.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourcesError {
    /// No checkout.
    #[error("no sources of {PACKAGE} in {}; hint: name a checkout of {PACKAGE}, or a folder in it", .0.display())]
    NoCrate(PathBuf),
    /// git cannot list the files.
    #[error("cannot list the files of {} with git: {reason}; hint: only files that git tracks are sent", dir.display())]
    Git {
        /// Directory of the sources.
        dir: PathBuf,
        /// git's own words, or the system's.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Servers take no larger archive.
    #[error("the files in {} have more than {ARCHIVE_BYTES} bytes, the maximum of an archive", .0.display())]
    TooLarge(PathBuf),
}

/// The training code of a checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Directory of `Cargo.toml`.
    pub root: PathBuf,
    /// The files that are sent, relative to the root, in order.
    pub files: Vec<String>,
    /// Files that git neither tracks nor ignores, and tracked ones that are no regular files: they are not sent. A directory
    /// without a tracked file is named once, with a slash at its end; those of experiments are not named.
    pub left_out: Vec<String>,
}

impl Sources {
    /// Finds the sources in `dir`, in its folder `ajet`, or in the checkout that `dir` lies in.
    ///
    /// # Errors
    /// There are none, or git cannot list them.
    pub fn find(dir: &Path) -> Result<Self, SourcesError> {
        let root = crate_root(dir).ok_or_else(|| SourcesError::NoCrate(dir.to_owned()))?;
        let (mut files, mut left_out) = (BTreeSet::new(), BTreeSet::new());
        for entry in git_files(&root, &["--cached", "--stage"])? {
            // Such as `100644 1f7a… 0<TAB>src/main.rs`.
            let Some((head, path)) = entry.split_once('\t') else {
                continue;
            };
            match root.join(path).symlink_metadata() {
                Ok(found) if found.is_file() && head.starts_with(REGULAR) => files.insert(path.to_owned()),
                Ok(_) => left_out.insert(path.to_owned()),
                Err(_) => continue, // deleted in the work tree
            };
        }
        let others = ["--others", "--exclude-standard", "--directory", "--no-empty-directory"];
        let is_of_experiments = |path: &String| path.split('/').any(|part| part == EXPERIMENTS);
        left_out.extend(
            git_files(&root, &others)?
                .into_iter()
                .filter(|path| !is_of_experiments(path)),
        );
        Ok(Self {
            root,
            files: files.into_iter().collect(),
            left_out: left_out.into_iter().collect(),
        })
    }

    /// Returns the path of a file in the archive.
    pub fn archived(file: &str) -> String {
        format!("{TOP}/{file}")
    }
}

fn crate_root(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    let below = dir.join(TOP);
    [dir.as_path(), below.as_path()]
        .into_iter()
        .chain(dir.ancestors().skip(1))
        .find(|candidate| is_crate(candidate))
        .map(Path::to_owned)
}

fn is_crate(dir: &Path) -> bool {
    let manifest = read_text(&dir.join("Cargo.toml"), DOCUMENT_BYTES);
    manifest.is_ok_and(|manifest| package_name(&manifest) == Some(PACKAGE))
}

/// Lists files below `dir`, relative to it.
fn git_files(dir: &Path, which: &[&str]) -> Result<Vec<String>, SourcesError> {
    let failed = |reason: String| SourcesError::Git {
        dir: dir.to_owned(),
        reason,
    };
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(["ls-files", "-z"])
        .args(which)
        .output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "),
        ));
    }
    let names = String::from_utf8(output.stdout).map_err(|_| failed("a file name is not valid UTF-8".into()))?;
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
