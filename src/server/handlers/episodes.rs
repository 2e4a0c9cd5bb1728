//! Handlers of claim, end, abort and pool information.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use crate::protocol::engine::DropReason;
use crate::protocol::swarm::{
    AgreeSyncWeightRequest, CanContinueEpisodeAnswer, CanContinueEpisodeRequest, ClaimEpisodeAnswer,
    ClaimEpisodeRequest, EndEpisodeAnswer, EndEpisodeRequest, EpisodeBufferAnswer, IsEpisodeClaimedRequest,
    PoolInformation, SuccessAnswer, SuccessOrReason,
};
use crate::server::engine::client::EngineCallError;
use crate::server::handlers::is_ours;
use crate::server::http::body::{END_BYTES, JsonBody};
use crate::server::http::error::Error;
use crate::server::http::request_id;
use crate::server::shared::Shared;
use crate::server::swarm::core::EndStep;

type Server = State<Arc<Shared>>;

/// Handles `POST /claim_episode`.
pub async fn claim(
    State(shared): Server,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ClaimEpisodeRequest>,
) -> Result<Json<ClaimEpisodeAnswer>, Error> {
    let deadline = Instant::now() + shared.options.claim_timeout;
    let mut permit = None;
    loop {
        // Subscribe before reading the state, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        let (answer, may_roll_soon) = shared.with(|core, now| {
            let answer = core.claim(request.clone(), shared.base_url.clone(), now);
            (answer, core.may_roll_soon())
        });
        let answer = answer?;
        if answer.success {
            request_id::names_episode(&answer.episode_uuid);
        }
        if answer.success || !may_roll_soon || is_ours(&headers) {
            return Ok(Json(answer));
        }
        if permit.is_none() {
            permit = shared.held_claims.acquire(&request.client_uuid);
        }
        if permit.is_none() || timeout_at(deadline, changed).await.is_err() {
            return Ok(Json(answer));
        }
    }
}

/// Handles `POST /end_episode`: answers when the engine has written the episode to disk.
pub async fn end(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest, END_BYTES>,
) -> Result<Json<EndEpisodeAnswer>, Error> {
    request_id::names_episode(&request.episode_uuid);
    let timeout = shared.options.end_timeout;
    // A separate task: once the engine is called, neither a disconnected client nor our own timeout leaves the end half
    // done.
    let ended = tokio::spawn(request_id::carried(async move { end_once(&shared, request).await }));
    let busy = "it is still saving this episode, whose end may be repeated";
    let ended = tokio::time::timeout(timeout, ended)
        .await
        .map_err(|_| Error::EngineUnreachable(busy.into()))?;
    let dropped = ended.map_err(|error| Error::Internal(error.to_string()))??;
    Ok(Json(EndEpisodeAnswer {
        success: true,
        dropped: dropped.map(|reason| reason.as_str().to_owned()),
    }))
}

/// Ends an episode; why it will not be trained, where the engine says so.
async fn end_once(shared: &Shared, mut request: EndEpisodeRequest) -> Result<Option<DropReason>, Error> {
    let uuid = request.episode_uuid.clone();
    let declare_active = request.declare_client_active;
    let (end, generation) = loop {
        // Subscribe before reading the state, so that an end completed right after it is not missed.
        let through = shared.end_is_through.notified();
        let (step, generation) = shared.with(|core, now| (core.begin_end(request, now), core.generation()));
        match step? {
            EndStep::AlreadyEnded => return Ok(None),
            EndStep::Wait(same) => {
                through.await;
                request = *same;
            }
            EndStep::CallEngine(end) => break (end, generation),
        }
    };
    let outcome = match shared.link() {
        Some(link) => link.client.end(&uuid, &end).await,
        None => Err(EngineCallError::Unreachable("it is not running".into())),
    };
    let result = match outcome {
        Ok(outcome) => {
            let dropped = outcome.dropped;
            shared.with(|core, now| core.finish_end(&uuid, generation, declare_active, outcome, now));
            Ok(dropped)
        }
        Err(error) => {
            shared.with(|core, _| core.end_failed(&uuid));
            Err(error.into())
        }
    };
    shared.end_is_through.notify_waiters();
    result
}

/// Handles `POST /abort_episode`.
pub async fn abort(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest, END_BYTES>,
) -> Json<SuccessAnswer> {
    request_id::names_episode(&request.episode_uuid);
    shared.with(|core, now| core.abort(&request, now));
    Json(SuccessAnswer { success: true })
}

/// Handles `POST /can_continue_episode`.
pub async fn can_continue(
    State(shared): Server,
    JsonBody(request): JsonBody<CanContinueEpisodeRequest>,
) -> Json<CanContinueEpisodeAnswer> {
    let can_continue = shared.with(|core, _| core.can_continue(&request.episode_uuid, &request.client_uuid));
    Json(CanContinueEpisodeAnswer { can_continue })
}

/// Handles `POST /is_episode_claimed`. Episodes exist only once they are claimed, so there is never one to unregister.
pub async fn is_claimed(
    State(shared): Server,
    JsonBody(request): JsonBody<IsEpisodeClaimedRequest>,
) -> Json<SuccessOrReason> {
    let claimed = shared.with(|core, _| core.is_claimed(&request.episode_uuid));
    Json(SuccessOrReason {
        success: claimed,
        failure_reason: match claimed {
            true => String::new(),
            false => format!("Episode {} not found.", request.episode_uuid),
        },
    })
}

/// Handles `POST /get_episode_buffer`.
pub async fn buffer(State(shared): Server) -> Json<EpisodeBufferAnswer> {
    let buffer = shared.with(|core, _| core.buffer(&shared.base_url));
    Json(EpisodeBufferAnswer { buffer })
}

/// Handles `POST /agree_sync_weight`.
pub async fn agree(
    State(shared): Server,
    headers: HeaderMap,
    JsonBody(request): JsonBody<AgreeSyncWeightRequest>,
) -> Json<SuccessOrReason> {
    let polls_slowly = !is_ours(&headers);
    let agreed = shared.with(|core, now| core.agree(&request.client_uuid, polls_slowly, now));
    Json(SuccessOrReason {
        success: agreed.is_ok(),
        failure_reason: agreed.err().unwrap_or_default(),
    })
}

/// Handles `GET /get_current_batch_rollout_pool_information`.
pub async fn pool_information(State(shared): Server) -> Json<PoolInformation> {
    Json(shared.with(|core, now| core.pool_information(now)))
}
