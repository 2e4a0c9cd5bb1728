//! Streamed chat completions: server-sent events as they arrive.

use super::http::root_cause;
use super::{ClientError, ModelApi};
use crate::protocol::openai::{ChatCompletionChunk, ChatRequest, ErrorBody};

const CALL: &str = "/chat/completions";
/// Maximum size of an event in bytes.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// An answer that is being sampled. Dropping it cancels the sampling.
#[derive(Debug)]
pub struct ChatStream {
    api: ModelApi,
    response: reqwest::Response,
    received: Vec<u8>,
}

impl ModelApi {
    /// Requests a chat completion as a stream. Retries as [`ModelApi::chat`] does until the answer begins.
    ///
    /// # Errors
    /// As of [`ModelApi::chat`].
    pub async fn stream(&self, request: &ChatRequest) -> Result<ChatStream, ClientError> {
        let request = &ChatRequest {
            model: Some(request.model.clone().unwrap_or_else(|| "default".into())),
            stream: Some(true),
            ..request.clone()
        };
        let response = self.begin(CALL, || self.post(CALL).json(request)).await?;
        Ok(ChatStream {
            api: self.clone(),
            response,
            received: Vec::new(),
        })
    }
}

impl ChatStream {
    /// Returns the next chunk; `None` at the end of the answer.
    ///
    /// # Errors
    /// Fails with the API's message if the answer breaks off.
    pub async fn next(&mut self) -> Result<Option<ChatCompletionChunk>, ClientError> {
        loop {
            while let Some(data) = take_event(&mut self.received) {
                match data.as_str() {
                    "" => {} // a comment, such as a heartbeat
                    "[DONE]" => return Ok(None),
                    data => return self.chunk(data).map(Some),
                }
            }
            if self.received.len() > MAX_EVENT_BYTES {
                return Err(self
                    .api
                    .unexpected(CALL, format!("an event has more than {MAX_EVENT_BYTES} bytes")));
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.received.extend_from_slice(&bytes),
                Ok(None) => return Err(self.api.unreachable_because("the answer ended early".into())),
                Err(error) => return Err(self.api.unreachable_because(root_cause(&error))),
            }
        }
    }

    fn chunk(&self, data: &str) -> Result<ChatCompletionChunk, ClientError> {
        if let Ok(body) = serde_json::from_str::<ErrorBody>(data) {
            return Err(self
                .api
                .refused(CALL, self.response.status().as_u16(), body.error.message));
        }
        serde_json::from_str(data).map_err(|error| self.api.unexpected(CALL, error.to_string()))
    }
}

/// Removes the first complete event and returns its data.
fn take_event(received: &mut Vec<u8>) -> Option<String> {
    let is_end = |window: &[u8]| window == b"\n\n" || window == b"\r\r";
    let short = received.windows(2).position(is_end).map(|at| (at, 2));
    let long = received
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| (at, 4));
    let (at, length) = short.into_iter().chain(long).min()?;
    let event: Vec<u8> = received.drain(..at + length).collect();
    let event = String::from_utf8_lossy(&event[..at]);
    let data = event.lines().filter_map(|line| line.strip_prefix("data:"));
    let data = data.map(|line| line.strip_prefix(' ').unwrap_or(line));
    Some(data.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::take_event;

    #[test]
    fn events_are_taken_when_they_are_complete() {
        let mut received = b"data: {\"a\": 1}\n\n: heartbeat\n\ndata:x\ndata: y\r\n\r\ndata: [DO".to_vec();
        let mut events = vec![];
        while let Some(event) = take_event(&mut received) {
            events.push(event);
        }
        assert_eq!(events, ["{\"a\": 1}", "", "x\ny"]);
        received.extend_from_slice(b"NE]\n\n");
        assert_eq!(take_event(&mut received).as_deref(), Some("[DONE]"));
        assert!(received.is_empty());
    }
}
