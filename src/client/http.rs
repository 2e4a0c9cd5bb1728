//! HTTP calls with retries.

use std::time::Duration;

use rand::Rng;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ClientError, ServerUrl};
use crate::protocol::swarm::{CLIENT_HEADER, ErrorDetail, TOKEN_VARIABLE, understand};

/// When to retry a call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// After any error: repeating the call has no further effect.
    Idempotent,
    /// Only if the connection was refused, so that the server never received the call.
    Unsent,
}

/// Path and policy of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub path: &'static str,
    pub timeout: Duration,
    pub retry: Retry,
}

impl Call {
    pub const fn new(path: &'static str, timeout_s: u64, retry: Retry) -> Self {
        let timeout = Duration::from_secs(timeout_s);
        Self { path, timeout, retry }
    }

    /// Returns whether the same call may succeed later. A Python server answers 500 to a claim if an episode has just
    /// gone.
    fn is_worth_another_try(self, result: &reqwest::Result<reqwest::Response>) -> bool {
        let idempotent = self.retry == Retry::Idempotent;
        match result.as_ref().map(reqwest::Response::status) {
            Ok(status) => is_busy(status) || (status == StatusCode::INTERNAL_SERVER_ERROR && idempotent),
            Err(error) => error.is_connect() || idempotent,
        }
    }
}

/// Time for which idle connections are reused. Python servers close theirs after 5 s, but a forked trainer keeps its
/// copy open: a call sent on such a connection is never answered.
const KEEP_IDLE: Duration = Duration::from_secs(3);

/// Maximum number of attempts: about six seconds, enough for a restarting server.
pub(super) const TRIES: u32 = 6;

/// Minimum delay before a retry, also if the server asks for none.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// Connections to one server.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    pub url: ServerUrl,
}

impl Http {
    pub fn new(url: ServerUrl) -> Result<Self, ClientError> {
        Ok(Self {
            client: http_client(&url.join(""))?,
            url,
        })
    }

    /// Returns the connections, for other kinds of calls.
    pub fn client(&self) -> reqwest::Client {
        self.client.clone()
    }

    pub async fn get<A: DeserializeOwned>(&self, call: Call) -> Result<A, ClientError> {
        self.send(Method::GET, call, None::<&()>).await
    }

    /// As [`Http::get`], without retries.
    pub async fn get_once<A: DeserializeOwned>(&self, call: Call) -> Result<A, ClientError> {
        let request = self.request(Method::GET, call, None::<&()>);
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(call, answer).await
    }

    /// Reads a resource below the call's path and with a query, in at most `tries` attempts.
    pub async fn get_below<A: DeserializeOwned>(
        &self,
        call: Call,
        tries: u32,
        below: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<A, ClientError> {
        let mut url = reqwest::Url::parse(&self.url.join(call.path)).map_err(|error| ClientError::Unreachable {
            url: self.url.to_string(),
            reason: error.to_string(),
        })?;
        extend(&mut url, below, query);
        let request = || self.request_to(Method::GET, url.clone(), call.timeout);
        let answer = send_with_retries(tries, request, |result| call.is_worth_another_try(result)).await;
        self.read(call, answer.map_err(|error| self.unreachable(&error))?).await
    }

    pub async fn post<A: DeserializeOwned>(&self, call: Call, body: &impl Serialize) -> Result<A, ClientError> {
        self.send(Method::POST, call, Some(body)).await
    }

    pub async fn delete<A: DeserializeOwned>(&self, call: Call) -> Result<A, ClientError> {
        self.send(Method::DELETE, call, None::<&()>).await
    }

    /// Posts bytes other than JSON, without retries.
    pub async fn post_bytes<A: DeserializeOwned>(
        &self,
        call: Call,
        content_type: &str,
        body: bytes::Bytes,
    ) -> Result<A, ClientError> {
        let request = self.request(Method::POST, call, None::<&()>);
        let request = request.header(reqwest::header::CONTENT_TYPE, content_type).body(body);
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(call, answer).await
    }

    /// Opens a file at an offset in bytes, without retries and without a time limit. `call` names it in errors.
    pub async fn open(&self, call: &'static str, path: &str, offset: u64) -> Result<reqwest::Response, ClientError> {
        let request = self.client.get(self.url.join(path));
        let request = request.header(CLIENT_HEADER, env!("CARGO_PKG_VERSION"));
        let request = match offset {
            0 => request,
            offset => request.header(reqwest::header::RANGE, format!("bytes={offset}-")),
        };
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        match answer.status().is_success() {
            true => Ok(answer),
            false => Err(self.refusal(call, answer).await?),
        }
    }

    async fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        call: Call,
        body: Option<&impl Serialize>,
    ) -> Result<A, ClientError> {
        let request = || self.request(method.clone(), call, body);
        let answer = send_with_retries(TRIES, request, |result| call.is_worth_another_try(result)).await;
        self.read(call, answer.map_err(|error| self.unreachable(&error))?).await
    }

