//! Request handlers: each reads a request, calls the core, and builds the answer.

pub mod checkpoints;
pub mod code;
pub mod engine;
pub mod episodes;
pub mod logs;
pub mod metrics;
pub mod model_api;
pub mod models;
pub mod status;
pub mod ui;

use axum::http::HeaderMap;

use crate::protocol::swarm::CLIENT_HEADER;

/// Returns whether the caller is one of our own clients: they identify themselves, and see state changes without delay.
fn is_ours(headers: &HeaderMap) -> bool {
    headers.contains_key(CLIENT_HEADER)
}
