//! What the server refuses, and the one place where that becomes HTTP.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::protocol::openai::{ErrorBody, ErrorObject};
use crate::protocol::swarm::{EngineStatus, ErrorDetail};
use crate::server::model_api::anthropic;

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The call needs an offline engine.
    #[error("the engine must be offline for this, but its status is [{0}]; hint: call stop_engine first")]
    NotOffline(EngineStatus),
    /// `start_engine` before `sync_train_config`. Clients match on the phrase.
    #[error("No training config found. hint: call sync_train_config before start_engine")]
    NoConfig,
    /// The configuration does not parse or validate.
    #[error("{0}")]
    Config(String),
    /// The engine cannot start with this configuration.
    #[error("the engine cannot start: {0}")]
    CannotStart(String),
    /// `end_episode` while no episodes run. Clients match on `WEIGHT_SYNCING`.
    #[error("Engine is not rolling. Current status: {0}")]
    NotRolling(String),
    /// `end_episode` while an engine boots in the place of one that crashed. Clients drop the episode quietly, as in
    /// `WEIGHT_SYNCING`, by that word.
    #[error("the engine crashed and is started again; this episode went with it, as in WEIGHT_SYNCING")]
    StartedAgain,
    /// Never claimed.
    #[error("Episode {0} not found.")]
    EpisodeNotFound(String),
    /// Claimed once, and lost.
    #[error("Episode {uuid} not found. {why}")]
    EpisodeLost {
        /// The episode.
        uuid: String,
        /// A sentence.
        why: String,
    },
    /// Another client's.
    #[error("Episode {0} is claimed by another client.")]
    ForeignEpisode(String),
    /// A field of the request has a value that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// A field of a model API's request has a value that is not allowed.
    #[error("{message}")]
    Field {
        /// Which.
        field: String,
        /// A sentence that names it.
        message: String,
    },
    /// `previous_response_id` names nothing.
    #[error(
        "previous_response_id is `{0}`, which is no response of this episode; hint: only answers with `store` are kept, \
         while their episode runs"
    )]
    ResponseNotFound(String),
    /// The body is not the JSON that the endpoint takes.
    #[error("the request body is not valid: {0}")]
    Body(String),
    /// The body is larger than the endpoint takes.
    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge {
        /// Bytes.
        limit: u64,
    },
    /// The client stopped sending in the middle of a body.
    #[error("timed out after {limit:?} while reading the request body")]
    BodyStalled {
        /// How long was waited.
        limit: std::time::Duration,
    },
    /// The body comes too slowly.
    #[error("the request body came at less than {rate} bytes per second")]
    BodySlow {
        /// Bytes per second.
        rate: u32,
    },
    /// More LLM calls at once than are held open.
    #[error("{limit} LLM calls are being answered already; try again shortly")]
    TooManyCalls {
        /// At once.
        limit: usize,
    },
    /// A bound that concerns all clients together is reached.
    #[error("the server is busy: {0}; try again shortly")]
    Busy(String),
    /// The engine could not be asked.
    #[error("the engine does not answer: {0}")]
    EngineUnreachable(String),
    /// The engine hung up in the middle of an answer.
    #[error("the engine broke the answer off: {0}; try again")]
    BrokenOff(String),
    /// The engine refused.
    #[error("{message}")]
    Engine {
        /// HTTP status of its answer.
        status: StatusCode,
        /// Its sentence.
        message: String,
    },
    /// `replay_latest_llm_call` before the first call.
    #[error("there was no LLM call yet")]
    NoCallYet,
    /// Neither token nor episode key.
    #[error(
        "this server wants its token; hint: send `Authorization: Bearer TOKEN`, or put /t/TOKEN before the path of the URL"
    )]
    TokenMissing,
    /// A web page of another site.
    #[error(
        "cross-origin request refused; hint: start the server with a token (--token-file) to use it from web pages"
    )]
    ForeignPage,
    /// `Host` names something that a server without a token does not answer to.
    #[error(
        "this server does not answer to the host {0:?}, as it has no token; hint: use its IP address or localhost, or \
         start it with --allowed-host NAME or with a token (--token-file)"
    )]
    ForeignHost(String),
    /// The model API without an episode key.
    #[error("no API key; hint: use the openai_api_key that claim_episode returned")]
    KeyMissing,
    /// A key that names no episode.
    #[error("the API key is unknown or expired; hint: use the openai_api_key that claim_episode returned")]
    KeyUnknown,
    /// The key's episode was ended, aborted or discarded.
    #[error("the episode of this API key has ended or was discarded")]
    EpisodeGone,
    /// No such path.
    #[error("there is no {0} here")]
    NoSuchPath(String),
    /// The path takes another method.
    #[error("{0} is not allowed here")]
    MethodNotAllowed(String),
    /// A fault of ours.
    #[error("the server failed on this request: {0}")]
    Internal(String),
}

