//! Client of the engine's HTTP interface over its Unix socket (contract: `protocol::engine`).
//!
//! Each call opens a connection: on a local socket that takes microseconds, and dropping the answer closes the
//! connection, from which the engine sees that the caller is gone.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, BodyStream, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;
use tokio_util::task::AbortOnDropHandle;

use crate::protocol::completions::{CompletionRequest, LoadAdapter, LoadedAdapter, UnloadAdapter};
use crate::protocol::engine::{
    BatchState, ChatCall, EndEpisode, EndOutcome, EngineEvent, ForgetEpisode, Hello, REQUEST_ID_HEADER, Update,
};
use crate::protocol::openai::ErrorBody;
use crate::server::http::blocking_pool::run_blocking;
use crate::server::http::error::Error;
use crate::server::http::request_id;

/// Maximum length of an event line: a pool snapshot of about ten thousand episodes.
const EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Reasons why a call to the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineCallError {
    /// The engine cannot be reached, or closed the connection.
    #[error("{0}")]
    Unreachable(String),
    /// The engine refused the call.
    #[error("{message}")]
    Refused {
        /// HTTP status of the answer.
        status: StatusCode,
        /// The engine's message.
        message: String,
    },
}

impl EngineCallError {
    fn unreachable(error: impl std::fmt::Display) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<EngineCallError> for Error {
    fn from(error: EngineCallError) -> Self {
        match error {
            EngineCallError::Unreachable(reason) => Self::EngineUnreachable(reason),
            EngineCallError::Refused { status, message } => Self::Engine { status, message },
        }
    }
}

type Result<T> = std::result::Result<T, EngineCallError>;

/// Client of one engine.
#[derive(Clone, Debug)]
pub struct EngineClient {
    socket: PathBuf,
}

/// An answer whose body is not read yet. Dropping it cancels the call.
pub struct EngineAnswer {
    /// Status and headers.
    pub head: hyper::http::response::Parts,
    body: Incoming,
    connection: AbortOnDropHandle<()>,
}

impl EngineAnswer {
    /// Returns the body as a stream.
    pub fn into_bytes_stream(self) -> impl Stream<Item = std::result::Result<Bytes, hyper::Error>> + Send {
        let connection = self.connection;
        let frames = BodyStream::new(self.body).inspect(move |_| {
            // Owned by the stream, so that the connection lives as long as the stream.
            let _ = &connection;
        });
        frames.try_filter_map(|frame| async move { Ok(frame.into_data().ok()) })
    }
}

impl EngineClient {
    /// Creates a client of the engine at `socket`.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Calls `GET /hello`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn hello(&self) -> Result<Hello> {
        self.json(Method::GET, "/hello", &()).await
    }

    /// Calls `POST /episodes/{id}/chat`; returns the answer whatever its status.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached.
    pub async fn chat(&self, episode: &str, call: &ChatCall) -> Result<EngineAnswer> {
        self.send(Method::POST, &format!("/episodes/{episode}/chat"), call)
            .await
    }

    /// Calls `POST /episodes/{id}/count_tokens`; returns the answer whatever its status.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached.
    pub async fn count_tokens(&self, episode: &str, call: &ChatCall) -> Result<EngineAnswer> {
        self.send(Method::POST, &format!("/episodes/{episode}/count_tokens"), call)
            .await
    }

