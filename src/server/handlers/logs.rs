//! Handlers of verbose logs and of the latest LLM call.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::protocol::swarm::{PushVerboseLogRequest, ReplayLatestLlmCallAnswer, SuccessOrReason, VerboseLogsAnswer};
use crate::server::http::body::JsonBody;
use crate::server::http::error::Error;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// Handles `POST /push_verbose_log`.
pub async fn push(State(shared): Server, JsonBody(request): JsonBody<PushVerboseLogRequest>) -> Json<SuccessOrReason> {
    let now = shared.now();
    shared.verbose_logs().push(request.tag, request.message, now);
    Json(SuccessOrReason {
        success: true,
        failure_reason: String::new(),
    })
}

/// Handles `GET /get_verbose_logs`.
pub async fn recent(State(shared): Server) -> Json<VerboseLogsAnswer> {
    let now = shared.now();
    let entries = shared.verbose_logs().recent(now);
    Json(VerboseLogsAnswer { entries })
}

/// Handles `POST /replay_latest_llm_call`.
pub async fn replay(State(shared): Server) -> Result<Json<ReplayLatestLlmCallAnswer>, Error> {
    let call = shared.latest_call().clone();
    call.map(|call| Json(call.replay())).ok_or(Error::NoCallYet)
}
