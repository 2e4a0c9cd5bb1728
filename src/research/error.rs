//! Reasons why a research cannot continue.

use std::io;
use std::path::{Path, PathBuf};

use crate::client::{ClientError, SourcesError};

/// An error of a research.
#[derive(Debug, thiserror::Error)]
pub enum ResearchError {
    /// A file cannot be read or written.
    #[error("cannot use {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// The plan is wrong.
    #[error("the plan {} is not valid: {reason}", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory holds the results of something else.
    #[error("{} holds no results of a research: {reason}; hint: name another directory with --out", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process works on it.
    #[error("another process runs the research in {}; hint: wait for it, or name another directory with --out", .0.display())]
    Busy(PathBuf),
    /// A patch does not apply.
    #[error("cannot apply {} to a copy of the code: {reason}", patch.display())]
    Patch {
        /// The patch.
        patch: PathBuf,
        /// git's own words.
        reason: String,
    },
    /// The checkout has no training code.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A server does not stop its engine.
    #[error(transparent)]
    Swarm(#[from] ClientError),
    /// `roll` cannot be run.
    #[error("cannot run `ajet-swarm roll`: {0}")]
    Roll(io::Error),
}

impl ResearchError {
    /// An error of a file.
    pub fn file(path: &Path, reason: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            reason,
        }
    }
}
