//! Handlers of checkpoints: their list, and their files with ranges. They need no engine: only its directory.

use std::io::{ErrorKind, SeekFrom};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::runs::{Asked, RunQuery, read, run_dir};
use crate::protocol::checkpoint::CheckpointsAnswer;
use crate::server::checkpoints;
use crate::server::http::byte_range::{Part, requested};
use crate::server::http::error::Error;
use crate::server::shared::Shared;

/// Bytes read from a file at once, by a thread of the blocking pool.
const CHUNK_BYTES: usize = 256 * 1024;

/// Handles `GET /checkpoints`.
pub async fn list(State(shared): State<Arc<Shared>>, run: Asked<RunQuery>) -> Result<Json<CheckpointsAnswer>, Error> {
    let run = read(run)?;
    Ok(Json(
        blocking(move || Ok(checkpoints::list(&run_dir(&shared, run)?.1))).await?,
    ))
}

/// Handles `GET /checkpoints/{step}/{file}`.
pub async fn file(
    State(shared): State<Arc<Shared>>,
    Path((step, name)): Path<(String, String)>,
    run: Asked<RunQuery>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let run = read(run)?;
    let missing = Error::NoCheckpointFile(format!("{step}/{name}"));
    let Ok(step) = step.parse() else {
        return Err(missing);
    };
    let open = move || {
        let (_, dir) = run_dir(&shared, run)?;
        checkpoints::open(&dir, step, &name).map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing,
            _ => unreadable(&error),
        })
    };
    let (file, size) = blocking(open).await?;
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    serve(tokio::fs::File::from_std(file), size, requested(range, size)).await
}

async fn serve(mut file: tokio::fs::File, size: u64, part: Part) -> Result<Response, Error> {
    let (status, range) = match part {
        Part::Whole => (StatusCode::OK, 0..size),
        Part::Bytes(range) => (StatusCode::PARTIAL_CONTENT, range),
        Part::Unsatisfiable => {
            let all = [(CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, all).into_response());
        }
    };
    let sought = file.seek(SeekFrom::Start(range.start)).await;
    sought.map_err(|error| unreadable(&error))?;
    let length = range.end - range.start;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(
        file.take(length),
        CHUNK_BYTES,
    )));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, length.into());
    if status == StatusCode::PARTIAL_CONTENT {
        let served = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        // Digits and ASCII punctuation.
        headers.extend(HeaderValue::try_from(served).ok().map(|served| (CONTENT_RANGE, served)));
    }
    Ok(response)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Internal(error.to_string()))?
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::Internal(format!("cannot read the checkpoint's file: {error}"))
}
