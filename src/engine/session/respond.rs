//! A chat answer as an HTTP response: JSON, server-sent events, or an error object.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tokio::time::timeout;

use super::{ChatAnswer, ChatError};

/// How long a stream may be silent. Clients and proxies give up on a connection after some tens of seconds without a
/// byte, and a request may wait in the queue, or the model write a call that is told only when it is whole, for longer.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A comment, which readers of server-sent events skip.
const HEARTBEAT_EVENT: &[u8] = b": heartbeat\n\n";

/// The response for a chat request. An error in the middle of a stream breaks the connection off, since the status has
/// been sent.
pub fn respond(answer: Result<ChatAnswer, ChatError>) -> Response {
    match answer {
        Ok(ChatAnswer::Whole(completion)) => Json(completion).into_response(),
        Ok(ChatAnswer::Stream(chunks)) => {
            let events = chunks.and_then(|chunk| async move {
                let json = serde_json::to_string(&chunk).map_err(|error| ChatError::Sampling(error.to_string()))?;
                Ok(Bytes::from(format!("data: {json}\n\n")))
            });
            let done = stream::once(async { Ok(Bytes::from_static(b"data: [DONE]\n\n")) });
            let headers = [
                (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
                (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            ];
            let events = with_heartbeats(events.chain(done), HEARTBEAT);
            (headers, Body::from_stream(events)).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// The same stream with a heartbeat wherever nothing comes for the given time.
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
}
