//! Request bodies, limited in size, in time and in the memory of all together ([`super::body_budget`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::body_budget::BodyReservation;
use super::connection_permits::{ConnectionPermit, Phase};
use super::error::Error;
use super::lenient_json::quote_non_finite;
use crate::server::shared::Shared;

/// Maximum body size of most swarm calls, which carry a few ids.
const CALL_BYTES: usize = 1024 * 1024;
/// Maximum body size of an end or abort, whose metadata may contain transcripts.
pub const END_BYTES: usize = 64 * 1024 * 1024;
/// Maximum size of a training configuration; a complete dump of Python's has about 50 kB.
pub const CONFIG_BYTES: usize = 1024 * 1024;
/// Maximum size of a chat request.
pub const CHAT_BYTES: usize = 16 * 1024 * 1024;

/// Maximum nesting depth of a JSON body. The parser's own limit is 128, and bodies are wrapped in other JSON before the
/// engine parses them.
const NESTING: usize = 100;
/// Maximum size of a body parsed on the calling thread, which takes less than a millisecond.
const PARSED_AT_ONCE: usize = 32 * 1024;
/// Minimum transfer rate of a body in bytes per second, on top of the allowed pause.
const RATE: u32 = 64 * 1024;

/// A complete body and its reservation in the memory budget.
#[derive(Debug)]
pub struct ReceivedBody {
    bytes: Bytes,
    /// Released on drop.
    _reservation: BodyReservation,
}

/// Extractor of a JSON body of type `T` of at most `MAX` bytes, whatever its content type. The literals `NaN` and
/// `Infinity` become strings.
pub struct JsonBody<T, const MAX: usize = CALL_BYTES>(pub T);

impl<T: DeserializeOwned + Send + 'static, const MAX: usize> FromRequest<Arc<Shared>> for JsonBody<T, MAX> {
    type Rejection = Error;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Error> {
        let held = read(request, shared, MAX).await?;
        held.parse(shared, |bytes| parse(&quote_non_finite(bytes)))
            .await
            .map(Self)
    }
}

impl ReceivedBody {
    /// Parses the body with `parse`; a large one on a blocking thread.
    ///
    /// # Errors
    ///
    /// Fails if `parse` does, or if too many large bodies are waiting to be parsed.
    pub async fn parse<T: Send + 'static>(
        self,
        shared: &Shared,
        parse: impl FnOnce(&[u8]) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.bytes.len() <= PARSED_AT_ONCE {
            return parse(&self.bytes);
        }
        let work = move || {
            // Moves all of `self`: the reservation is released together with the bytes.
            let held = self;
            parse(&held.bytes)
        };
        shared.parsing.run(work).await?
    }
}

/// Reads the whole body.
///
/// # Errors
///
/// Fails if it is larger than `limit`, the memory budget is exhausted, or the client is too slow or disconnects.
pub async fn read(request: Request, shared: &Shared, limit: usize) -> Result<ReceivedBody, Error> {
    let mut body = Incoming::new(request, limit as u64, shared.options.limits.stall)?;
    let mut reservation = shared.body_budget.enter();
    let mut bytes = BytesMut::new();
    loop {
        let frame = tokio::select! {
            frame = body.next() => frame?,
            evicted = reservation.evicted() => return Err(evicted),
        };
        let Some(frame) = frame else { break };
        reservation.grow(frame.len())?;
        bytes.extend_from_slice(&frame);
    }
    reservation.complete();
    Ok(ReceivedBody {
        bytes: bytes.freeze(),
        _reservation: reservation,
    })
}

/// A body being received.
pub struct Incoming {
    body: axum::body::Body,
    permit: Option<Arc<ConnectionPermit>>,
    limit: u64,
    stall: Duration,
    began: Instant,
    received: u64,
}

impl Incoming {
    /// Receives the body of `request`, of at most `limit` bytes, which may pause for `stall`.
    ///
    /// # Errors
    ///
    /// Fails if the declared length is larger than `limit`.
    pub fn new(request: Request, limit: u64, stall: Duration) -> Result<Self, Error> {
        if declared_length(&request).is_some_and(|length| length > limit) {
            return Err(Error::BodyTooLarge { limit });
        }
        let permit = request.extensions().get::<Arc<ConnectionPermit>>().cloned();
        if let Some(permit) = &permit {
            permit.enter(Phase::Sending);
        }
        Ok(Self {
            body: request.into_body(),
            permit,
            limit,
            stall,
            began: Instant::now(),
            received: 0,
        })
    }

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    ///
    /// Fails if the body is too large or too slow, or the client disconnected.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let stalled = Instant::now() + self.stall;
            let slow = self.began + self.stall + Duration::from_secs(self.received / u64::from(RATE));
            let frame = tokio::time::timeout_at(stalled.min(slow), self.body.frame()).await;
            let frame = frame.map_err(|_| match stalled <= slow {
                true => Error::BodyStalled { limit: self.stall },
                false => Error::BodySlow { rate: RATE },
            })?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::Body(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.received += bytes.len() as u64;
                        let within = self.received <= self.limit;
                        return within
                            .then_some(Some(bytes))
                            .ok_or(Error::BodyTooLarge { limit: self.limit });
                    }
                }
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit {
            permit.enter(Phase::Answering);
        }
    }
}

/// Returns the body length declared by the client.
fn declared_length(request: &Request) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Parses JSON of type `T`.
///
/// # Errors
///
/// Fails if it is invalid or nested deeper than [`NESTING`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if nesting(bytes) > NESTING {
        return Err(Error::Body(format!("nested more than {NESTING} levels deep")));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::Body(error.to_string()))
}

/// Returns the nesting depth of a JSON text.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn nesting_counts_what_is_open_at_once_outside_of_strings() {
        for (json, levels) in [
            ("1", 0),
            (r#"{"a": [1, {}], "b": [[]]}"#, 3),
            (r#"["[[[", "\\\"[[", {"]": "}"}]"#, 2),
            ("]]]][", 1),
        ] {
            assert_eq!(nesting(json.as_bytes()), levels, "{json}");
        }
    }

    // Seen in the fuzz harness, seed 2: a chat body that the server could just read and the engine, for which it is
    // wrapped in a call, could not.
    #[test]
    fn a_body_leaves_room_for_what_it_is_wrapped_in() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let read: Value = parse(nested(NESTING).as_bytes()).unwrap();
        let wrapped = serde_json::json!({"call": {"request": [read]}}).to_string();
        assert!(serde_json::from_str::<Value>(&wrapped).is_ok());
        let told = parse::<Value>(nested(NESTING + 1).as_bytes()).unwrap_err().to_string();
        assert!(told.contains("more than 100 levels deep"), "{told}");
    }
}
