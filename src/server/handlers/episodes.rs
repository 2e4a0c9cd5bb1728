//! Claim, end, abort, and what the pool looks like.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use crate::protocol::swarm::{
    AgreeSyncWeightRequest, CanContinueEpisodeAnswer, CanContinueEpisodeRequest, ClaimEpisodeAnswer,
    ClaimEpisodeRequest, EndEpisodeRequest, EpisodeBufferAnswer, IsEpisodeClaimedRequest, PoolInformation,
    SuccessAnswer, SuccessOrReason,
};
use crate::server::engine::client::EngineCallError;
use crate::server::handlers::is_ours;
use crate::server::http::body::{END_BYTES, JsonBody};
use crate::server::http::error::Error;
use crate::server::shared::Shared;
use crate::server::swarm::core::EndStep;

type Server = State<Arc<Shared>>;

/// `POST /claim_episode`.
pub async fn claim(
    State(shared): Server,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ClaimEpisodeRequest>,
) -> Result<Json<ClaimEpisodeAnswer>, Error> {
    let deadline = Instant::now() + shared.options.claim_patience;
    let mut place = None;
    loop {
        // Before the look, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        let (answer, may_roll_soon) = shared.with(|core, now| {
            let answer = core.claim(request.clone(), shared.base_url.clone(), now);
            (answer, core.may_roll_soon())
        });
        let answer = answer?;
        if answer.success || !may_roll_soon || is_ours(&headers) {
            return Ok(Json(answer));
        }
        if place.is_none() {
            place = shared.held_claims.place(&request.client_uuid);
        }
        if place.is_none() || timeout_at(deadline, changed).await.is_err() {
            return Ok(Json(answer));
        }
    }
}

/// `POST /end_episode`: answered when the engine has the episode on disk.
pub async fn end(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest, END_BYTES>,
) -> Result<Json<SuccessAnswer>, Error> {
    let patience = shared.options.end_patience;
    // A task of its own: once the engine is told, neither a client that hangs up nor our own patience leaves the end
    // half done.
    let ended = tokio::spawn(async move { end_once(&shared, request).await });
    let busy = "it is still busy with this episode's end, which may be repeated";
    let ended = tokio::time::timeout(patience, ended)
        .await
        .map_err(|_| Error::EngineUnreachable(busy.into()))?;
    ended.map_err(|error| Error::Internal(error.to_string()))??;
    Ok(Json(SuccessAnswer { success: true }))
}

async fn end_once(shared: &Shared, mut request: EndEpisodeRequest) -> Result<(), Error> {
    let uuid = request.episode_uuid.clone();
    let declare_active = request.declare_client_active;
    let (end, generation) = loop {
        // Before the look, so that an end that gets through right after it is not missed.
        let through = shared.end_is_through.notified();
        let (step, generation) = shared.with(|core, now| (core.begin_end(request, now), core.generation()));
        match step? {
            EndStep::AlreadyEnded => return Ok(()),
            EndStep::Wait(same) => {
                through.await;
                request = *same;
            }
            EndStep::TellEngine(end) => break (end, generation),
        }
    };
    let outcome = match shared.link() {
        Some(link) => link.client.end(&uuid, &end).await,
        None => Err(EngineCallError::Unreachable("it is gone".into())),
    };
    let result = match outcome {
        Ok(outcome) => {
            shared.with(|core, now| core.finish_end(&uuid, generation, declare_active, outcome, now));
            Ok(())
        }
        Err(error) => {
            shared.with(|core, _| core.end_failed(&uuid));
            Err(error.into())
        }
    };
    shared.end_is_through.notify_waiters();
    result
}

/// `POST /abort_episode`.
pub async fn abort(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest, END_BYTES>,
) -> Json<SuccessAnswer> {
    shared.with(|core, now| core.abort(&request, now));
    Json(SuccessAnswer { success: true })
}

/// `POST /can_continue_episode`.
pub async fn can_continue(
    State(shared): Server,
    JsonBody(request): JsonBody<CanContinueEpisodeRequest>,
) -> Json<CanContinueEpisodeAnswer> {
    let can_continue = shared.with(|core, _| core.can_continue(&request.episode_uuid, &request.client_uuid));
    Json(CanContinueEpisodeAnswer { can_continue })
}

/// `POST /is_episode_claimed`. Episodes exist here only once they are claimed, so there is never one to unregister.
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

/// `POST /get_episode_buffer`.
pub async fn buffer(State(shared): Server) -> Json<EpisodeBufferAnswer> {
    let buffer = shared.with(|core, _| core.buffer(&shared.base_url));
    Json(EpisodeBufferAnswer { buffer })
}

/// `POST /agree_sync_weight`.
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

/// `GET /get_current_batch_rollout_pool_information`.
pub async fn pool_information(State(shared): Server) -> Json<PoolInformation> {
    Json(shared.with(|core, now| core.pool_information(now)))
}
