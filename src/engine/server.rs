//! The engine contract over HTTP: one handler per row of the table in [`crate::protocol::engine`].

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tracing::{Instrument, Span};

use super::batch::journal::JournalError;
use super::batch::ledger::LedgerError;
use super::completions::CompletionError;
use super::core::Core;
use super::events::EventHub;
use super::model_thread::ModelGone;
use super::session::{ConversationTooLarge, event_stream, respond};
use crate::protocol::completions::{CompletionRequest, LoadAdapter, LoadedAdapter, UnloadAdapter};
use crate::protocol::engine::{
    BatchState, ChatCall, EndEpisode, EndOutcome, EpisodeConversations, ForgetEpisode, Hello, REQUEST_ID_HEADER,
    TokenCount, Update,
};
use crate::protocol::openai::{ErrorBody, ErrorObject};

/// Seconds after which to retry a call that the engine could not serve.
const RETRY_AFTER: u64 = 1;

/// Reasons for the engine to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `POST /shutdown`: shut down in good order.
    Shutdown,
    /// The server is gone.
    Abandoned,
    /// The engine cannot continue, for this reason.
    Failed(String),
}

/// State shared by the handlers.
pub struct App {
    /// Events for the control plane.
    pub hub: Arc<EventHub>,
    /// Answer of `hello` during the boot.
    pub booting: Hello,
    /// The booted engine, and its answer of `hello`.
    pub booted: OnceLock<(Arc<Core>, Hello)>,
    /// Ends the engine.
    pub end: mpsc::UnboundedSender<End>,
}

impl App {
    fn core(&self) -> Result<&Arc<Core>, Refusal> {
        match self.booted.get() {
            Some((core, _)) => Ok(core),
            None => Err(Refusal::unavailable("the engine is still booting; hint: try again")),
        }
    }

    fn end(&self, end: End) {
        let _ = self.end.send(end); // the engine is already ending
    }
}

/// Returns the contract's routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/hello", get(hello))
        .route("/episodes/{id}/chat", post(chat))
        .route("/episodes/{id}/count_tokens", post(count_tokens))
        .route("/episodes/{id}/conversations", get(conversations))
        .route("/episodes/{id}/end", post(end_episode))
        .route("/episodes/{id}/forget", post(forget))
        .route("/completions", post(complete))
        .route("/adapter", get(adapter).post(load_adapter).delete(unload_adapter))
        .route("/agree", post(agree))
        .route("/update", post(update))
        .route("/events", get(events))
        .route("/shutdown", post(shutdown))
        // Metadata may contain transcripts; the control plane has its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(in_span))
        .with_state(app)
}

/// Middleware: handles a call in a span with the control plane's request id and the episode, for the log.
async fn in_span(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID_HEADER).and_then(|id| id.to_str().ok());
    let episode = request.uri().path().strip_prefix("/episodes/");
    let episode = episode.and_then(|path| path.split('/').next());
    let span = tracing::info_span!("request", id, episode);
    next.run(request).instrument(span).await
}

async fn hello(State(app): State<Arc<App>>) -> Result<Json<Hello>, Refusal> {
    let Some((core, hello)) = app.booted.get() else {
        return Ok(Json(app.booting.clone()));
    };
    let core = core.clone();
    let pool = on_disk_thread(move || core.pool()).await?;
    Ok(Json(Hello {
        global_step: pool.global_step,
        pool,
        ..hello.clone()
    }))
}

async fn chat(
    State(app): State<Arc<App>>,
    Path(episode): Path<String>,
    call: Result<Json<ChatCall>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(call) = call?;
    Ok(respond(app.core()?.chat(&episode, call).await))
}

async fn count_tokens(
    State(app): State<Arc<App>>,
    Path(episode): Path<String>,
    call: Result<Json<ChatCall>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(call) = call?;
    let counted = app.core()?.count_tokens(&episode, call).await;
    Ok(match counted {
        Ok(input_tokens) => Json(TokenCount { input_tokens }).into_response(),
        Err(error) => error.into_response(),
    })
}

async fn conversations(
    State(app): State<Arc<App>>,
    Path(episode): Path<String>,
) -> Result<Json<EpisodeConversations>, Refusal> {
    let core = app.core()?.clone();
    Ok(Json(on_disk_thread(move || core.conversations(&episode)).await??))
}

async fn complete(
    State(app): State<Arc<App>>,
    request: Result<Json<CompletionRequest>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(request) = request?;
    Ok(event_stream(app.core()?.complete(request).await?))
}

async fn adapter(State(app): State<Arc<App>>) -> Result<Json<LoadedAdapter>, Refusal> {
    Ok(Json(app.core()?.completions().adapter().await))
}

async fn load_adapter(
    State(app): State<Arc<App>>,
    load: Result<Json<LoadAdapter>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(load) = load?;
    app.core()?.completions().load(load).await?;
    Ok(done())
}

