//! Where the files of a data set are: a directory, the hub, or the hub's cache.

use std::path::{Path, PathBuf};

use super::directory;
use crate::hub::{Hub, HubError, Kind, Remote, Repository};
use crate::roll::tasks::TaskError;

/// A data set whose files have names and can be had.
#[derive(Debug)]
pub struct Source {
    /// As the job names it.
    pub path: String,
    /// The paths of all files, relative to the data set and sorted.
    pub files: Vec<String>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A directory.
    Directory(PathBuf),
    /// The hub.
    Hub(Box<Remote>),
    /// What the cache has of it, since the hub was not asked or did not answer.
    Cache(PathBuf),
}

impl Source {
    /// The data set at a directory or hub id.
    ///
    /// # Errors
    /// Fails if it is neither, or the hub does not give it and the cache does not have it.
    pub fn open(path: &str) -> Result<Self, TaskError> {
        let open = |place: Place, files: Vec<String>| Self {
            path: path.to_owned(),
            files,
            place,
        };
        let local = Path::new(path);
        if local.is_dir() {
            return Ok(open(Place::Directory(local.to_path_buf()), directory::files(local)?));
        }
        let Some(repository) = Repository::parse(path, Kind::Dataset) else {
            return Err(TaskError::NoSuchPath(path.to_owned()));
        };
        let hub = Hub::from_env();
        match hub.open(&repository) {
            Ok(remote) => {
                let mut files = remote.files().to_vec();
                files.sort_unstable();
                Ok(open(Place::Hub(Box::new(remote)), files))
            }
            Err(error) => {
                let Some(snapshot) = hub.cached(&repository) else {
                    return Err(no_dataset(path, error));
                };
                if !hub.is_offline() {
                    tracing::warn!("using what the cache has of {path}, since the hub did not answer: {error}");
                }
                let files = directory::files(&snapshot)?;
                Ok(open(Place::Cache(snapshot), files))
            }
        }
    }

    /// Whether files may be missing that the data set has.
    pub fn is_partial(&self) -> bool {
        matches!(self.place, Place::Cache(_))
    }

    /// A file on this machine; fetches it where it is not here yet.
    ///
    /// # Errors
    /// Fails if the hub does not give it.
    pub fn file(&self, name: &str) -> Result<PathBuf, TaskError> {
        match &self.place {
            Place::Directory(directory) | Place::Cache(directory) => Ok(directory.join(name)),
            Place::Hub(remote) => {
                let mut logged = false;
                let mut progress = |_: f32, what: &str| {
                    if !logged {
                        tracing::info!("{what} of {}", self.path);
                    }
                    logged = true;
                };
                remote
                    .fetch(name, &mut progress)
                    .map_err(|error| no_dataset(&self.path, error))
            }
        }
    }
}

fn no_dataset(path: &str, error: HubError) -> TaskError {
    TaskError::NoDataset {
        path: path.to_owned(),
        file: error.file,
        reason: error.reason.to_string(),
    }
}