    fn request(&self, method: Method, call: Call, body: Option<&impl Serialize>) -> reqwest::RequestBuilder {
        let request = self.request_to(method, self.url.join(call.path), call.timeout);
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    fn request_to(&self, method: Method, url: impl reqwest::IntoUrl, timeout: Duration) -> reqwest::RequestBuilder {
        let request = self.client.request(method, url).timeout(timeout);
        request.header(CLIENT_HEADER, env!("CARGO_PKG_VERSION"))
    }

    async fn read<A: DeserializeOwned>(&self, call: Call, answer: reqwest::Response) -> Result<A, ClientError> {
        if !answer.status().is_success() {
            return Err(self.refusal(call.path, answer).await?);
        }
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        understand(&body).map_err(|error| ClientError::Answer {
            url: self.url.to_string(),
            call: call.path,
            reason: format!("{error}: {}", excerpt(&body)),
        })
    }

    /// Reads the server's message.
    async fn refusal(&self, call: &'static str, answer: reqwest::Response) -> Result<ClientError, ClientError> {
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        let detail = match serde_json::from_slice::<ErrorDetail>(&body) {
            Ok(error) => error.detail,
            Err(_) => excerpt(&body),
        };
        let detail = with_our_options(status, detail);
        Ok(ClientError::Refused { call, status, detail })
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable {
            url: self.url.to_string(),
            reason: root_cause(error),
        }
    }
}

/// Adds a path segment and a query to a URL.
fn extend(url: &mut reqwest::Url, below: Option<&str>, query: &[(&str, &str)]) {
    // A server's URL has an authority, so it has segments.
    if let (Some(below), Ok(mut segments)) = (below, url.path_segments_mut()) {
        segments.push(below);
    }
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
}

/// Creates an HTTP client for one base URL.
///
/// # Errors
/// [`ClientError::Setup`] if the system's certificates cannot be read; not needed for plain HTTP.
pub fn http_client(base_url: &str) -> Result<reqwest::Client, ClientError> {
    // reqwest uses the process's TLS provider and panics without one. If one is already installed, that is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .pool_idle_timeout(KEEP_IDLE);
    if base_url.starts_with("http://") {
        builder = builder.tls_certs_only([]);
    }
    if ServerUrl::parse(base_url).is_ok_and(|url| url.is_local()) {
        // A proxy from the environment cannot reach this machine's loopback address.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| ClientError::Setup(root_cause(&error)))
}

/// Sends a request at most `tries` times, as long as its result is worth another try. Waits as long as the server asks,
/// or longer with every attempt.
pub(super) async fn send_with_retries(
    tries: u32,
    request: impl Fn() -> reqwest::RequestBuilder,
    is_worth_another_try: impl Fn(&reqwest::Result<reqwest::Response>) -> bool,
) -> reqwest::Result<reqwest::Response> {
    let mut tried = 1;
    loop {
        let result = request().send().await;
        if tried >= tries || !is_worth_another_try(&result) {
            return result;
        }
        let asked = result.ok().and_then(|answer| retry_after(answer.headers()));
        tokio::time::sleep(asked.unwrap_or_else(|| backoff(tried)).max(MIN_PAUSE)).await;
        tried += 1;
    }
}

/// Returns whether the server asks for a retry. A restarting engine also answers 503.
pub(super) fn is_busy(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Returns the server's `Retry-After` in seconds, with jitter so that clients do not return all at once.
pub fn retry_after(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(jitter(Duration::from_secs(seconds.min(30))))
}

/// Returns the delay before a retry: 0.2 s doubled with every attempt, at most 5 s, with jitter.
pub fn backoff(tried: u32) -> Duration {
    let seconds = 0.2 * f64::from(1 << tried.saturating_sub(1).min(10));
    jitter(Duration::from_secs_f64(seconds.min(5.0)))
}

/// Returns a random duration between the given one and 1.5 times it.
pub(super) fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(1.0..1.5))
}

/// Returns the innermost error of a chain, such as "connection refused"; the outer ones repeat the URL, which may
/// contain a token.
pub fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "timed out".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) => "the connection was lost".into(),
        None => cause.to_string(),
    }
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(300).collect()
}

/// The server's hint about its token is for all clients; ours have options for it.
fn with_our_options(status: u16, detail: String) -> String {
    match detail.split_once("; hint: ") {
        Some((what, _)) if status == 401 => {
            format!("{what}; hint: pass --token TOKEN or --token-file FILE, or set {TOKEN_VARIABLE}")
        }
        _ => detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_token_is_told_with_our_options() {
        let said = "this server requires an access token; hint: put /t/TOKEN before the URL's path";
        assert_eq!(
            with_our_options(401, said.into()),
            "this server requires an access token; hint: pass --token TOKEN or --token-file FILE, or set AJET_SWARM_TOKEN"
        );
        assert_eq!(with_our_options(403, said.into()), said);
        assert_eq!(with_our_options(401, "no".into()), "no");
    }

    #[test]
    fn what_users_type_stays_within_its_part_of_the_url() {
        let mut url = reqwest::Url::parse("http://box:1/t/token/episodes").unwrap();
        extend(
            &mut url,
            Some("../a b?c"),
            &[("task", "x&limit=9 é"), ("sort", "-ended")],
        );
        assert_eq!(
            url.as_str(),
            "http://box:1/t/token/episodes/..%2Fa%20b%3Fc?task=x%26limit%3D9+%C3%A9&sort=-ended"
        );
    }

    #[test]
    fn pauses_grow_are_bounded_and_differ() {
        for (tried, low, high) in [(1, 0.2, 0.3), (3, 0.8, 1.2), (30, 5.0, 7.5)] {
            let pause = backoff(tried).as_secs_f64();
            assert!((low..=high).contains(&pause), "{tried}: {pause}");
        }
        assert_ne!(backoff(5), backoff(5));
    }
}
