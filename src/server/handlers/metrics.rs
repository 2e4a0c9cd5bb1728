//! Handler of the Prometheus metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::server::prometheus::{self, Snapshot};
use crate::server::shared::Shared;

/// Handles `GET /metrics`.
pub async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let (pool, slots, restarts) = shared.with(|core, now| (core.pool_information(now), core.slots(), core.restarts()));
    let (load, durations) = shared.with(|core, _| core.measurements());
    let text = prometheus::text(&Snapshot {
        pool: &pool,
        load: &load,
        durations: &durations,
        slots,
        calls_in_flight: shared.options.limits.calls - shared.calls.available_permits(),
        restarts,
    });
    ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], text)
}
