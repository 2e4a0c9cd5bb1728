//! Request bodies, bounded in size, in time and in how much of them is held at once, with our own sentences where they
//! are wrong.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::Error;
use super::lenient_json::quote_non_finite;
use super::shared::Shared;

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
/// Bytes of bodies that are held at one time.
const HELD_BYTES: usize = 1024 * 1024 * 1024;
/// What is counted as one.
const UNIT: usize = 1024;

/// A place for a body, free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    _permit: OwnedSemaphorePermit,
}

/// Room for the bodies of all requests together.
#[derive(Debug)]
pub struct BodyRoom(Arc<Semaphore>);

impl Default for BodyRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(HELD_BYTES / UNIT)))
    }
}

impl BodyRoom {
    /// A place for a body of so many bytes.
    ///
    /// # Errors
    ///
    /// There is none at the moment.
    pub fn take(&self, bytes: usize) -> Result<Room, Error> {
        // A limit is far below 2^32 KiB.
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        match Arc::clone(&self.0).try_acquire_many_owned(units) {
            Ok(permit) => Ok(Room { _permit: permit }),
            Err(_) => Err(Error::Busy("it holds as many request bodies as it may".into())),
        }
    }
}

/// A body and its place among all that are held.
#[derive(Debug)]
pub struct Held {
    /// The whole body.
    pub bytes: Bytes,
    /// Free again when this is dropped.
    pub room: Room,
}

/// A JSON body of type `T` of at most `MOST` bytes, whatever its content type. The literals `NaN` and `Infinity` are
/// taken as strings.
pub struct JsonBody<T, const MOST: usize = CALL_BYTES>(pub T);

impl<T: DeserializeOwned, const MOST: usize> FromRequest<Arc<Shared>> for JsonBody<T, MOST> {
    type Rejection = Error;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Error> {
        let Held { bytes, room } = read(request, shared, MOST).await?;
        let parsed = parse(&quote_non_finite(&bytes)).map(Self);
        drop(room);
        parsed
    }
}

/// The whole body.
///
/// # Errors
///
/// It is larger than `limit`, too much is held already, or the client dawdled or hung up.
pub async fn read(request: Request, shared: &Shared, limit: usize) -> Result<Held, Error> {
    let told = declared_length(&request);
    if told.is_some_and(|length| length > limit as u64) {
        return Err(Error::BodyTooLarge { limit });
    }
    // A body whose length is not told may become as large as it is allowed to.
    let most = told.and_then(|length| usize::try_from(length).ok()).unwrap_or(limit);
    let room = shared.body_room.take(most)?;
    let stall = shared.options.limits.stall;
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = next_frame(&mut body, stall).await? {
        if bytes.len() + frame.len() > limit {
            return Err(Error::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&frame);
    }
    Ok(Held {
        bytes: bytes.freeze(),
        room,
    })
}

/// The next bytes of a body, which may be `stall` in coming; `None` at its end.
///
/// # Errors
///
/// The client dawdled or hung up.
pub async fn next_frame(body: &mut axum::body::Body, stall: Duration) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = tokio::time::timeout(stall, body.frame()).await;
        match frame.map_err(|_| Error::BodyStalled { limit: stall })? {
            None => return Ok(None),
            Some(Err(error)) => return Err(Error::Body(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// What the client says of the length of a body.
pub fn declared_length(request: &Request) -> Option<u64> {
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
