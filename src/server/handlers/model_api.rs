//! The model API: passes an agent's call to the engine and the engine's answer back, translated where the agent uses
//! another API than chat completions.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use axum::{BoxError, Json};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, Span};

use crate::protocol::anthropic::MessagesRequest;
use crate::protocol::engine::ChatCall;
use crate::protocol::fields::Api;
use crate::protocol::openai::{ChatRequest, ErrorBody, ErrorObject};
use crate::protocol::responses::ResponsesRequest;
use crate::protocol::swarm::EpisodeType;
use crate::server::engine::client::{EngineAnswer, EngineClient};
use crate::server::handlers::episode_key;
use crate::server::http::blocking_pool::run_blocking;
use crate::server::http::body::{self, CHAT_BYTES};
use crate::server::http::error::{Error, ModelApiError};
use crate::server::http::request_id;
use crate::server::model_api::latest_call::Recorder;
use crate::server::model_api::responses::{self, ResponseWriter};
use crate::server::model_api::{AnswerWriter, END_OF_EVENT, Translator, anthropic, check};
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// Handles `POST /v1/chat/completions`. The call ends with this future and its body: an agent that disconnects drops
/// them, which cancels the engine's generation.
pub async fn chat(State(shared): Server, request: Request) -> Result<Response, ModelApiError> {
    let (in_flight, chat): (_, Box<RawValue>) = begin(&shared, Api::Chat, request).await?;
    Ok(answer(in_flight, chat, None, &[]).await?)
}

/// Handles `POST /v1/messages`.
pub async fn messages(State(shared): Server, request: Request) -> Result<Response, ModelApiError> {
    let (in_flight, request): (_, MessagesRequest) = begin(&shared, Api::Messages, request).await?;
    if request.max_tokens.is_none() {
        return Err(Error::missing("max_tokens").into());
    }
    let chat = run_blocking(|| anthropic::chat_request(&request).map(text))?;
    let writer = anthropic::MessageWriter::new(&request);
    Ok(answer(in_flight, chat, Some(Box::new(writer)), anthropic::RENAMED).await?)
}

/// Handles `POST /v1/messages/count_tokens`.
pub async fn count_tokens(State(shared): Server, request: Request) -> Result<Response, ModelApiError> {
    let (in_flight, request): (_, MessagesRequest) = begin(&shared, Api::Messages, request).await?;
    let chat = run_blocking(|| anthropic::chat_request(&request).map(text))?;
    let call = in_flight.call(chat);
    let engine = in_flight.engine()?;
    let answer = engine.count_tokens(&in_flight.episode, &call).await;
    let answer = answer.map_err(|error| Error::EngineUnreachable(error.to_string()))?;
    if !answer.head.status.is_success() {
        return Ok(renamed_error(answer, anthropic::RENAMED).await);
    }
    Ok(pass_on(answer, call.request, in_flight, None))
}

/// Handles `POST /v1/responses`.
pub async fn responses(State(shared): Server, request: Request) -> Result<Response, ModelApiError> {
    let (in_flight, mut request): (_, ResponsesRequest) = begin(&shared, Api::Responses, request).await?;
    shared.with(|core, _| core.resolve_references(&in_flight.episode, &mut request.input))?;
    let earlier = match &request.previous_response_id {
        Some(id) => shared
            .with(|core, _| core.conversation(&in_flight.episode, id))
            .ok_or_else(|| Error::ResponseNotFound(id.clone()))?,
        None => Vec::new(),
    };
    let (chat, new_messages) = run_blocking(|| {
        let input = responses::chat_input(&request, earlier)?;
        Ok::<_, Error>((text(input.request), input.new_messages))
    })?;
    let writer = ResponseWriter::new(&request, new_messages);
    Ok(answer(in_flight, chat, Some(Box::new(writer)), responses::RENAMED).await?)
}

