//! Claim, end, abort, and what the pool looks like.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use crate::protocol::swarm::{
    AgreeSyncWeightRequest, CLIENT_HEADER, CanContinueEpisodeAnswer, CanContinueEpisodeRequest, ClaimEpisodeAnswer,
    ClaimEpisodeRequest, EndEpisodeRequest, EpisodeBufferAnswer, IsEpisodeClaimedRequest, PoolInformation,
    SuccessAnswer, SuccessOrReason,
};
use crate::server::body::JsonBody;
use crate::server::core::EndStep;
use crate::server::engine_client::EngineCallError;
use crate::server::error::Error;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// How long a repeated end waits for the first one; Python clients give up after 30 s.
const END_WAIT: Duration = Duration::from_secs(25);

pub async fn claim(
    State(shared): Server,
    JsonBody(request): JsonBody<ClaimEpisodeRequest>,
) -> Result<Json<ClaimEpisodeAnswer>, Error> {
    let base_url = shared.base_url.clone();
    shared.with(|core, now| core.claim(request, base_url, now)).map(Json)
}

pub async fn end(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest>,
) -> Result<Json<SuccessAnswer>, Error> {
    // A task of its own: once the engine is told, a client that hangs up does not leave the end half done.
    let ended = tokio::spawn(async move { tokio::time::timeout(END_WAIT, end_once(&shared, request)).await });
    let ended = ended.await.map_err(|error| Error::Internal(error.to_string()))?;
    ended.map_err(|_| Error::EngineUnreachable("it is still busy with this episode's end".into()))??;
    Ok(Json(SuccessAnswer { success: true }))
}

async fn end_once(shared: &Shared, request: EndEpisodeRequest) -> Result<(), Error> {
    let uuid = request.episode_uuid.clone();
    let declare_active = request.declare_client_active;
    let end = loop {
        // Before the look, so that an end that gets through right after it is not missed.
        let through = shared.end_is_through.notified();
        match shared.with(|core, now| core.begin_end(request.clone(), now))? {
            EndStep::AlreadyEnded => return Ok(()),
            EndStep::Wait => through.await,
            EndStep::TellEngine(end) => break end,
        }
    };
    let outcome = match shared.link() {
        Some(link) => link.client.end(&uuid, &end).await,
        None => Err(EngineCallError::Unreachable("it is gone".into())),
    };
    let result = match outcome {
        Ok(outcome) => {
            shared.with(|core, now| core.finish_end(&uuid, declare_active, outcome, now));
            Ok(())
        }
        Err(error) => {
            shared.with(|core, _| core.end_failed(&uuid));
            Err(match error {
                EngineCallError::Unreachable(reason) => Error::EngineUnreachable(reason),
                EngineCallError::Refused { status, message } => Error::Engine { status, message },
            })
        }
    };
    shared.end_is_through.notify_waiters();
    result
}

pub async fn abort(
    State(shared): Server,
    JsonBody(request): JsonBody<EndEpisodeRequest>,
) -> Result<Json<SuccessAnswer>, Error> {
    shared.with(|core, now| core.abort(&request, now))?;
    Ok(Json(SuccessAnswer { success: true }))
}

pub async fn can_continue(
    State(shared): Server,
    JsonBody(request): JsonBody<CanContinueEpisodeRequest>,
) -> Json<CanContinueEpisodeAnswer> {
    let can_continue = shared.with(|core, _| core.can_continue(&request.episode_uuid, &request.client_uuid));
    Json(CanContinueEpisodeAnswer { can_continue })
}

/// Episodes exist here only once they are claimed, so there is never one to unregister.
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

pub async fn buffer(State(shared): Server) -> Json<EpisodeBufferAnswer> {
    let buffer = shared.with(|core, _| core.buffer(&shared.base_url));
    Json(EpisodeBufferAnswer { buffer })
}

pub async fn agree(
    State(shared): Server,
    headers: HeaderMap,
    JsonBody(request): JsonBody<AgreeSyncWeightRequest>,
) -> Json<SuccessOrReason> {
    // Our own clients say who they are, and need no time to notice what happens next.
    let polls_slowly = !headers.contains_key(CLIENT_HEADER);
    let agreed = shared.with(|core, now| core.agree(&request.client_uuid, polls_slowly, now));
    Json(SuccessOrReason {
        success: agreed.is_ok(),
        failure_reason: agreed.err().unwrap_or_default(),
    })
}

pub async fn pool_information(State(shared): Server) -> Json<PoolInformation> {
    Json(shared.with(|core, now| core.pool_information(now)))
}
