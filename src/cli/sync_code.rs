//! `ajet-swarm sync-code`.

use crate::{note, say};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use bytes::Bytes;
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use super::server_url::ServerArgs;
use crate::config::small_file::read_bytes;

/// Maximum size of an archive that servers accept.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// Directories that are not sent when git does not determine the files.
const EXCLUDED_DIRS: [&str; 4] = [".git", "target", "__pycache__", "node_modules"];

/// Options of the sync-code command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm sync-code .
  ajet-swarm sync-code ~/src/ajet-swarm --swarm-url http://gpu-box:10086 --token \"$TOKEN\"")]
pub struct Args {
    /// Source directory: in a git work tree, tracked and untracked files that are not ignored; otherwise all files.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

/// Sends a snapshot of sources to a server, which stores it without running it. Prints its path on the server.
///
/// # Errors
/// Fails if the directory cannot be read or is too large, or if the server cannot be reached or refuses.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    let (files, archive) = tokio::task::spawn_blocking(move || pack(&args.dir)).await??;
    note!("sending {files} files ({} bytes)", archive.len());
    let answer = swarm.sync_train_code(archive).await?;
    note!("{}", answer.message);
    say!("{}", answer.temp_ajet_code_path);
    Ok(ExitCode::SUCCESS)
}

/// Packs the files of a directory into an archive; returns their number too.
fn pack(dir: &Path) -> anyhow::Result<(usize, Bytes)> {
    let files = match listed_by_git(dir) {
        Some(files) => files,
        None => walked(dir).with_context(|| format!("cannot read {}", dir.display()))?,
    };
    if files.is_empty() {
        bail!("no files to send in {}", dir.display());
    }
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    // Without times, so that equal sources give equal archives.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .unix_permissions(0o644);
    let mut total = 0;
    for file in &files {
        let path = dir.join(file);
        let bytes = read_bytes(&path, MAX_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
        total += bytes.len() as u64;
        if total > MAX_BYTES {
            bail!("the files in {} exceed the maximum of {MAX_BYTES} bytes", dir.display());
        }
        zip.start_file(file.to_string_lossy(), options)?;
        zip.write_all(&bytes)?;
    }
    Ok((files.len(), zip.finish()?.into_inner().into()))
}

/// Lists the regular files that git tracks or would add, relative to `dir`; `None` outside of a work tree or without
/// git.
fn listed_by_git(dir: &Path) -> Option<Vec<PathBuf>> {
    let listed = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let names = String::from_utf8(listed.stdout).ok()?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // Git also lists deleted but uncommitted files, and links, which are not sent.
    Some(files.filter(|file| is_regular(&dir.join(file))).collect())
}

fn is_regular(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Lists all regular files below `dir`, relative to it, in order.
fn walked(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    let mut directories = vec![PathBuf::new()];
    while let Some(below) = directories.pop() {
        for entry in std::fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_file() {
                files.push(path);
            } else if kind.is_dir() && !EXCLUDED_DIRS.iter().any(|name| entry.file_name() == *name) {
                directories.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: Bytes) -> Vec<String> {
        let zip = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
        let mut names: Vec<_> = zip.file_names().map(|name| name.unwrap().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_plain_directory_is_sent_without_what_was_built_and_a_work_tree_without_what_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("src/a.rs", "a"),
            ("target/built", "b"),
            ("notes.tmp", "c"),
            (".gitignore", "*.tmp\ntarget\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("src/link")).unwrap();
        // The temporary directory may itself lie in a work tree; then git answers for it.
        let plain = walked(dir.path()).unwrap();
        assert_eq!(plain, [".gitignore", "notes.tmp", "src/a.rs"].map(PathBuf::from));
        let made = Command::new("git").arg("init").arg("-q").arg(dir.path()).status();
        if made.is_ok_and(|status| status.success()) {
            let (files, archive) = pack(dir.path()).unwrap();
            assert_eq!(
                (files, names(archive)),
                (2, vec![".gitignore".to_owned(), "src/a.rs".to_owned()])
            );
        } else {
            eprintln!("skipped: git is needed for a work tree");
        }
        assert!(pack(&dir.path().join("none")).is_err());
    }
}
