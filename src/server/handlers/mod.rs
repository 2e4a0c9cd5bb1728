//! HTTP in, HTTP out: each handler reads a request, asks the core, and shapes the answer.

pub mod code;
pub mod engine;
pub mod episodes;
pub mod logs;
pub mod metrics;
pub mod model_api;
pub mod models;

use axum::http::HeaderMap;

use crate::protocol::swarm::CLIENT_HEADER;

/// Whether the caller is one of our own clients: they say so, and need no time to notice what happens next.
fn is_ours(headers: &HeaderMap) -> bool {
    headers.contains_key(CLIENT_HEADER)
}
