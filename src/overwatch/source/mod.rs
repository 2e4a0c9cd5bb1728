//! Where the dashboard's data come from: a swarm server, or the files of a run.

mod printable;
mod python;
mod replay;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::update::{Update, Wanted};
use crate::client::{ClientError, SwarmClient};
use crate::protocol::status::Status;
use replay::RunFiles;

/// Where the dashboard's data come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A server.
    Server(SwarmClient),
    /// The directory of a run.
    Replay(PathBuf),
}

/// Why the dashboard has nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The server does not answer.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// A directory is not that of a run.
    #[error(
        "cannot replay {path}: {reason}\nhint: name the directory of an experiment, which holds metrics.jsonl, such as \
         saved_experiments/my_run"
    )]
    Replay {
        /// Given directory.
        path: String,
        /// Reason.
        reason: String,
    },
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

impl Source {
    /// Reads everything once: the state first, then the history.
    ///
    /// # Errors
    /// [`WatchError::Server`], [`WatchError::Replay`].
    pub async fn once(&self) -> Result<Vec<Update>, WatchError> {
        match self {
            Self::Server(swarm) => server::once(swarm).await,
            Self::Replay(dir) => Ok(run_files(dir).await?.all()),
        }
    }

    /// Reads the state once.
    ///
    /// # Errors
    /// [`WatchError::Server`], [`WatchError::Replay`].
    pub async fn status(&self) -> Result<Status, WatchError> {
        let updates = self.once().await?;
        let status = updates.into_iter().find_map(|update| match update {
            Update::Status(observed) => Some(observed.status),
            _ => None,
        });
        Ok(status.unwrap_or_default())
    }

    /// Sends updates until the receiver is gone: the state at most once in `refresh`, and what is `wanted`.
    ///
    /// # Errors
    /// [`WatchError::Replay`]; a server that does not answer is an update.
    pub(super) async fn follow(
        self,
        updates: mpsc::Sender<Update>,
        wanted: watch::Receiver<Wanted>,
        refresh: Duration,
    ) -> Result<(), WatchError> {
        match self {
            Self::Server(swarm) => server::follow(swarm, updates, wanted, refresh).await,
            Self::Replay(dir) => replay::follow(run_files(&dir).await?, updates, wanted).await,
        }
        Ok(())
    }
}

async fn run_files(dir: &Path) -> Result<RunFiles, WatchError> {
    let (path, dir) = (dir.display().to_string(), dir.to_owned());
    let files = tokio::task::spawn_blocking(move || RunFiles::read(&dir)).await;
    let files = files.unwrap_or_else(|error| Err(error.to_string()));
    files.map_err(|reason| WatchError::Replay { path, reason })
}
