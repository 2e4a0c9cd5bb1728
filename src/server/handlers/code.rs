//! Training code: sending it, listing it, and going back to the built-in engine.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::swarm::{SyncTrainCodeAnswer, SyncedCodeAnswer, SyncedSnapshot};
use crate::protocol::training_code::ARCHIVE_BYTES;
use crate::server::code_sync::error::CodeError;
use crate::server::code_sync::{CodeAccess, Snapshot};
use crate::server::http::body::Incoming;
use crate::server::http::error::Error;
use crate::server::shared::Shared;

/// Handles `POST /sync_train_code`: a zip as the raw body, which is written to disk as it arrives.
pub async fn sync_train_code(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Json<SyncTrainCodeAnswer>, Error> {
    check_access(&shared)?;
    shared.with(|core, _| core.require_offline())?;
    let Some(_alone) = shared.code.begin_upload() else {
        return Err(Error::Busy("it is storing another snapshot".into()));
    };
    let archive = receive(request, shared.options.limits.stall).await?;
    let stored = shared.code.store(archive).await.map_err(|error| match error {
        CodeError::Io(_) => Error::Internal(error.to_string()),
        _ => Error::Invalid(error.to_string()),
    })?;
    let message = stored_message(&stored);
    tracing::info!("{message}");
    Ok(Json(SyncTrainCodeAnswer {
        success: true,
        message,
        temp_ajet_code_path: path_of(&stored),
    }))
}

/// Handles `GET /sync_train_code`.
pub async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<SyncedCodeAnswer>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let selected = shared.code.selected();
        let log = selected
            .as_ref()
            .map(|snapshot| read_text(&snapshot.build_log(), DOCUMENT_BYTES));
        let describe = |snapshot: Snapshot| SyncedSnapshot {
            path: path_of(&snapshot),
            files: snapshot.description.files,
            bytes: snapshot.description.bytes,
            sha256: snapshot.description.sha256.clone(),
            is_built: snapshot.engine().is_file(),
            is_selected: selected.as_deref() == Some(&snapshot),
        };
        SyncedCodeAnswer {
            snapshots: shared.code.list().into_iter().map(describe).collect(),
            build_log: log.and_then(Result::ok).unwrap_or_default(),
        }
    });
    read.await.map(Json).map_err(|error| Error::Internal(error.to_string()))
}

/// Handles `DELETE /sync_train_code`.
pub async fn deselect(State(shared): State<Arc<Shared>>) -> Result<Json<SyncTrainCodeAnswer>, Error> {
    check_access(&shared)?;
    shared.with(|core, _| core.require_offline())?;
    let deselected = shared.code.deselect().await;
    deselected.map_err(|error| Error::Internal(format!("cannot deselect the synced training code: {error}")))?;
    let message = "the next engine is the built-in one".to_owned();
    tracing::info!("{message}");
    Ok(Json(SyncTrainCodeAnswer {
        success: true,
        message,
        temp_ajet_code_path: String::new(),
    }))
}

/// Refuses clients that may not choose what the server runs. Where the server has a token, requests without it do not
/// come this far.
fn check_access(shared: &Shared) -> Result<(), Error> {
    match shared.options.code.access {
        CodeAccess::Off => Err(Error::CodeSyncOff),
        CodeAccess::WithToken if shared.options.token.is_none() => Err(Error::CodeSyncNeedsToken),
        CodeAccess::WithToken | CodeAccess::Everyone => Ok(()),
    }
}

fn path_of(snapshot: &Snapshot) -> String {
    snapshot.code_path().to_string_lossy().into_owned()
}

fn stored_message(snapshot: &Snapshot) -> String {
    let (files, bytes) = (snapshot.description.files, snapshot.description.bytes);
    let next = match snapshot.engine().is_file() {
        true => "its engine is built already, and the next start_engine runs it",
        false => "the next start_engine builds its engine and runs it",
    };
    format!("stored {files} files ({bytes} bytes) in {}; {next}", path_of(snapshot))
}

async fn receive(request: Request, stall: Duration) -> Result<std::fs::File, Error> {
    let cannot = |error: std::io::Error| Error::Internal(format!("cannot store the archive: {error}"));
    let mut body = Incoming::new(request, ARCHIVE_BYTES, stall)?;
    let mut file = tempfile::tempfile().map_err(cannot)?;
    while let Some(bytes) = body.next().await? {
        // A frame has a few kilobytes: not worth a blocking thread.
        file.write_all(&bytes).map_err(cannot)?;
    }
    Ok(file)
}
