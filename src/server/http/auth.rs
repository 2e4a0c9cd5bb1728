//! Who may come in: the server's token as bearer or as the path prefix `/t/TOKEN`, an episode's key on the model API.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rand::Rng;
use sha2::{Digest, Sha256};

use super::error::{Error, ModelApiError};
use super::hosts::Foreign;
use crate::server::shared::Shared;

pub use crate::protocol::swarm::TOKEN_VARIABLE;

/// A server's token. Only its digest is kept; it is never shown.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// Why something cannot be a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It would be guessed.
    #[error("a token has at least {MIN_TOKEN_LENGTH} characters, this one has {0}")]
    TooShort(usize),
    /// It could not stand in a path.
    #[error("a token is made of letters, digits and -._~ (it may stand in a URL), this one contains {0:?}")]
    Character(char),
}

const MIN_TOKEN_LENGTH: usize = 8;

impl Token {
    /// A token, without the white space around it.
    ///
    /// # Errors
    ///
    /// It is too short, or has characters that cannot stand in a URL's path.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() < MIN_TOKEN_LENGTH {
            return Err(TokenError::TooShort(text.len()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        match text.chars().find(|&c| !allowed(c)) {
            Some(c) => Err(TokenError::Character(c)),
            None => Ok(Self(Sha256::digest(text).into())),
        }
    }

    /// A token that cannot be guessed, and its text.
    pub fn random() -> (Self, String) {
        let text = hex(&rand::rng().random::<[u8; 16]>());
        (Self(Sha256::digest(&text).into()), text)
    }

    /// Compares digests, and all of their bytes, so that the time it takes tells nothing about the token.
    fn is(&self, candidate: &str) -> bool {
        let digest = Sha256::digest(candidate);
        let differing = digest.iter().zip(self.0).fold(0, |bits, (a, b)| bits | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The token that stood in a request's path.
#[derive(Clone)]
struct PathToken(String);

/// Takes the token out of `/t/TOKEN/…` and makes `//` one slash, before the request is routed or logged.
pub fn normalise_path<B>(mut request: axum::http::Request<B>) -> axum::http::Request<B> {
    let (path, token) = normalised(request.uri().path());
    if path != request.uri().path() {
        let with_query = match request.uri().query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let mut parts = request.uri().clone().into_parts();
        // What is left of a valid path is a valid path; if not, the old one leads to a 404.
        if let Ok(path) = PathAndQuery::try_from(with_query) {
            parts.path_and_query = Some(path);
            if let Ok(uri) = Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
        }
    }
    if let Some(token) = token {
        request.extensions_mut().insert(PathToken(token));
    }
    request
}

fn normalised(path: &str) -> (String, Option<String>) {
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let token = match segments[..] {
        ["t", token, ..] => {
            segments.drain(..2);
            Some(token.to_owned())
        }
        _ => None,
    };
    (format!("/{}", segments.join("/")), token)
}

/// Lets a request in, or answers 401 or 403.
pub async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let on_model_api = path.starts_with("/v1/");
    let allowed = path == "/health"
        || shared.options.token.as_ref().is_none_or(|token| {
            let in_path = request.extensions().get::<PathToken>();
            let in_headers = bearer(request.headers());
            in_path.is_some_and(|path| token.is(&path.0))
                || in_headers.is_some_and(|bearer| token.is(bearer))
                // A key was given out to someone who had the token; the handlers check what it opens.
                || on_model_api && in_headers.is_some_and(|key| knows_key(&shared, key))
        });
    let refusal = match allowed {
        false => Error::TokenMissing,
        // A page has no token, so where there is one, it needs no other check.
        true if shared.options.token.is_some() => return next.run(request).await,
        true => match shared
            .options
            .hosts
            .check(request.method(), request.uri(), request.headers())
        {
            Ok(()) => return next.run(request).await,
            Err(Foreign::Host(host)) => Error::ForeignHost(host),
            Err(Foreign::Page) => Error::ForeignPage,
        },
    };
    match on_model_api {
        true => ModelApiError(refusal).into_response(),
        false => refusal.into_response(),
    }
}

fn knows_key(shared: &Shared, key: &str) -> bool {
    shared.with(|core, _| core.check_key(key)) != Err(Error::KeyUnknown)
}

/// The bearer token, or what Anthropic's clients send in its place.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = authorization.and_then(|value| {
        let (scheme, credentials) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(credentials.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_token_and_doubled_slashes() {
        for (path, left, token) in [
            ("/claim_episode", "/claim_episode", None),
            ("//claim_episode", "/claim_episode", None),
            ("/t/secret-1/claim_episode", "/claim_episode", Some("secret-1")),
            ("//t//secret-1//v1//models", "/v1/models", Some("secret-1")),
            ("/t/secret-1", "/", Some("secret-1")),
            ("/t", "/t", None),
            ("/", "/", None),
        ] {
            assert_eq!(normalised(path), (left.to_owned(), token.map(str::to_owned)), "{path}");
        }
        let request = axum::http::Request::get("/t/secret-1//a/b?c=//d").body(()).unwrap();
        assert_eq!(normalise_path(request).uri(), "/a/b?c=//d");
    }

    #[test]
    fn tokens_are_compared_whole_and_never_shown() {
        let token = Token::new(" long-enough\n").unwrap();
        assert!(token.is("long-enough"));
        assert!(!token.is("long-enougH") && !token.is("") && !token.is("long-enough-and-more"));
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert!(matches!(Token::new("short"), Err(TokenError::TooShort(5))));
        assert!(matches!(Token::new("with/a/slash"), Err(TokenError::Character('/'))));
    }
}
