//! Reading a server without changing it: the status feed, in one attempt or as a stream.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};

use super::http::{Call, Retry};
use super::{ClientError, SwarmClient};

/// Timeout of a read in seconds.
pub(super) const TIMEOUT_S: u64 = 10;

/// Maximum time without a byte of a stream; servers send a comment more often.
const SILENCE: Duration = Duration::from_secs(20);

/// Maximum size of an event: far above that of a full status.
const MAX_EVENT: usize = 16 << 20;

impl SwarmClient {
    /// Reads `path`, such as `/episodes`, or the resource with the id `below` under it, in one attempt: a dashboard says
    /// that the server does not answer and reads again.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Refused`] (404 from a server without such an endpoint),
    /// [`ClientError::Answer`].
    pub async fn observe<A: DeserializeOwned>(
        &self,
        path: &'static str,
        below: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<A, ClientError> {
        let call = Call::new(path, TIMEOUT_S, Retry::Unsent);
        self.inner.http.get_below(call, 1, below, query).await
    }

    /// Opens a stream of server-sent events.
    ///
    /// # Errors
    /// As [`SwarmClient::observe`].
    pub async fn observe_stream(&self, path: &'static str) -> Result<EventStream, ClientError> {
        let opening = self.inner.http.open(path, path, 0);
        let answer = timeout(Duration::from_secs(TIMEOUT_S), opening).await;
        let answer = answer.map_err(|_| lost(self.url().to_string(), "timed out".into()))??;
        Ok(EventStream {
            answer,
            events: Events::default(),
            heard: Instant::now(),
            url: self.url().to_string(),
        })
    }
}

/// Server-sent events of one connection.
#[derive(Debug)]
pub struct EventStream {
    answer: reqwest::Response,
    events: Events,
    /// When a byte was last received.
    heard: Instant,
    url: String,
}

impl EventStream {
    /// Returns the data of the next event; `None` after the last one. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if the connection breaks or is silent for 20 s.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(data) = self.events.pop() {
                return Ok(Some(data));
            }
            let chunk = match timeout_at(self.heard + SILENCE, self.answer.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(self.lost(super::root_cause(&error))),
                Err(_) => return Err(self.lost(format!("nothing received for {} s", SILENCE.as_secs()))),
            };
            self.heard = Instant::now();
            if !self.events.push(&chunk) {
                return Err(self.lost(format!("an event is larger than {MAX_EVENT} bytes")));
            }
        }
    }

    fn lost(&self, reason: String) -> ClientError {
        lost(self.url.clone(), reason)
    }
}

fn lost(url: String, reason: String) -> ClientError {
    ClientError::Unreachable { url, reason }
}

/// Splits bytes into the data of server-sent events. Comments and other fields are skipped.
#[derive(Debug, Default)]
struct Events {
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that contain no end of a line.
    searched: usize,
    data: Vec<u8>,
}

impl Events {
    /// Adds received bytes. Returns false if an event is too large.
    fn push(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        self.buffer.len() + self.data.len() <= MAX_EVENT
    }

    /// Returns the data of the next complete event.
    fn pop(&mut self) -> Option<Vec<u8>> {
        while let Some(line) = self.line() {
            if line.is_empty() && !self.data.is_empty() {
                return Some(std::mem::take(&mut self.data));
            }
            if let Some(data) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
        }
        None
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&str]) -> Vec<String> {
        let mut events = Events::default();
        let mut told = vec![];
        for chunk in chunks {
            assert!(events.push(chunk.as_bytes()));
            while let Some(data) = events.pop() {
                told.push(String::from_utf8(data).unwrap());
            }
        }
        told
    }

    #[test]
    fn events_are_found_wherever_chunks_end() {
        let text = ": hello\n\nevent: status\ndata: {\"a\":1}\n\ndata:x\r\ndata: y\r\n\r\nid: 3\n\ndata: é\n\n";
        let want = ["{\"a\":1}", "x\ny", "é"];
        assert_eq!(events(&[text]), want);
        let (bytes, mut decoder, mut told) = (text.as_bytes(), Events::default(), vec![]);
        for byte in bytes {
            decoder.push(&[*byte]);
            told.extend(decoder.pop());
        }
        assert_eq!(told, want.map(|event| event.as_bytes().to_vec()));
        assert_eq!(events(&["data: cut"]), [""; 0]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut events = Events::default();
        assert!(events.push(b"data: "));
        assert!(!events.push(&vec![b'x'; MAX_EVENT]));
    }
}
