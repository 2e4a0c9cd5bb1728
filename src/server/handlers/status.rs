//! Handlers of the status feed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;

use crate::server::http::error::Error;
use crate::server::latest_event::Follower;
use crate::server::shared::Shared;
use crate::server::status_stream;

type Server = State<Arc<Shared>>;

/// Interval of comments while nothing changes, so that proxies keep the stream open and a dead peer is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Handles `GET /status`.
pub async fn now(State(shared): Server) -> Result<Response, Error> {
    let json = tokio::task::spawn_blocking(move || serde_json::to_vec(&shared.status())).await;
    let json = json.map_err(|error| Error::Internal(error.to_string()))?;
    let json = json.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], json).into_response())
}

/// Handles `GET /status/stream`.
pub async fn stream(State(shared): Server) -> Response {
    let events = stream::unfold(status_stream::follow(&shared), next_event);
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

async fn next_event(mut follower: Follower) -> Option<(Result<Bytes, Infallible>, Follower)> {
    let event = match tokio::time::timeout(HEARTBEAT, follower.next()).await {
        Ok(event) => event?,
        Err(_) => Bytes::from_static(b": no change\n\n"),
    };
    Some((Ok(event), follower))
}
