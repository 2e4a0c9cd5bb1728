//! Request handlers: each reads a request, calls the core, and builds the answer.

pub mod checkpoints;
pub mod code;
pub mod engine;
pub mod episodes;
pub mod logs;
pub mod metrics;
pub mod model_api;
pub mod models;
pub mod runs;
pub mod samplers;
pub mod status;
pub mod ui;

use axum::http::HeaderMap;

use crate::protocol::swarm::CLIENT_HEADER;
use crate::server::http::auth::bearer;
use crate::server::http::error::Error;
use crate::server::shared::Shared;

/// Returns whether the caller is one of our own clients: they identify themselves, and see state changes without delay.
fn is_ours(headers: &HeaderMap) -> bool {
    headers.contains_key(CLIENT_HEADER)
}

/// Returns the key of the episode that a request to the model API belongs to. A server that only serves a model needs
/// none: all requests belong to one episode.
fn episode_key(shared: &Shared, headers: &HeaderMap) -> Result<String, Error> {
    match shared.options.serving {
        Some(_) => shared.with(|core, now| core.standing_key(now)),
        None => bearer(headers).map(str::to_owned).ok_or(Error::KeyMissing),
    }
}
