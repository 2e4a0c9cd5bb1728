//! A chat answer as an HTTP response: JSON, server-sent events, or an error object.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{ChatAnswer, ChatError};

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
            (headers, Body::from_stream(events.chain(done))).into_response()
        }
        Err(error) => error.into_response(),
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
