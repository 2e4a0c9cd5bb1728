//! Request bodies, bounded in size, in time and in how much of them is held at once ([`super::body_room`]), with our own
//! sentences where they are wrong.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::body_room::Room;
use super::error::Error;
use super::lenient_json::quote_non_finite;
use super::places::{Phase, Place};
use crate::server::shared::Shared;

/// Largest body of most swarm calls: some ids.
const CALL_BYTES: usize = 1024 * 1024;
/// Largest body of an end or an abort, in whose metadata transcripts travel.
pub const END_BYTES: usize = 64 * 1024 * 1024;
/// Largest training configuration; a whole dump of Python's has some 50 kB.
pub const CONFIG_BYTES: usize = 1024 * 1024;
/// Largest chat request.
pub const CHAT_BYTES: usize = 16 * 1024 * 1024;

/// Deepest nesting of a JSON body. The parser's own limit is 128, and what is read here is wrapped before the engine
/// reads it.
const NESTING: usize = 100;
/// Bytes of a body that are parsed on the spot, in less than a millisecond.
const PARSED_AT_ONCE: usize = 32 * 1024;
/// Minimum rate at which a body comes, in bytes per second, on top of the time that it may pause.
const RATE: u32 = 64 * 1024;

/// A whole body and its place among all that are held.
#[derive(Debug)]
pub struct Held {
    bytes: Bytes,
    /// Free again when this is dropped.
    _room: Room,
}

/// A JSON body of type `T` of at most `MOST` bytes, whatever its content type. The literals `NaN` and `Infinity` are
/// taken as strings.
pub struct JsonBody<T, const MOST: usize = CALL_BYTES>(pub T);

impl<T: DeserializeOwned + Send + 'static, const MOST: usize> FromRequest<Arc<Shared>> for JsonBody<T, MOST> {
    type Rejection = Error;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Error> {
        let held = read(request, shared, MOST).await?;
        held.parse(shared, |bytes| parse(&quote_non_finite(bytes)))
            .await
            .map(Self)
    }
}

impl Held {
    /// What `parse` makes of the body, away from the threads that serve connections if it is large.
    ///
    /// # Errors
    ///
    /// Those of `parse`, or too many large bodies are being parsed.
    pub async fn parse<T: Send + 'static>(
        self,
        shared: &Shared,
        parse: impl FnOnce(&[u8]) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.bytes.len() <= PARSED_AT_ONCE {
            return parse(&self.bytes);
        }
        let work = move || {
            // All of it: the room is free again when the bytes are.
            let held = self;
            parse(&held.bytes)
        };
        shared.parsing.run(work).await?
    }
}

/// The whole body.
///
/// # Errors
///
/// It is larger than `limit`, too much is held already, or the client dawdled or hung up.
pub async fn read(request: Request, shared: &Shared, limit: usize) -> Result<Held, Error> {
    let mut body = Incoming::new(request, limit as u64, shared.options.limits.stall)?;
    let mut room = shared.body_room.enter();
    let mut bytes = BytesMut::new();
    loop {
        let frame = tokio::select! {
            frame = body.next() => frame?,
            given_up = room.given_up() => return Err(given_up),
        };
        let Some(frame) = frame else { break };
        room.grow(frame.len())?;
        bytes.extend_from_slice(&frame);
    }
    room.complete();
    Ok(Held {
        bytes: bytes.freeze(),
        _room: room,
    })
}

/// A body that comes.
pub struct Incoming {
    body: axum::body::Body,
    place: Option<Arc<Place>>,
    limit: u64,
    stall: Duration,
    began: Instant,
    received: u64,
}

impl Incoming {
    /// The body of `request`, of at most `limit` bytes, which may pause for `stall`.
    ///
    /// # Errors
    ///
    /// It says that it is larger than `limit`.
    pub fn new(request: Request, limit: u64, stall: Duration) -> Result<Self, Error> {
        if declared_length(&request).is_some_and(|length| length > limit) {
            return Err(Error::BodyTooLarge { limit });
        }
        let place = request.extensions().get::<Arc<Place>>().cloned();
        if let Some(place) = &place {
            place.enter(Phase::Sending);
        }
        Ok(Self {
            body: request.into_body(),
            place,
            limit,
            stall,
            began: Instant::now(),
            received: 0,
        })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    ///
    /// It is too large or too slow, or the client hung up.
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
        if let Some(place) = &self.place {
            place.enter(Phase::Answering);
        }
    }
}

/// What the client says of the length of a body.
fn declared_length(request: &Request) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON of type `T`.
///
/// # Errors
///
/// What the parser says, or it is nested deeper than [`NESTING`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if nesting(bytes) > NESTING {
        return Err(Error::Body(format!("it is nested more than {NESTING} levels deep")));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::Body(error.to_string()))
}

/// How deep the objects and lists of a JSON text are nested.
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
