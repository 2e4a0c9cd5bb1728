//! Request bodies, bounded, with our own sentences where they are wrong.

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;

use super::error::Error;
use super::lenient_json::quote_non_finite;

/// Largest body of a swarm call: transcripts travel in the metadata of an end.
const CALL_BYTES: usize = 64 * 1024 * 1024;
/// Largest chat request.
pub const CHAT_BYTES: usize = 16 * 1024 * 1024;

/// A JSON body of type `T`, whatever its content type. The literals `NaN` and `Infinity` are taken as strings.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let bytes = read(request, CALL_BYTES).await?;
        parse(&quote_non_finite(&bytes)).map(Self)
    }
}

/// The whole body.
///
/// # Errors
///
/// It is larger than `limit`, or the client hung up.
pub async fn read(request: Request, limit: usize) -> Result<Bytes, Error> {
    to_bytes(request.into_body(), limit).await.map_err(|error| {
        let error = error.into_inner();
        if error.is::<LengthLimitError>() {
            Error::BodyTooLarge { limit }
        } else {
            Error::Body(error.to_string())
        }
    })
}

/// JSON of type `T`.
///
/// # Errors
///
/// What the parser says.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Body(error.to_string()))
}
