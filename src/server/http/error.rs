//! Errors of the server, and their mapping to HTTP.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::protocol::openai::{ErrorBody, ErrorObject};
use crate::protocol::swarm::{EngineStatus, ErrorDetail};
use crate::server::model_api::anthropic;

/// Reasons why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The call needs an offline engine.
    #[error("the engine must be offline, but its status is [{0}]; hint: call stop_engine first")]
    NotOffline(EngineStatus),
    /// `start_engine` before `sync_train_config`. Clients match on the phrase.
    #[error("No training config found. hint: call sync_train_config before start_engine")]
    NoConfig,
    /// The configuration does not parse or is invalid.
    #[error("{0}")]
    Config(String),
    /// The engine cannot start with this configuration.
    #[error("the engine cannot start: {0}")]
    CannotStart(String),
    /// `end_episode` while no episodes can run. Clients match on `WEIGHT_SYNCING`.
    #[error("Engine is not rolling. Current status: {0}")]
    NotRolling(String),
    /// `end_episode` while a crashed engine is being restarted. Because of the word `WEIGHT_SYNCING`, clients drop the
    /// episode quietly.
    #[error("the engine is restarting after a crash; this episode was lost, as in WEIGHT_SYNCING")]
    EngineRestarting,
    /// The episode was never claimed.
    #[error("Episode {0} not found.")]
    EpisodeNotFound(String),
    /// The episode was claimed once and lost.
    #[error("Episode {uuid} not found. {why}")]
    EpisodeLost {
        /// Episode id.
        uuid: String,
        /// Reason, as a sentence.
        why: String,
    },
    /// The episode belongs to another client.
    #[error("Episode {0} is claimed by another client.")]
    ForeignEpisode(String),
    /// A request field has an invalid value.
    #[error("{0}")]
    Invalid(String),
    /// A field of a model API request has an invalid value.
    #[error("{message}")]
    Field {
        /// Name of the field.
        field: String,
        /// Message with the field's name.
        message: String,
    },
    /// `previous_response_id` names no stored response.
    #[error(
        "no response `{0}` in this episode (`previous_response_id`); hint: only answers with `store` are kept, \
         while their episode runs"
    )]
    ResponseNotFound(String),
    /// The body is not the expected JSON.
    #[error("the request body is not valid: {0}")]
    Body(String),
    /// The body is too large.
    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge {
        /// Maximum size in bytes.
        limit: u64,
    },
    /// The client paused too long within the body.
    #[error("timed out after {limit:?} while reading the request body")]
    BodyStalled {
        /// Maximum pause.
        limit: std::time::Duration,
    },
    /// The body arrives too slowly.
    #[error("the request body arrived at less than {rate} bytes per second")]
    BodySlow {
        /// Minimum rate, bytes per second.
        rate: u32,
    },
    /// Too many LLM calls at once.
    #[error("the server has reached its limit of {limit} concurrent LLM calls; hint: try again shortly")]
    TooManyCalls {
        /// Maximum number of calls at once.
        limit: usize,
    },
    /// An episode has its share of the LLM calls.
    #[error(
        "the episode has {in_flight} concurrent LLM calls, and the server has room for {free} more, reserved for other \
         episodes; hint: try again shortly"
    )]
    EpisodeCalls {
        /// Number of the episode's calls.
        in_flight: usize,
        /// Number of calls that others may begin.
        free: usize,
    },
    /// A limit shared by all clients is reached.
    #[error("the server is busy: {0}; hint: try again shortly")]
    Busy(String),
    /// The engine could not be reached.
    #[error("the engine does not answer: {0}")]
    EngineUnreachable(String),
    /// The engine closed the connection within an answer.
    #[error("the engine's answer ended early: {0}; hint: try again")]
    BrokenOff(String),
    /// A server that only serves a model has not loaded it.
    #[error("the model is not ready: {0}; hint: try again shortly")]
    ModelNotReady(String),
    /// The engine refused the request.
    #[error("{message}")]
    Engine {
        /// HTTP status of the engine's answer.
        status: StatusCode,
        /// The engine's message.
        message: String,
    },
    /// `replay_latest_llm_call` before the first call.
    #[error("no LLM call has finished yet; hint: send a chat request first")]
    NoCallYet,
    /// A request for files of an experiment before the first start.
    #[error(
        "no experiment has been started since the server started; hint: name one of GET /runs, by run=NAME, or start its \
         engine"
    )]
    NoExperiment,
    /// No such experiment, or no such episode in it.
    #[error("{0}")]
    NoRun(String),
    /// No checkpoint of the experiment has this file.
    #[error("no such checkpoint file: {0}; hint: GET /checkpoints lists steps and files; old checkpoints are removed")]
    NoCheckpointFile(String),
    /// The access token or episode key is missing.
    #[error(
        "this server requires an access token; hint: send `Authorization: Bearer TOKEN`, or put /t/TOKEN before the URL's path"
    )]
    TokenMissing,
    /// The request comes from a web page of another site.
    #[error(
        "cross-origin request refused; hint: start the server with a token (--token-file) to use it from web pages"
    )]
    ForeignPage,
    /// `Host` is a name that a server without a token does not accept.
    #[error(
        "host {0:?} refused, since this server has no access token; hint: use its IP address or localhost, or \
         start it with --allowed-host NAME or with a token (--token-file)"
    )]
    ForeignHost(String),
    /// The server does not accept training code.
    #[error("this server does not accept training code; hint: start it without --no-code-sync")]
    CodeSyncOff,
    /// Training code from a client without a token.
    #[error(
        "training code runs as the server's user, and this server has no access token; hint: start it with a token \
         (--token-file), or with --allow-code-sync if every user of its port may run code"
    )]
    CodeSyncNeedsToken,
    /// The episode key is missing on the model API.
    #[error("missing API key; hint: use the openai_api_key that claim_episode returned")]
    KeyMissing,
    /// The key names no episode.
    #[error("the API key is unknown or expired; hint: use the openai_api_key that claim_episode returned")]
    KeyUnknown,
    /// The key's episode was ended, aborted or discarded.
    #[error("the episode of this API key has ended or was discarded; hint: claim a new episode")]
    EpisodeGone,
    /// No endpoint has this path.
    #[error("no such endpoint: {0}; hint: /openapi.json lists the endpoints")]
    NoSuchPath(String),
    /// The endpoint has another method.
    #[error("method not allowed: {0}; hint: /openapi.json lists the methods")]
    MethodNotAllowed(String),
    /// Internal error.
    #[error("internal server error: {0}")]
    Internal(String),
}

