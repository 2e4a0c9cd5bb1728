//! The Hugging Face hub and its cache on this machine: files of models and data sets.

mod environment;
mod repository;

use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use environment::Environment;
pub use repository::{Kind, Repository};

/// Why a file of the hub is not available.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct HubError {
    /// The file asked for.
    pub file: String,
    /// The hub client's message, or what forbids asking.
    pub reason: String,
}

/// The hub as the environment describes it.
#[derive(Debug)]
pub struct Hub {
    environment: Environment,
}

impl Hub {
    /// From `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and what else Python's client reads.
    pub fn from_env() -> Self {
        Self {
            environment: Environment::new(|name| std::env::var(name).ok()),
        }
    }

    /// Whether the environment forbids network access.
    pub fn is_offline(&self) -> bool {
        self.environment.offline
    }

    /// The directory of the cache that holds the files of a repository's revision; files may be missing in it.
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

    /// Asks the hub which files a repository has.
    ///
    /// # Errors
    /// Fails if `HF_HUB_OFFLINE` is set, the hub cannot be reached, or it has no such repository or revision.
    pub fn open(&self, repository: &Repository) -> Result<Remote, HubError> {
        let fail = |reason: String| HubError {
            file: "list of files".into(),
            reason,
        };
        if self.environment.offline {
            return Err(fail("HF_HUB_OFFLINE is set, so nothing is downloaded".into()));
        }
        let mut builder = ApiBuilder::from_env()
            .with_cache_dir(self.environment.cache.clone())
            // Whoever listens to `progress` draws it.
            .with_progress(false);
        if let Some(token) = &self.environment.token {
            builder = builder.with_token(Some(token.clone()));
        }
        let api = builder.build().map_err(|error| fail(error.to_string()))?;
        let api = api.repo(repository.to_hf());
        let info = api.info().map_err(|error| fail(error.to_string()))?;
        if !is_below(&info.sha) {
            return Err(fail(format!(
                "the hub reports the revision {:?}, which is not a commit",
                info.sha
            )));
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
    /// The paths of all files, relative to the repository.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Whether the repository has a file.
    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|known| known == file)
    }

    /// The directory of the cache that the files of this revision are fetched into.
    pub fn snapshot(&self) -> &Path {
        &self.snapshot
    }

    /// A file's place in the cache; fetches it where it is not there yet. `progress` receives the part that is done
    /// (0 to 1) and what is being done.
    ///
    /// # Errors
    /// Fails if the hub does not provide it, or provides that of another revision.
    pub fn fetch(&self, file: &str, progress: &mut dyn FnMut(f32, &str)) -> Result<PathBuf, HubError> {
        let fail = |reason: String| HubError {
            file: file.to_owned(),
            reason,
        };
        if !is_below(file) {
            return Err(fail("its name leads out of the repository".into()));
        }
        let wanted = self.snapshot.join(file);
        if wanted.exists() {
            return Ok(wanted);
        }
        if let Some(character) = file.chars().find(|character| !is_plain(*character)) {
            return Err(fail(format!("the hub client cannot fetch names with {character:?}")));
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
            .map_err(|error| fail(error.to_string()))?;
        match path == wanted {
            true => Ok(path),
            false => Err(fail("the repository changed meanwhile; run this again".into())),
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
