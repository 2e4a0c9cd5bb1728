//! Who may come in: the server's token as bearer or as the path prefix `/t/TOKEN`, an episode's key on the model API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{Error, ModelApiError};
use super::hosts::Foreign;
use crate::server::shared::Shared;

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
