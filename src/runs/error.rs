//! Errors of reading experiments.

use std::io;
use std::path::{Path, PathBuf};

/// Reasons why the files of an experiment cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The name is not that of a directory below the experiments' directory.
    #[error("{0:?} is not the name of an experiment; hint: GET /runs lists them")]
    Name(String),
    /// No such experiment.
    #[error("no experiment {name:?} in {}; hint: GET /runs lists them", .root.display())]
    NotFound {
        /// The name.
        name: String,
        /// Directory of the experiments.
        root: PathBuf,
    },
    /// No such episode.
    #[error("episode {uuid:?} is not among the last {kept} of {run:?}; hint: GET /episodes lists them")]
    NoEpisode {
        /// The episode.
        uuid: String,
        /// The experiment.
        run: String,
        /// Maximum number of listed episodes.
        kept: usize,
    },
    /// A query parameter is invalid.
    #[error("{name} must be {expected}, got {given:?}")]
    Query {
        /// The parameter.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
        /// Its value.
        given: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl RunsError {
    /// Returns a conversion of errors of this file.
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}
