//! Access control: the server's token as bearer token or as path prefix `/t/TOKEN`, and episode keys on the model API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{Error, ModelApiError};
use super::hosts::RefusedOrigin;
use crate::server::handlers::ui;
use crate::server::shared::Shared;

/// Token found in the request's path.
#[derive(Clone)]
struct PathToken(String);

/// Removes `/t/TOKEN` from the path and collapses `//`, before the request is routed or logged.
pub fn normalise_path<B>(mut request: axum::http::Request<B>) -> axum::http::Request<B> {
    let (path, token) = normalised(request.uri().path());
    if path != request.uri().path() {
        let with_query = match request.uri().query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let mut parts = request.uri().clone().into_parts();
        // Normalising a valid path yields a valid path; otherwise the unchanged path leads to a 404.
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

/// Lets a request through, or answers 401 or 403.
pub async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let on_model_api = path.starts_with("/v1/");
    let allowed = path == "/health"
        || ui::is_page(path)
        || shared.options.token.as_ref().is_none_or(|token| {
            let in_path = request.extensions().get::<PathToken>();
            let in_headers = bearer(request.headers());
            in_path.is_some_and(|path| token.is(&path.0))
                || in_headers.is_some_and(|bearer| token.is(bearer))
                // Keys are given only to clients with the token; the handlers check what a key opens.
                || on_model_api && in_headers.is_some_and(|key| knows_key(&shared, key))
        });
    let refusal = match allowed {
        false => Error::TokenMissing,
        // A web page cannot know the token, so where one is required, no other check is needed.
        true if shared.options.token.is_some() => return next.run(request).await,
        true => match shared
            .options
            .hosts
            .check(request.method(), request.uri(), request.headers())
        {
            Ok(()) => return next.run(request).await,
            Err(RefusedOrigin::Host(host)) => Error::ForeignHost(host),
            Err(RefusedOrigin::Page) => Error::ForeignPage,
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

/// Returns the bearer token, or the `x-api-key` header that Anthropic's clients send instead.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = authorization.and_then(|value| {
        let (scheme, credentials) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(credentials.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
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
}