async fn unload_adapter(
    State(app): State<Arc<App>>,
    unload: Result<Json<UnloadAdapter>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(unload) = unload?;
    app.core()?.completions().unload(unload).await?;
    Ok(done())
}

async fn end_episode(
    State(app): State<Arc<App>>,
    Path(episode): Path<String>,
    end: Result<Json<EndEpisode>, JsonRejection>,
) -> Result<Json<EndOutcome>, Refusal> {
    let Json(end) = end?;
    let core = app.core()?.clone();
    Ok(Json(on_disk_thread(move || core.end(&episode, end)).await??))
}

async fn forget(
    State(app): State<Arc<App>>,
    Path(episode): Path<String>,
    forget: Result<Json<ForgetEpisode>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(forget) = forget?;
    tracing::debug!("forgetting the episode: {}", forget.reason.as_str());
    app.core()?.forget(&episode, forget);
    Ok(done())
}

async fn agree(State(app): State<Arc<App>>) -> Result<Json<BatchState>, Refusal> {
    let core = app.core()?.clone();
    let pool = on_disk_thread(move || core.agree()).await?;
    Ok(Json(BatchState { pool }))
}

async fn update(State(app): State<Arc<App>>, asked: Result<Json<Update>, JsonRejection>) -> Result<Response, Refusal> {
    let Json(asked) = asked?;
    let core = app.core()?.clone();
    let closer = core.clone();
    let closed = on_disk_thread(move || closer.begin_update(asked)).await??;
    // The answer does not wait for the update; an event reports its end.
    let updating = tokio::spawn(async move { core.run_update(closed).await });
    tokio::spawn(async move {
        match updating.await {
            Ok(Ok(())) => {}
            Ok(Err(ModelGone)) => {} // the model thread has reported the reason
            Err(panic) => app.end(End::Failed(format!("the update failed: {panic}"))),
        }
    });
    Ok(done())
}

async fn events(State(app): State<Arc<App>>) -> Response {
    let lines = UnboundedReceiverStream::new(app.hub.subscribe()).map(|event| {
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        Ok::<_, serde_json::Error>(Bytes::from(line))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (headers, Body::from_stream(lines)).into_response()
}

async fn shutdown(State(app): State<Arc<App>>) -> Response {
    app.end(End::Shutdown);
    done()
}

fn done() -> Response {
    Json(json!({})).into_response()
}

/// Runs work that waits for the disk on a blocking thread. A panic becomes an error answer instead of ending the
/// engine.
async fn on_disk_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let span = Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .map_err(|error| {
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("internal error of the engine: {error}"),
            )
        })
}

/// An error answer.
struct Refusal {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            code: None,
        }
    }

    fn unavailable(message: impl Into<String>) -> Self {
        Self {
            code: Some("engine_unavailable"),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Journal(JournalError::Unreadable(_)) => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
            LedgerError::Journal(JournalError::Io { .. }) => Self::unavailable(error.to_string()),
            LedgerError::Updating { .. } | LedgerError::NotFull { .. } => {
                Self::new(StatusCode::CONFLICT, error.to_string())
            }
        }
    }
}

impl From<CompletionError> for Refusal {
    fn from(error: CompletionError) -> Self {
        match error {
            CompletionError::NoAdapter(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            CompletionError::Unsupported { .. } | CompletionError::Refused(_) | CompletionError::Adapter(_) => {
                Self::new(StatusCode::BAD_REQUEST, error.to_string())
            }
            CompletionError::Stopped => Self::unavailable(error.to_string()),
        }
    }
}

impl From<ConversationTooLarge> for Refusal {
    fn from(error: ConversationTooLarge) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

impl From<Refusal> for ErrorBody {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.status.is_server_error() {
            true => "server_error",
            false => "invalid_request_error",
        };
        Self {
            error: ErrorObject {
                message: refusal.message,
                kind: kind.into(),
                param: None,
                code: refusal.code.map(str::to_owned),
                prompt_tokens: None,
            },
        }
    }
}

impl From<CompletionError> for ErrorBody {
    fn from(error: CompletionError) -> Self {
        Refusal::from(error).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(ErrorBody::from(self))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::protocol::swarm::EpisodeType;

    #[test]
    fn a_chat_call_has_the_text_of_the_request() {
        let request = r#"{"messages": [], "seed": 18446744073709551616, "temperature": 1.10}"#;
        let call = ChatCall {
            episode_type: EpisodeType::Eval,
            request: RawValue::from_string(request.into()).unwrap(),
        };
        let Json(received) = Json::<ChatCall>::from_bytes(&serde_json::to_vec(&call).unwrap()).unwrap();
        assert_eq!(received.episode_type, call.episode_type);
        assert_eq!(received.request.get(), request);
    }
}
