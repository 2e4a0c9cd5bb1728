//! The Hugging Face hub and its cache on this machine: files of models and data sets.

mod environment;
mod error;
mod repository;

use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use environment::Environment;
pub use error::{HubError, Reason};
pub use repository::{Kind, Repository};

/// The hub as the environment describes it.
#[derive(Debug)]
pub struct Hub {
    environment: Environment,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and the other variables of Python's client.
    pub fn from_env() -> Self {
        Self {
            environment: Environment::new(|name| std::env::var(name).ok()),
        }
    }

    /// Returns whether the environment forbids network access.
    pub fn is_offline(&self) -> bool {
        self.environment.offline
    }

    /// Returns the cache directory of a repository's revision, in which files may be missing; `None` if there is none.
    pub fn cached(&self, repository: &Repository) -> Option<PathBuf> {
        let directory = self.environment.cache.join(repository.to_hf().folder_name());
        let reference = directory.join("refs").join(&repository.revision);
        let commit = match read_text(&reference, DOCUMENT_BYTES) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => repository.revision.clone(),
        };
        let snapshot = directory.join("snapshots").join(&commit);
        (is_below(&commit) && snapshot.is_dir()).then_some(snapshot)
    }

    /// Fetches the list of a repository's files.
    ///
    /// # Errors
    /// Fails if `HF_HUB_OFFLINE` is set, the hub cannot be reached, or it has no such repository or revision.
    pub fn open(&self, repository: &Repository) -> Result<Remote, HubError> {
        let fail = |reason| HubError {
            file: "list of files".into(),
            reason,
        };
        let refused = |error: ApiError| fail(Reason::Client(error.to_string()));
        if self.environment.offline {
            return Err(fail(Reason::Offline));
        }
        let mut builder = ApiBuilder::from_env()
            .with_cache_dir(self.environment.cache.clone())
            // The caller of `fetch` shows the progress.
            .with_progress(false);
        if let Some(token) = &self.environment.token {
            builder = builder.with_token(Some(token.clone()));
        }
        let api = builder.build().map_err(refused)?.repo(repository.to_hf());
        let info = api.info().map_err(refused)?;
        if !is_below(&info.sha) {
            return Err(fail(Reason::NotACommit(info.sha)));
        }
        let snapshots = self.environment.cache.join(repository.to_hf().folder_name());
        Ok(Remote {
            api,
            snapshot: snapshots.join("snapshots").join(info.sha),
            files: info.siblings.into_iter().map(|sibling| sibling.rfilename).collect(),
        })
    }
}

/// A repository's revision on the hub.
#[derive(Debug)]
pub struct Remote {
    api: ApiRepo,
    snapshot: PathBuf,
    files: Vec<String>,
}

impl Remote {
    /// Returns the paths of all files, relative to the repository.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Returns whether the repository has a file.
    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|known| known == file)
    }

    /// Returns the cache directory of this revision.
    pub fn snapshot(&self) -> &Path {
        &self.snapshot
    }

    /// Returns the path of a file in the cache, after fetching it if it is not there. `progress` receives the fraction
    /// done (0 to 1) and the current activity.
    ///
    /// # Errors
    /// Fails if the hub does not provide it, or provides a file of another revision.
    pub fn fetch(&self, file: &str, progress: &mut dyn FnMut(f32, &str)) -> Result<PathBuf, HubError> {
        let fail = |reason| HubError {
            file: file.to_owned(),
            reason,
        };
        if !is_below(file) {
            return Err(fail(Reason::OutsideRepository));
        }
        let wanted = self.snapshot.join(file);
        if wanted.exists() {
            return Ok(wanted);
        }
        if let Some(character) = file.chars().find(|character| !is_plain(*character)) {
            return Err(fail(Reason::UnsupportedCharacter(character)));
        }
        let fraction = Fraction {
            what: format!("downloading {file}"),
            done: 0,
            total: 1,
            progress,
        };
        let path = self
            .api
            .download_with_progress(file, fraction)
            .map_err(|error| fail(Reason::Client(error.to_string())))?;
        match path == wanted {
            true => Ok(path),
            false => Err(fail(Reason::Changed)),
        }
    }
}

/// Whether a path stays below the directory that it is joined to.
fn is_below(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains('\0')
}

/// Whether a character stands for itself in the path of a URL.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~/+=,@()!'$&*;:".contains(character)
}

/// Turns the hub client's byte counts into fractions.
struct Fraction<'a> {
    what: String,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(f32, &str),
}

impl Progress for Fraction<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.total = size.max(1);
        self.done = 0;
        self.update(0);
    }

    fn update(&mut self, size: usize) {
        self.done += size;
        (self.progress)(self.done as f32 / self.total as f32, &self.what);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(cache: &Path, offline: &'static str) -> Hub {
        let cache = cache.to_str().unwrap().to_owned();
        Hub {
            environment: Environment::new(|name| match name {
                "HF_HUB_CACHE" => Some(cache.clone()),
                "HF_HUB_OFFLINE" => Some(offline.into()),
                _ => None,
            }),
        }
    }

    #[test]
    fn the_cache_is_found_by_reference_and_by_commit() {
        let cache = tempfile::tempdir().unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let directory = cache.path().join("datasets--openai--gsm8k");
        let snapshot = directory.join("snapshots").join(commit);
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(directory.join("refs")).unwrap();
        std::fs::write(directory.join("refs/main"), format!("{commit}\n")).unwrap();
        std::fs::write(directory.join("refs/bad"), "../../..").unwrap();
        let hub = hub(cache.path(), "0");
        for (id, expected) in [
            ("openai/gsm8k", Some(&snapshot)),
            ("openai/gsm8k@main", Some(&snapshot)),
            ("openai/gsm8k@0123456789abcdef0123456789abcdef01234567", Some(&snapshot)),
            ("openai/gsm8k@v2", None),
            ("openai/gsm8k@bad", None),
            ("openai/other", None),
        ] {
            let repository = Repository::parse(id, Kind::Dataset).unwrap();
            assert_eq!(hub.cached(&repository).as_ref(), expected, "{id}");
        }
        assert_eq!(
            hub.cached(&Repository::parse("openai/gsm8k", Kind::Model).unwrap()),
            None
        );
    }

    #[test]
    fn offline_the_hub_is_not_asked() {
        let cache = tempfile::tempdir().unwrap();
        let repository = Repository::parse("openai/gsm8k", Kind::Dataset).unwrap();
        let hub = hub(cache.path(), "1");
        assert!(hub.is_offline());
        let error = hub.open(&repository).unwrap_err().to_string();
        assert_eq!(error, "HF_HUB_OFFLINE is set, so nothing is downloaded");
    }

    #[test]
    fn names_stay_below_the_snapshot() {
        for (name, below) in [
            ("data/train.parquet", true),
            ("a..b", true),
            ("", false),
            ("/etc/passwd", false),
            ("../x", false),
            ("a/../../x", false),
            ("a//b", false),
            ("a\0", false),
        ] {
            assert_eq!(is_below(name), below, "{name:?}");
        }
    }
}