/// Finds the episode of a request and reads the body.
async fn begin<T: DeserializeOwned + Send + 'static>(
    shared: &Arc<Shared>,
    api: Api,
    request: Request,
) -> Result<(InFlight, T), Error> {
    let key = episode_key(shared, request.headers())?;
    // Before the body is read: receiving a large body is activity too.
    let in_flight = InFlight::begin(shared, &key)?;
    let body = body::read(request, shared, CHAT_BYTES).await?;
    let span = in_flight.span.clone();
    let read = move |bytes: &[u8]| span.in_scope(|| check::read(api, bytes));
    let request = body.parse(shared, read).await?;
    Ok((in_flight, request))
}

/// Serialises a chat request.
#[expect(clippy::expect_used, reason = "a chat request is an object with string keys")]
fn text(request: ChatRequest) -> Box<RawValue> {
    to_raw_value(&request).expect("a chat request can be written as JSON")
}

/// Has the engine answer a chat request and passes the answer on, translated by `writer` if given. Errors use the field
/// names of the agent's API.
async fn answer(
    in_flight: InFlight,
    chat: Box<RawValue>,
    writer: Option<Box<dyn AnswerWriter>>,
    renamed: &[(&str, &str)],
) -> Result<Response, Error> {
    let call = in_flight.call(chat);
    let answer = in_flight.engine()?.chat(&in_flight.episode, &call).await;
    let answer = answer.map_err(|error| Error::EngineUnreachable(error.to_string()))?;
    if answer.head.status.is_success() {
        in_flight.shared.with(|core, _| core.count_call(&in_flight.episode));
    } else if !renamed.is_empty() {
        return Ok(renamed_error(answer, renamed).await);
    }
    Ok(pass_on(answer, call.request, in_flight, writer))
}

/// Translates an error of the engine, which names the fields of the chat request, to the agent's API.
async fn renamed_error(answer: EngineAnswer, renamed: &[(&str, &str)]) -> Response {
    let (status, retry_after) = (answer.head.status, answer.head.headers.get(RETRY_AFTER).cloned());
    let mut bytes = Vec::new();
    let mut pieces = Box::pin(answer.into_bytes_stream());
    while let Some(Ok(piece)) = pieces.next().await {
        bytes.extend_from_slice(&piece);
    }
    if let Ok(mut body) = serde_json::from_slice::<ErrorBody>(&bytes) {
        rename(&mut body.error, renamed);
        bytes = json!(body).to_string().into_bytes();
    }
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    let headers = [(CONTENT_TYPE, Some(json)), (RETRY_AFTER, retry_after)];
    let given = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
    response.headers_mut().extend(given);
    response
}

/// Returns the complete events so far and keeps the rest.
fn whole_events(held: &mut BytesMut, bytes: &[u8]) -> Bytes {
    held.extend_from_slice(bytes);
    let end = held.windows(END_OF_EVENT.len()).rposition(|pair| pair == END_OF_EVENT);
    let len = end.map_or(0, |end| end + END_OF_EVENT.len());
    held.split_to(len).freeze()
}

/// Replaces field names in an error by those of the agent's API.
fn rename(error: &mut ErrorObject, renamed: &[(&str, &str)]) {
    for (name, theirs) in renamed {
        error.message = error.message.replace(&format!("`{name}`"), &format!("`{theirs}`"));
    }
    let given = error.param.as_deref();
    if let Some((_, theirs)) = renamed.iter().find(|(name, _)| Some(*name) == given) {
        error.param = Some((*theirs).to_owned());
    }
}