    /// Calls `GET /episodes/{id}/conversations`; the answer's body may be large and is passed on unread.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn conversations(&self, episode: &str) -> Result<EngineAnswer> {
        let answer = self
            .send(Method::GET, &format!("/episodes/{episode}/conversations"), &())
            .await?;
        refuse_errors(answer).await
    }

    /// Calls `POST /episodes/{id}/end`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn end(&self, episode: &str, end: &EndEpisode) -> Result<EndOutcome> {
        self.json(Method::POST, &format!("/episodes/{episode}/end"), end).await
    }

    /// Calls `POST /episodes/{id}/forget`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn forget(&self, episode: &str, forget: &ForgetEpisode) -> Result<()> {
        let path = format!("/episodes/{episode}/forget");
        self.json::<serde_json::Value>(Method::POST, &path, forget).await?;
        Ok(())
    }

    /// Calls `POST /completions`; returns the answer whatever its status.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached.
    pub async fn complete(&self, request: &CompletionRequest) -> Result<EngineAnswer> {
        self.send(Method::POST, "/completions", request).await
    }

    /// Calls `GET /adapter`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn adapter(&self) -> Result<LoadedAdapter> {
        self.json(Method::GET, "/adapter", &()).await
    }

    /// Calls `POST /adapter`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn load_adapter(&self, load: &LoadAdapter) -> Result<()> {
        self.json::<serde_json::Value>(Method::POST, "/adapter", load).await?;
        Ok(())
    }

    /// Calls `DELETE /adapter`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn unload_adapter(&self, unload: &UnloadAdapter) -> Result<()> {
        self.json::<serde_json::Value>(Method::DELETE, "/adapter", unload)
            .await?;
        Ok(())
    }

    /// Calls `POST /agree`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn agree(&self) -> Result<BatchState> {
        self.json(Method::POST, "/agree", &serde_json::json!({})).await
    }

    /// Calls `POST /update`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn update(&self, update: &Update) -> Result<()> {
        self.json::<serde_json::Value>(Method::POST, "/update", update).await?;
        Ok(())
    }

    /// Calls `POST /shutdown`.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn shutdown(&self) -> Result<()> {
        self.json::<serde_json::Value>(Method::POST, "/shutdown", &serde_json::json!({}))
            .await?;
        Ok(())
    }

    /// Opens the event stream (`GET /events`), which lasts as long as the engine. A malformed line yields an error
    /// item.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be reached or refuses.
    pub async fn events(&self) -> Result<impl Stream<Item = Result<EngineEvent>> + Send + use<>> {
        let answer = self.send(Method::GET, "/events", &()).await?;
        let answer = refuse_errors(answer).await?;
        let reader = StreamReader::new(answer.into_bytes_stream().map_err(io::Error::other));
        let lines = FramedRead::new(Box::pin(reader), LinesCodec::new_with_max_length(EVENT_BYTES));
        Ok(lines.map(|line| {
            let line = line.map_err(EngineCallError::unreachable)?;
            serde_json::from_str(&line).map_err(EngineCallError::unreachable)
        }))
    }

    async fn json<T: DeserializeOwned>(&self, method: Method, path: &str, body: &impl Serialize) -> Result<T> {
        let answer = refuse_errors(self.send(method, path, body).await?).await?;
        let EngineAnswer { body, connection, .. } = answer;
        let bytes = body.collect().await.map_err(EngineCallError::unreachable)?.to_bytes();
        drop(connection);
        serde_json::from_slice(&bytes)
            .map_err(|error| EngineCallError::Unreachable(format!("unexpected response to {path}: {error}")))
    }

    async fn send(&self, method: Method, path: &str, body: &impl Serialize) -> Result<EngineAnswer> {
        let body = match method {
            Method::GET => Bytes::new(),
            _ => to_json(body).map_err(EngineCallError::unreachable)?.into(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, "engine")
            .header(CONTENT_TYPE, "application/json");
        if let Some(id) = request_id::current() {
            request = request.header(REQUEST_ID_HEADER, id);
        }
        let request = request.body(Full::new(body)).map_err(EngineCallError::unreachable)?;
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(EngineCallError::unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(EngineCallError::unreachable)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("engine connection: {error}");
            }
        }));
        let response: Response<Incoming> = sender
            .send_request(request)
            .await
            .map_err(EngineCallError::unreachable)?;
        let (head, body) = response.into_parts();
        Ok(EngineAnswer { head, body, connection })
    }
}

/// Maximum size of JSON serialised on the calling thread, which takes less than a millisecond.
const WRITTEN_AT_ONCE: usize = 64 * 1024;

/// Serialises a value; for a large one, the other tasks of this thread move to another thread meanwhile.
fn to_json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut buffer = vec![0; WRITTEN_AT_ONCE];
    let mut rest = buffer.as_mut_slice();
    match serde_json::to_writer(&mut rest, value) {
        Ok(()) => {
            let left = rest.len();
            buffer.truncate(WRITTEN_AT_ONCE - left);
            buffer.shrink_to_fit();
            Ok(buffer)
        }
        // Too large, or invalid; the second attempt reports the error.
        Err(_) => run_blocking(|| serde_json::to_vec(value)),
    }
}

/// Turns an error answer into the engine's message.
async fn refuse_errors(answer: EngineAnswer) -> Result<EngineAnswer> {
    let status = answer.head.status;
    if status.is_success() {
        return Ok(answer);
    }
    let body = answer.body.collect().await.map_err(EngineCallError::unreachable)?;
    let bytes = body.to_bytes();
    let message = match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(body) => body.error.message,
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    Err(EngineCallError::Refused { status, message })
}
