//! Fetching from a server to this machine: a checkpoint here, metrics and transcripts in the files below.
//!
//! Files are written to a temporary directory beside the target, whose name depends on their checksums; so a repeated
//! fetch continues where an interrupted one ended. The target appears when every file has its size and checksum.

mod metrics;
mod transcripts;

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt;

use super::{ClientError, SwarmClient, backoff};
use crate::config::checksum::{sha256, sha256_of_file};
use crate::protocol::checkpoint::{MANIFEST, Manifest, TRAINER_DIR, is_below};

pub use metrics::fetch_metrics;
pub use transcripts::{Fetched, fetch_transcripts};

/// Maximum number of attempts without a byte between them.
const TRIES: u32 = 6;

/// Reasons why something was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server cannot be reached, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The target is not empty.
    #[error("{0} already exists and is not empty\nhint: choose a new directory")]
    TargetNotEmpty(PathBuf),
    /// A file to be replaced is no file of metrics.
    #[error("{0} exists and does not hold metrics\nhint: choose a new file")]
    NoMetrics(PathBuf),
    /// The server lists a file outside of the checkpoint.
    #[error("the server lists a file outside of the checkpoint: {0:?}\nhint: check the server's URL")]
    FileName(String),
    /// A file differs from the listing, also after another attempt.
    #[error("{file} has {found}, expected {expected}\nhint: the checkpoint changed on the server; run this again")]
    Content {
        /// Path in the checkpoint.
        file: String,
        /// Size or checksum of the received file.
        found: String,
        /// The listed one.
        expected: String,
    },
    /// The file system of this machine failed.
    #[error("{path}: {source}")]
    Io {
        /// Path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, FetchError>;

/// Returns what to fetch of a checkpoint: all files, or only those of the model.
pub fn selected(manifest: &Manifest, with_trainer_state: bool) -> Manifest {
    let is_wanted = |file: &String| with_trainer_state || !file.starts_with(&format!("{TRAINER_DIR}/"));
    let mut selected = manifest.clone();
    selected.files.retain(|file, _| is_wanted(file));
    selected.sha256.retain(|file, _| is_wanted(file));
    selected
}

/// Fetches the files of a manifest of an experiment, without a name of the current or last one, into `target`, with the manifest itself; `progress` receives the number of bytes of
/// all files that are present so far.
///
/// # Errors
/// Fails if the target is not empty, a file cannot be read or written, or its checksum does not match. What was
/// received is kept for the next attempt.
pub async fn fetch(
    swarm: &SwarmClient,
    run: Option<&str>,
    manifest: &Manifest,
    target: &Path,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<()> {
    if let Some(name) = manifest.files.keys().find(|name| !is_below(name)) {
        return Err(FetchError::FileName(name.clone()));
    }
    let target = std::path::absolute(target).map_err(io(target))?;
    if target.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || target.is_file() {
        return Err(FetchError::TargetNotEmpty(target));
    }
    let partial = partial_dir(&target, manifest);
    std::fs::create_dir_all(&partial).map_err(io(&partial))?;
    let mut present = 0;
    for (name, size) in &manifest.files {
        let file = WantedFile {
            run,
            step: manifest.global_step,
            name,
            size: *size,
            sha256: manifest.sha256.get(name).map(String::as_str),
            path: partial.join(name),
        };
        file.fetch(swarm, &mut |of_file| progress(present + of_file)).await?;
        present += size;
    }
    publish(&partial, &target, manifest)
}

/// Writes the manifest and renames the finished directory. An empty target is replaced.
fn publish(partial: &Path, target: &Path, manifest: &Manifest) -> Result<()> {
    let path = partial.join(MANIFEST);
    let text = serde_json::to_vec_pretty(manifest).map_err(|error| io(&path)(error.into()))?;
    std::fs::write(&path, text).map_err(io(&path))?;
    std::fs::rename(partial, target).map_err(io(target))
}

/// Returns the temporary directory of this target and these files.
fn partial_dir(target: &Path, manifest: &Manifest) -> PathBuf {
    let files = manifest.files.iter().map(|(file, size)| {
        let sum = manifest.sha256.get(file).map_or("", String::as_str);
        format!("{file}\0{size}\0{sum}\n")
    });
    let id = sha256(files.collect::<String>().as_bytes());
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.partial-{}", &id[..12]))
}

/// A file of a checkpoint, and where it is written.
struct WantedFile<'a> {
    run: Option<&'a str>,
    step: u64,
    name: &'a str,
    size: u64,
    sha256: Option<&'a str>,
    path: PathBuf,
}

impl WantedFile<'_> {
    /// Fetches the file, or what is missing of it. One that does not match is fetched once more from its beginning.
    async fn fetch(&self, swarm: &SwarmClient, progress: &mut (dyn FnMut(u64) + Send)) -> Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(io(parent))?;
        let continued = self.length() > 0;
        self.receive(swarm, progress).await?;
        match self.check().await {
            Err(FetchError::Content { .. }) if continued => {
                tokio::fs::remove_file(&self.path).await.map_err(io(&self.path))?;
                self.receive(swarm, progress).await?;
                self.check().await
            }
            checked => checked,
        }?;
        progress(self.size);
        Ok(())
    }

    /// Receives bytes until the file has its size, over as many connections as it takes.
    async fn receive(&self, swarm: &SwarmClient, progress: &mut (dyn FnMut(u64) + Send)) -> Result<()> {
        let mut tried = 1;
        loop {
            let before = self.length();
            let outcome = self.append(swarm, progress).await;
            match outcome {
                Err(FetchError::Client(error)) if error.is_unreachable() && tried < TRIES => {
                    tried = if self.length() > before { 1 } else { tried + 1 };
                    tokio::time::sleep(backoff(tried)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Receives bytes over one connection.
    async fn append(&self, swarm: &SwarmClient, progress: &mut (dyn FnMut(u64) + Send)) -> Result<()> {
        let mut length = self.length();
        if length == self.size && self.path.exists() {
            return Ok(());
        }
        if length >= self.size {
            length = 0;
        }
        let mut download = swarm.checkpoint_file(self.run, self.step, self.name, length).await?;
        length = download.offset;
        let mut file = self.open(length).await.map_err(io(&self.path))?;
        while let Some(bytes) = download.next().await? {
            length += bytes.len() as u64;
            if length > self.size {
                break;
            }
            file.write_all(&bytes).await.map_err(io(&self.path))?;
            progress(length);
        }
        file.flush().await.map_err(io(&self.path))?;
        match length == self.size {
            true => Ok(()),
            false => Err(self.differs(format!("{length} bytes"), format!("{} bytes", self.size))),
        }
    }

    /// Opens the file to write at an offset; what it has beyond is removed.
    async fn open(&self, offset: u64) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
            .await?;
        file.set_len(offset).await?;
        tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::End(0)).await?;
        Ok(file)
    }

    fn length(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    async fn check(&self) -> Result<()> {
        let Some(expected) = self.sha256 else {
            return Ok(()); // a checkpoint of an older version
        };
        let path = self.path.clone();
        let found = tokio::task::spawn_blocking(move || sha256_of_file(&path)).await;
        let found = found.map_err(|error| io(&self.path)(io::Error::other(error)))?;
        let found = found.map_err(io(&self.path))?;
        match found == expected {
            true => Ok(()),
            false => Err(self.differs(format!("SHA-256 {found}"), expected.to_owned())),
        }
    }

    fn differs(&self, found: String, expected: String) -> FetchError {
        FetchError::Content {
            file: self.name.to_owned(),
            found,
            expected,
        }
    }
}

fn io(path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        insta::assert_snapshot!(messages!(FetchError:
            FetchError::Client(_) => FetchError::Client(ClientError::Setup("no root certificates found".into())),
            FetchError::TargetNotEmpty(_) => FetchError::TargetNotEmpty("/home/ann/model".into()),
            FetchError::NoMetrics(_) => FetchError::NoMetrics("/home/ann/notes.txt".into()),
            FetchError::FileName(_) => FetchError::FileName("../a".into()),
            FetchError::Content { .. } => FetchError::Content {
                file: "model.safetensors".into(),
                found: "100 bytes".into(),
                expected: "200 bytes".into(),
            },
            FetchError::Io { .. } => FetchError::Io {
                path: "/home/ann/model".into(),
                source: io::ErrorKind::StorageFull.into(),
            },
        ));
    }
}
