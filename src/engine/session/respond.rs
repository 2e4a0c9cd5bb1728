//! Chat answers as HTTP responses: JSON, server-sent events, or an error object.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::time::timeout;

use super::{ChatAnswer, ChatError};
use crate::protocol::openai::ErrorBody;

/// Maximum silence of a stream. Clients and proxies close a connection after some tens of seconds without a byte, and a
/// request may be queued for longer, or the model write a call that is only sent when it is complete.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A comment, which readers of server-sent events skip.
const HEARTBEAT_EVENT: &[u8] = b": heartbeat\n\n";

/// Builds the response to a chat request.
pub fn respond(answer: Result<ChatAnswer, ChatError>) -> Response {
    match answer {
        Ok(ChatAnswer::Whole(completion)) => Json(completion).into_response(),
        Ok(ChatAnswer::Stream(chunks)) => event_stream(chunks),
        Err(error) => error.into_response(),
    }
}

/// Builds a response of server-sent events.
pub fn event_stream<T: Serialize + Send + 'static, E: Into<ErrorBody> + Send + 'static>(
    chunks: impl Stream<Item = Result<T, E>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    let events = with_heartbeats(events(chunks), HEARTBEAT);
    (headers, Body::from_stream(events)).into_response()
}

/// Streams server-sent events, ending with `[DONE]` or, since the status is already sent, with an error object in the
/// form that OpenAI's clients expect.
fn events<T: Serialize + Send, E: Into<ErrorBody> + Send>(
    chunks: impl Stream<Item = Result<T, E>> + Send,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let told = chunks.map(Some).chain(stream::once(ready(None)));
    told.scan(false, |failed, chunk| {
        if *failed {
            return ready(None);
        }
        let data = match chunk {
            Some(Ok(chunk)) => json(&chunk),
            Some(Err(error)) => {
                *failed = true;
                json(&error.into())
            }
            None => "[DONE]".to_owned(),
        };
        ready(Some(Ok(Bytes::from(format!("data: {data}\n\n")))))
    })
}

#[expect(clippy::expect_used, reason = "wire types are objects with string keys")]
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("wire types are objects with string keys")
}

/// Inserts a heartbeat into a stream whenever it is silent for the given time.
fn with_heartbeats<E>(
    events: impl Stream<Item = Result<Bytes, E>> + Send,
    every: Duration,
) -> impl Stream<Item = Result<Bytes, E>> + Send {
    stream::unfold(Box::pin(events), move |mut events| async move {
        match timeout(every, events.next()).await {
            Ok(event) => Some((event?, events)),
            Err(_) => Some((Ok(Bytes::from_static(HEARTBEAT_EVENT)), events)),
        }
    })
}

impl From<ChatError> for ErrorBody {
    fn from(error: ChatError) -> Self {
        error.body()
    }
}

impl IntoResponse for ChatError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after() {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::openai::ChatCompletionChunk;

    /// Seen with long tool calls and with thinking that the model opened: 25 to 42 s without a byte.
    #[tokio::test]
    async fn a_silent_stream_has_heartbeats() {
        let (events, queue) = tokio::sync::mpsc::unbounded_channel();
        let queue = tokio_stream::wrappers::UnboundedReceiverStream::new(queue).map(Ok::<_, std::io::Error>);
        let mut told = Box::pin(with_heartbeats(queue, Duration::from_millis(20)));
        for said in ["a", "b", "c"] {
            events.send(Bytes::from(said)).unwrap();
            assert_eq!(told.next().await.unwrap().unwrap(), said);
            for _ in 0..3 {
                assert_eq!(told.next().await.unwrap().unwrap(), HEARTBEAT_EVENT);
            }
        }
        drop(events);
        assert!(told.next().await.is_none(), "it ends as the stream does");
    }

    #[tokio::test]
    async fn a_stream_that_fails_ends_with_the_error() {
        let chunk = || Ok(ChatCompletionChunk::default());
        let failures = [
            (ChatError::Sampling("no".into()), "sampling failed: no", "server_error"),
            (
                ChatError::EpisodeNotFound("e".into()),
                "`e` has ended",
                "invalid_request_error",
            ),
            (ChatError::Unavailable("later".into()), "later", "server_error"),
        ];
        for (error, sentence, kind) in failures {
            let chunks = stream::iter([chunk(), chunk(), Err(error), chunk()]);
            let told: Vec<Bytes> = events(chunks).map(Result::unwrap).collect().await;
            assert_eq!(told.len(), 3, "{told:?}");
            let data = told[2].strip_prefix(b"data: ").unwrap();
            let error = serde_json::from_slice::<ErrorBody>(data).unwrap().error;
            assert!(error.message.contains(sentence) && error.kind == kind, "{error:?}");
        }
        let told: Vec<Bytes> = events(stream::iter([chunk()])).map(Result::unwrap).collect().await;
        assert_eq!(told[1], "data: [DONE]\n\n");
    }
}