/// `Retry-After` of calls that the engine cannot take now, in seconds.
const RETRY_AFTER_SECONDS: u64 = 3;
/// Maximum size of an error answer that is converted to another format.
const ERROR_BYTES: usize = 1024 * 1024;

impl Error {
    /// Returns the error of a missing field of a model API request.
    pub fn missing(field: &str) -> Self {
        Self::Field {
            field: field.to_owned(),
            message: format!("`{field}` is missing"),
        }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotOffline(_)
            | Self::NoConfig
            | Self::Config(_)
            | Self::CannotStart(_)
            | Self::NotRolling(_)
            | Self::EngineRestarting
            | Self::EpisodeNotFound(_)
            | Self::EpisodeLost { .. }
            | Self::Invalid(_)
            | Self::Field { .. }
            | Self::ResponseNotFound(_)
            | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::TokenMissing | Self::KeyMissing | Self::KeyUnknown => StatusCode::UNAUTHORIZED,
            Self::ForeignPage | Self::ForeignHost(_) | Self::CodeSyncOff | Self::CodeSyncNeedsToken => {
                StatusCode::FORBIDDEN
            }
            Self::ForeignEpisode(_)
            | Self::NoCallYet
            | Self::NoExperiment
            | Self::NoRun(_)
            | Self::NoCheckpointFile(_)
            | Self::EpisodeGone
            | Self::NoSuchPath(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyStalled { .. } | Self::BodySlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyCalls { .. } | Self::EpisodeCalls { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::EngineUnreachable(_) | Self::ModelNotReady(_) | Self::BrokenOff(_) | Self::Busy(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Engine { status, .. } => *status,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns `code` of OpenAI's error object.
    fn code(&self) -> Option<&'static str> {
        match self {
            Self::KeyMissing | Self::KeyUnknown | Self::TokenMissing => Some("invalid_api_key"),
            Self::EpisodeGone => Some("episode_not_found"),
            Self::EngineUnreachable(_) | Self::ModelNotReady(_) | Self::BrokenOff(_) => Some("engine_unavailable"),
            Self::TooManyCalls { .. } | Self::EpisodeCalls { .. } => Some("rate_limit_exceeded"),
            Self::ResponseNotFound(_) => Some("previous_response_not_found"),
            _ => None,
        }
    }

    /// Returns `param` of OpenAI's error object.
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

    /// Returns whether part of the request's body may be unread, so that no other request can follow on the connection.
    fn leaves_a_body(&self) -> bool {
        matches!(
            self,
            Self::BodyTooLarge { .. } | Self::BodyStalled { .. } | Self::BodySlow { .. } | Self::Busy(_)
        )
    }
}

/// The format outside of `/v1`: `{"detail": …}`.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let detail = self.to_string();
        self.with_headers(Json(ErrorDetail { detail }).into_response())
    }
}

/// An [`Error`] on the model API, answered as OpenAI's error object.
#[derive(Debug)]
pub struct ModelApiError(pub Error);

impl From<Error> for ModelApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl ModelApiError {
    /// Returns OpenAI's error object.
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

/// Middleware that converts all error answers on `/v1/messages` to Anthropic's format.
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
