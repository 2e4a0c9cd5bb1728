//! Snapshots of training code.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};

use crate::protocol::swarm::SyncTrainCodeAnswer;
use crate::server::code_sync::{self, ARCHIVE_BYTES, CodeError};
use crate::server::http::body::Incoming;
use crate::server::http::error::Error;
use crate::server::shared::Shared;

/// Handles `POST /sync_train_code`: a zip as the raw body, which is written to disk as it arrives.
pub async fn sync_train_code(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Json<SyncTrainCodeAnswer>, Error> {
    shared.with(|core, _| core.require_offline())?;
    let Ok(_alone) = shared.code_sync.try_lock() else {
        return Err(Error::Busy("it is storing another snapshot".into()));
    };
    let archive = receive(request, shared.options.limits.stall).await?;
    let root = shared.options.code_root.clone();
    let stored = tokio::task::spawn_blocking(move || code_sync::store(&archive, &root)).await;
    let stored = stored.map_err(|error| Error::Internal(error.to_string()))?;
    let stored = stored.map_err(|error| match error {
        CodeError::Io(_) => Error::Internal(error.to_string()),
        _ => Error::Invalid(error.to_string()),
    })?;
    tracing::info!("{}", stored.message());
    Ok(Json(SyncTrainCodeAnswer {
        success: true,
        message: stored.message(),
        temp_ajet_code_path: stored.code_path().to_string_lossy().into_owned(),
    }))
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