/// Seconds after which a call that the engine could not take should be tried again.
const RETRY_AFTER_SECONDS: u64 = 3;
/// Largest error that is put into another shape.
const ERROR_BYTES: usize = 1024 * 1024;

impl Error {
    /// A field that a request of the model API must have.
    pub fn missing(field: &str) -> Self {
        Self::Field {
            field: field.to_owned(),
            message: format!("`{field}` is missing"),
        }
    }

    /// The HTTP status it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotOffline(_)
            | Self::NoConfig
            | Self::Config(_)
            | Self::CannotStart(_)
            | Self::NotRolling(_)
            | Self::StartedAgain
            | Self::EpisodeNotFound(_)
            | Self::EpisodeLost { .. }
            | Self::Invalid(_)
            | Self::Field { .. }
            | Self::ResponseNotFound(_)
            | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::TokenMissing | Self::KeyMissing | Self::KeyUnknown => StatusCode::UNAUTHORIZED,
            Self::ForeignPage | Self::ForeignHost(_) => StatusCode::FORBIDDEN,
            Self::ForeignEpisode(_) | Self::NoCallYet | Self::EpisodeGone | Self::NoSuchPath(_) => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyStalled { .. } | Self::BodySlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyCalls { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::EngineUnreachable(_) | Self::BrokenOff(_) | Self::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine { status, .. } => *status,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// `code` of OpenAI's error object.
    fn code(&self) -> Option<&'static str> {
        match self {
            Self::KeyMissing | Self::KeyUnknown | Self::TokenMissing => Some("invalid_api_key"),
            Self::EpisodeGone => Some("episode_not_found"),
            Self::EngineUnreachable(_) | Self::BrokenOff(_) => Some("engine_unavailable"),
            Self::TooManyCalls { .. } => Some("rate_limit_exceeded"),
            Self::ResponseNotFound(_) => Some("previous_response_not_found"),
            _ => None,
        }
    }

    /// `param` of OpenAI's error object.
    fn param(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            Self::ResponseNotFound(_) => Some("previous_response_id"),
            _ => None,
        }
    }

    fn with_headers(&self, mut response: Response) -> Response {
        *response.status_mut() = self.status();
        if matches!(
            self.status(),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            let seconds = HeaderValue::from(RETRY_AFTER_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.leaves_a_body() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }

    /// Whether the rest of the request's body may still come, so that no other request can follow it.
    fn leaves_a_body(&self) -> bool {
        matches!(
            self,
            Self::BodyTooLarge { .. } | Self::BodyStalled { .. } | Self::BodySlow { .. } | Self::Busy(_)
        )
    }
}

/// `{"detail": …}`, the shape outside `/v1`.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let detail = self.to_string();
        self.with_headers(Json(ErrorDetail { detail }).into_response())
    }
}

/// An [`Error`] on the model API: answered with OpenAI's error object.
#[derive(Debug)]
pub struct ModelApiError(pub Error);

impl From<Error> for ModelApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl ModelApiError {
    /// OpenAI's error object.
    pub fn object(&self) -> ErrorObject {
        let status = self.0.status();
        let kind = match status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        ErrorObject {
            message: self.0.to_string(),
            kind: kind.into(),
            param: self.0.param().map(str::to_owned),
            code: self.0.code().map(str::to_owned),
            prompt_tokens: None,
        }
    }
}

impl IntoResponse for ModelApiError {
    fn into_response(self) -> Response {
        let error = self.object();
        self.0.with_headers(Json(ErrorBody { error }).into_response())
    }
}

/// Answers on `/v1/messages` tell errors in Anthropic's shape, whoever made them.
pub async fn shape_for_anthropic(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let asks_models = path.starts_with("/v1/models") && request.headers().contains_key("anthropic-version");
    let concerned = path.starts_with("/v1/messages") || asks_models;
    let response = next.run(request).await;
    let status = response.status();
    if !concerned || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = to_bytes(body, ERROR_BYTES).await.unwrap_or_default();
    let error = match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(body) => body.error,
        Err(_) => ErrorObject {
            message: String::from_utf8_lossy(&bytes).into_owned(),
            ..ErrorObject::default()
        },
    };
    head.headers.remove(header::CONTENT_LENGTH);
    let body = Json(anthropic::error_body(status.as_u16(), error));
    let mut response = body.into_response();
    for (name, value) in &head.headers {
        response.headers_mut().entry(name).or_insert_with(|| value.clone());
    }
    *response.status_mut() = status;
    response
}
