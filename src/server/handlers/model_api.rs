//! The model API: an agent's call is passed to the engine and the engine's bytes are passed back.

use std::pin::Pin;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::protocol::engine::ChatCall;
use crate::protocol::swarm::EpisodeType;
use crate::server::auth::bearer;
use crate::server::body::{self, CHAT_BYTES, Held, Room};
use crate::server::engine_client::EngineAnswer;
use crate::server::error::{Error, ModelApiError};
use crate::server::replay::Recorder;
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// `POST /v1/chat/completions`. The call ends with this future and its body: an agent that hangs up drops them, by
/// which the engine's generation is cancelled.
pub async fn chat(State(shared): Server, request: Request) -> Result<Response, ModelApiError> {
    let key = bearer(request.headers()).ok_or(Error::KeyMissing)?.to_owned();
    // Before the body is read: a large one is activity as well.
    let (mut in_flight, episode_type) = InFlight::begin(&shared, &key)?;
    let Held { bytes, room } = body::read(request, &shared, CHAT_BYTES).await?;
    in_flight.room = Some(room);
    let request: Value = body::parse(&bytes)?;
    if !request.is_object() {
        return Err(Error::Body("a chat request is a JSON object".into()).into());
    }
    let link = shared
        .link()
        .ok_or_else(|| Error::EngineUnreachable("it is not running".into()))?;
    let call = ChatCall { episode_type, request };
    let answer = link.client.chat(&in_flight.episode, &call).await;
    let answer = answer.map_err(|error| Error::EngineUnreachable(error.to_string()))?;
    if answer.head.status.is_success() {
        shared.with(|core, _| core.count_call(&in_flight.episode));
    }
    Ok(pass_on(answer, call.request, in_flight))
}

/// `GET /v1/models`: the model in training.
pub async fn models(State(shared): Server, headers: HeaderMap) -> Result<Json<Value>, ModelApiError> {
    if shared.options.token.is_none() {
        let key = bearer(&headers).ok_or(Error::KeyMissing)?;
        shared.with(|core, _| core.check_key(key))?;
    }
    let model = shared.with(|core, _| core.model());
    let models = model
        .iter()
        .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "ajet-swarm"}));
    Ok(Json(json!({"object": "list", "data": models.collect::<Vec<_>>()})))
}

/// A request that is counted as the episode's activity for as long as this lives.
struct InFlight {
    shared: Arc<Shared>,
    episode: String,
    /// That of the request, which is kept for a replay.
    room: Option<Room>,
    place: Option<OwnedSemaphorePermit>,
}

impl InFlight {
    fn begin(shared: &Arc<Shared>, key: &str) -> Result<(Self, EpisodeType), Error> {
        shared.with(|core, _| core.check_key(key))?;
        let place = Arc::clone(&shared.calls).try_acquire_owned();
        let limit = shared.options.limits.calls;
        let place = place.map_err(|_| Error::TooManyCalls { limit })?;
        let (episode, kind) = shared.with(|core, now| core.begin_call(key, now))?;
        let in_flight = Self {
            shared: Arc::clone(shared),
            episode,
            room: None,
            place: Some(place),
        };
        Ok((in_flight, kind))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        drop((self.room.take(), self.place.take()));
        self.shared.with(|core, now| core.finish_call(&self.episode, now));
    }
}

/// What a passing answer owns until it is through or dropped.
struct Passing {
    bytes: Pin<Box<dyn Stream<Item = Result<Bytes, hyper::Error>> + Send>>,
    recorder: Option<Recorder>,
    in_flight: InFlight,
}

fn pass_on(answer: EngineAnswer, request: Value, in_flight: InFlight) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.head.status;
    for name in [CONTENT_TYPE, CACHE_CONTROL, RETRY_AFTER] {
        if let Some(value) = answer.head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let streamed = content_type.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    let passing = Passing {
        recorder: answer
            .head
            .status
            .is_success()
            .then(|| Recorder::new(request, streamed)),
        bytes: Box::pin(answer.into_bytes_stream()),
        in_flight,
    };
    *response.body_mut() = Body::from_stream(futures_util::stream::unfold(passing, next_piece));
    response
}

async fn next_piece(mut passing: Passing) -> Option<(Result<Bytes, hyper::Error>, Passing)> {
    let Some(piece) = passing.bytes.next().await else {
        if let Some(call) = passing.recorder.and_then(Recorder::finish) {
            *passing.in_flight.shared.latest_call() = Some(call);
        }
        return None;
    };
    match (&piece, &mut passing.recorder) {
        (Ok(bytes), Some(recorder)) => recorder.push(bytes),
        // Broken off: not an answer to replay.
        (Err(_), recorder) => *recorder = None,
        (Ok(_), None) => {}
    }
    Some((piece, passing))
}
