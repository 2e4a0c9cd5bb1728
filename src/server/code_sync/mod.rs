//! Training code that clients send: stored, checked, built when an engine starts, and run in place of the built-in
//! engine.
//!
//! ```text
//! code_root/                      0700
//!   20260526_120000_123456/       a snapshot: ajet/…, snapshot.json, and once built engine, build.log
//!   build/ajet, build/target      where all snapshots are built, so that a changed file costs an incremental build
//!   selected                      name of the snapshot that the next engine runs
//! ```

mod archive;
mod build;
mod cargo_output;
pub mod error;
mod manifest;
#[cfg(test)]
mod raw_zip;
mod snapshot;
mod workspace;
mod zip_directory;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;

pub use build::Event;
pub use snapshot::Snapshot;

use build::Builder;
use error::{BuildError, CodeError};
use snapshot::Unpacked;

/// Which clients may send training code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodeAccess {
    /// No client.
    Off,
    /// Clients with the server's access token; none if the server has no token.
    #[default]
    WithToken,
    /// Every client that reaches the server.
    Everyone,
}

/// Options of training code.
#[derive(Clone, Debug)]
pub struct CodeOptions {
    /// Which clients may send it.
    pub access: CodeAccess,
    /// Directory of snapshots and builds.
    pub root: PathBuf,
    /// The cargo program.
    pub cargo: PathBuf,
    /// Maximum time of a build.
    pub build_timeout: Duration,
    /// Whether the snapshot that an earlier server ran is used.
    pub keep_selected: bool,
}

impl Default for CodeOptions {
    fn default() -> Self {
        Self {
            access: CodeAccess::default(),
            root: "synced_code".into(),
            cargo: "cargo".into(),
            build_timeout: Duration::from_secs(3600),
            keep_selected: true,
        }
    }
}

/// The snapshots of a server.
pub struct CodeSync {
    builder: Builder,
    selected: Mutex<Option<Arc<Snapshot>>>,
    /// Serialises uploads.
    storing: tokio::sync::Mutex<()>,
    /// Serialises builds.
    building: tokio::sync::Mutex<()>,
}

impl CodeSync {
    /// Finds the snapshot that an earlier server ran.
    pub fn new(options: &CodeOptions) -> Self {
        let uses_selected = options.keep_selected && options.access != CodeAccess::Off;
        let selected = uses_selected.then(|| snapshot::selected(&options.root)).flatten();
        if let Some(snapshot) = &selected {
            tracing::info!(
                "the next engine is that of the synced training code in {}; hint: --no-synced-code runs the built-in one",
                snapshot.code_path().display()
            );
        }
        if !options.keep_selected {
            // Nothing to forget where nothing was stored.
            let _ = snapshot::select(&options.root, None);
        }
        Self {
            builder: Builder {
                cargo: options.cargo.clone(),
                root: options.root.clone(),
                timeout: options.build_timeout,
            },
            selected: Mutex::new(selected.map(Arc::new)),
            storing: tokio::sync::Mutex::default(),
            building: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the snapshot that the next engine runs.
    pub fn selected(&self) -> Option<Arc<Snapshot>> {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_selected(&self, snapshot: Option<Arc<Snapshot>>) {
        *self.selected.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// Permits one upload at a time; `None` while another is stored.
    pub fn begin_upload(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.storing.try_lock().ok()
    }

    /// Stores an archive as the snapshot that the next engine runs.
    ///
    /// # Errors
    ///
    /// Fails if the archive is invalid, is not an engine that can be built here, or if the disk fails; nothing is left
    /// behind then.
    pub async fn store(&self, archive: File) -> Result<Arc<Snapshot>, CodeError> {
        let root = self.builder.root.clone();
        let unpacked = spawn_blocking(move || Unpacked::new(&archive, &root)).await;
        let unpacked = unpacked.map_err(io::Error::other)??;
        self.builder.check_cargo(&unpacked.code_path()).await?;
        let root = self.builder.root.clone();
        let stored = spawn_blocking(move || unpacked.store(&root)).await;
        let snapshot = Arc::new(stored.map_err(io::Error::other)??);
        self.set_selected(Some(snapshot.clone()));
        Ok(snapshot)
    }

    /// Lets the next engine be the built-in one.
    ///
    /// # Errors
    ///
    /// Fails if the disk fails.
    pub async fn deselect(&self) -> io::Result<()> {
        let root = self.builder.root.clone();
        spawn_blocking(move || snapshot::select(&root, None))
            .await
            .map_err(io::Error::other)??;
        self.set_selected(None);
        Ok(())
    }

    /// Returns all snapshots, the oldest first. Reads the disk.
    pub fn list(&self) -> Vec<Snapshot> {
        snapshot::list(&self.builder.root)
    }

    /// Builds a snapshot's engine; returns its program. Dropping the future ends cargo.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot does not compile, the time is over, or the disk fails.
    pub async fn build(&self, snapshot: &Snapshot, observe: impl Fn(Event<'_>) + Sync) -> Result<PathBuf, BuildError> {
        let _alone = self.building.lock().await;
        self.builder.build(snapshot, observe).await
    }

    /// Waits until no build runs.
    pub async fn until_idle(&self) {
        drop(self.building.lock().await);
    }
}