/// Handles `GET /v1/responses/{id}`: returns a stored answer.
pub async fn kept_response(
    State(shared): Server,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ModelApiError> {
    let key = episode_key(&shared, &headers)?;
    Ok(Json(shared.with(|core, _| core.kept_response(&key, &id))?))
}

/// Handles `GET /v1/episode/conversations`, which counts as activity of the episode, as an LLM request does.
pub async fn conversations(State(shared): Server, headers: HeaderMap) -> Result<Response, ModelApiError> {
    let key = episode_key(&shared, &headers)?;
    let in_flight = InFlight::begin(&shared, &key)?;
    let answer = in_flight.engine()?.conversations(&in_flight.episode).await;
    let bytes = answer.map_err(Error::from)?.into_bytes_stream().inspect(move |_| {
        // Owned by the stream, so that the episode is busy until the answer is complete.
        let _ = &in_flight;
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

/// An LLM request in flight, which counts as the episode's activity until dropped.
struct InFlight {
    shared: Arc<Shared>,
    episode: String,
    kind: EpisodeType,
    /// Span of the request, which the log lines of its answer's body belong to as well.
    span: Span,
    place: Option<OwnedSemaphorePermit>,
}

impl InFlight {
    fn begin(shared: &Arc<Shared>, key: &str) -> Result<Self, Error> {
        shared.with(|core, _| core.check_key(key))?;
        let place = Arc::clone(&shared.calls).try_acquire_owned();
        let limit = shared.options.limits.calls;
        let place = place.map_err(|_| Error::TooManyCalls { limit })?;
        let free = shared.calls.available_permits();
        let (episode, kind) = shared.with(|core, now| core.begin_call(key, free, now))?;
        request_id::names_episode(&episode);
        Ok(Self {
            span: Span::current(),
            shared: Arc::clone(shared),
            episode,
            kind,
            place: Some(place),
        })
    }

    fn call(&self, request: Box<RawValue>) -> ChatCall {
        ChatCall {
            episode_type: self.kind,
            request,
        }
    }

    fn engine(&self) -> Result<EngineClient, Error> {
        let link = self.shared.link();
        link.map(|link| link.client)
            .ok_or_else(|| Error::EngineUnreachable("it is not running".into()))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        drop(self.place.take());
        self.shared.with(|core, now| core.finish_call(&self.episode, now));
    }
}

/// State of an answer that is being passed on, until it is complete or dropped.
struct ProxiedAnswer {
    bytes: Pin<Box<dyn Stream<Item = Result<Bytes, hyper::Error>> + Send>>,
    recorder: Option<Recorder>,
    translator: Option<Translator>,
    in_flight: InFlight,
    streamed: bool,
    /// Incomplete event of a stream, held back so that an error event can follow what was passed on.
    held: BytesMut,
    over: bool,
}

fn pass_on(
    answer: EngineAnswer,
    request: Box<RawValue>,
    in_flight: InFlight,
    writer: Option<Box<dyn AnswerWriter>>,
) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.head.status;
    for name in [CONTENT_TYPE, CACHE_CONTROL, RETRY_AFTER] {
        if let Some(value) = answer.head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let streamed = content_type.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    let answered = answer.head.status.is_success();
    let passing = ProxiedAnswer {
        recorder: answered.then(|| Recorder::new(request, streamed)),
        // Errors keep the shape of chat completions.
        translator: writer
            .filter(|_| answered)
            .map(|writer| Translator::new(writer, streamed)),
        bytes: Box::pin(answer.into_bytes_stream()),
        in_flight,
        streamed,
        held: BytesMut::new(),
        over: false,
    };
    *response.body_mut() = Body::from_stream(futures_util::stream::unfold(passing, |passing| {
        let span = passing.in_flight.span.clone();
        next_piece(passing).instrument(span)
    }));
    response
}

async fn next_piece(mut passing: ProxiedAnswer) -> Option<(Result<Bytes, BoxError>, ProxiedAnswer)> {
    while !passing.over {
        let piece = passing.bytes.next().await;
        let out = match piece {
            Some(Ok(bytes)) => passing.take(bytes),
            Some(Err(error)) => passing.broken_off(error),
            None => passing.finish(),
        };
        match out {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => return Some((Ok(bytes), passing)),
            // The agent must notice the missing end.
            Err(error) => {
                tracing::warn!("the engine's answer ended early: {error}");
                passing.over = true;
                return Some((Err(error), passing));
            }
        }
    }
    None
}

impl ProxiedAnswer {
    fn take(&mut self, bytes: Bytes) -> Result<Bytes, BoxError> {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(&bytes);
        }
        match &mut self.translator {
            Some(translator) => {
                let translated = translator.push(&bytes)?;
                self.keep();
                Ok(translated.into())
            }
            None if self.streamed => Ok(whole_events(&mut self.held, &bytes)),
            None => Ok(bytes),
        }
    }

    /// Handles an engine answer that ended early. A stream ends with an error event of the agent's API.
    fn broken_off(&mut self, error: hyper::Error) -> Result<Bytes, BoxError> {
        self.recorder = None; // an incomplete answer is not replayed
        if !self.streamed {
            return Err(error.into());
        }
        tracing::warn!("the engine's answer ended early: {error}");
        self.over = true;
        let error = ModelApiError(Error::BrokenOff(error.to_string())).object();
        Ok(match &mut self.translator {
            Some(translator) => translator.fail(error).into(),
            None => format!("data: {}\n\n", json!(ErrorBody { error })).into(),
        })
    }

    /// Handles the end of a complete answer.
    fn finish(&mut self) -> Result<Bytes, BoxError> {
        self.over = true;
        if let Some(call) = self.recorder.take().and_then(Recorder::finish) {
            *self.in_flight.shared.latest_call() = Some(call);
        }
        match &mut self.translator {
            Some(translator) => {
                let translated = translator.finish()?;
                self.keep();
                Ok(translated.into())
            }
            None => Ok(self.held.split().freeze()),
        }
    }

    /// Stores a complete response before its last bytes are sent, since the next request may refer to it.
    fn keep(&self) {
        if let Some(kept) = self.translator.as_ref().and_then(Translator::kept) {
            let episode = &self.in_flight.episode;
            self.in_flight.shared.with(|core, _| core.keep_response(episode, kept));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with an engine that was killed while it streamed fast: an error behind half an event cannot be read.
    #[test]
    fn events_are_passed_on_when_they_are_whole() {
        let mut held = BytesMut::new();
        for (bytes, passed, left) in [
            ("data: a\n\n", "data: a\n\n", ""),
            ("data: b\n", "", "data: b\n"),
            ("\ndata: c\n\nda", "data: b\n\ndata: c\n\n", "da"),
            ("ta: d", "", "data: d"),
            ("\n\n: heartbeat\n\n", "data: d\n\n: heartbeat\n\n", ""),
        ] {
            assert_eq!(whole_events(&mut held, bytes.as_bytes()), passed);
            assert_eq!(held, left);
        }
    }

    #[test]
    fn errors_name_the_fields_that_the_agent_sent() {
        let told = |message: &str, param: &str, renamed| {
            let mut error = ErrorObject {
                message: message.to_owned(),
                param: Some(param.to_owned()),
                ..ErrorObject::default()
            };
            rename(&mut error, renamed);
            (error.message, error.param.unwrap())
        };
        for (renamed, message, param, their_message, theirs) in [
            (
                responses::RENAMED,
                "`max_tokens` is 0; allowed is 1 and up",
                "max_tokens",
                "`max_output_tokens` is 0; allowed is 1 and up",
                "max_output_tokens",
            ),
            (
                responses::RENAMED,
                "`messages` is empty",
                "messages",
                "`input` is empty",
                "input",
            ),
            (
                anthropic::RENAMED,
                "`stop` has an empty string",
                "stop",
                "`stop_sequences` has an empty string",
                "stop_sequences",
            ),
            (
                anthropic::RENAMED,
                "`continue_final_message` needs text",
                "continue_final_message",
                "`messages` needs text",
                "messages",
            ),
            (
                anthropic::RENAMED,
                "`max_tokens` is 0",
                "max_tokens",
                "`max_tokens` is 0",
                "max_tokens",
            ),
            (
                anthropic::RENAMED,
                "`stopped` is no field",
                "stopped",
                "`stopped` is no field",
                "stopped",
            ),
        ] {
            assert_eq!(
                told(message, param, renamed),
                (their_message.to_owned(), theirs.to_owned())
            );
        }
    }
}
