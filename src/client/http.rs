//! One HTTP call with its retries.

use std::time::Duration;

use rand::Rng;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ClientError, ServerUrl};
use crate::protocol::swarm::{CLIENT_HEADER, ErrorDetail, understand};

/// When a call that brought no answer is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Whatever broke: doing it twice is doing it once.
    Idempotent,
    /// Only where the connection was refused, so that the server never saw it.
    Unsent,
}

/// What is called and how.
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

    /// Whether the same call may go through later. A claim meets 500 on a Python server where an episode has just gone.
    fn is_worth_another_try(self, status: StatusCode) -> bool {
        is_busy(status) || (status == StatusCode::INTERNAL_SERVER_ERROR && self.retry == Retry::Idempotent)
    }
}

/// How long an idle connection is kept for another call. Python servers close theirs after 5 s, but the trainer that
/// they fork holds its copy open: a call sent into one is never answered.
const KEEP_IDLE: Duration = Duration::from_secs(3);

/// Tries of a call in all: about six seconds of a server that is being restarted.
const TRIES: u32 = 6;

/// The connections to one server.
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

    /// The connections, for calls of another shape.
    pub fn client(&self) -> reqwest::Client {
        self.client.clone()
    }

    pub async fn get<A: DeserializeOwned>(&self, call: Call) -> Result<A, ClientError> {
        self.send(Method::GET, call, None::<&()>).await
    }

    /// As [`Http::get`], without a second try.
    pub async fn get_once<A: DeserializeOwned>(&self, call: Call) -> Result<A, ClientError> {
        let request = self.request(Method::GET, call, None::<&()>);
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.read(call, answer).await
    }

    pub async fn post<A: DeserializeOwned>(&self, call: Call, body: &impl Serialize) -> Result<A, ClientError> {
        self.send(Method::POST, call, Some(body)).await
    }

    /// Posts bytes of another kind than JSON, without a second try.
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

    async fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        call: Call,
        body: Option<&impl Serialize>,
    ) -> Result<A, ClientError> {
        let mut tried = 1;
        loop {
            let pause = match self.request(method.clone(), call, body).send().await {
                Ok(answer) if tried < TRIES && call.is_worth_another_try(answer.status()) => {
                    retry_after(answer.headers()).unwrap_or_else(|| backoff(tried))
                }
                Ok(answer) => return self.read(call, answer).await,
                Err(error) if tried < TRIES && (call.retry == Retry::Idempotent || error.is_connect()) => {
                    backoff(tried)
                }
                Err(error) => return Err(self.unreachable(&error)),
            };
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }

    fn request(&self, method: Method, call: Call, body: Option<&impl Serialize>) -> reqwest::RequestBuilder {
        let request = self.client.request(method, self.url.join(call.path));
        let request = request
            .timeout(call.timeout)
            .header(CLIENT_HEADER, env!("CARGO_PKG_VERSION"));
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    async fn read<A: DeserializeOwned>(&self, call: Call, answer: reqwest::Response) -> Result<A, ClientError> {
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            let detail = match serde_json::from_slice::<ErrorDetail>(&body) {
                Ok(error) => error.detail,
                Err(_) => excerpt(&body),
            };
            return Err(ClientError::Refused {
                call: call.path,
                status: status.as_u16(),
                detail,
            });
        }
        understand(&body).map_err(|error| ClientError::Answer {
            url: self.url.to_string(),
            call: call.path,
            reason: format!("{error}: {}", excerpt(&body)),
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable {
            url: self.url.to_string(),
            reason: root_cause(error),
        }
    }
}

/// An HTTP client for one base URL.
///
/// # Errors
/// [`ClientError::Setup`] where the system's certificates cannot be read; plain HTTP asks for none.
pub fn http_client(base_url: &str) -> Result<reqwest::Client, ClientError> {
    // reqwest takes the process's TLS provider and panics without one. A second call finds one installed, which is
    // as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .pool_idle_timeout(KEEP_IDLE);
    if base_url.starts_with("http://") {
        builder = builder.tls_certs_only([]);
    }
    if ServerUrl::parse(base_url).is_ok_and(|url| url.is_local()) {
        // A proxy of the environment cannot reach this machine's loopback.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| ClientError::Setup(root_cause(&error)))
}

/// Whether the server asks to come again. 503 is also what an engine that is restarted answers.
pub(super) fn is_busy(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// The server's wish, in whole seconds, with jitter on top so that clients do not come back all at once.
pub(super) fn retry_after(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(jitter(Duration::from_secs(seconds.min(30))))
}

/// 0.2 s doubled with every try, at most 5 s, with jitter.
pub(super) fn backoff(tried: u32) -> Duration {
    let seconds = 0.2 * f64::from(1 << tried.saturating_sub(1).min(10));
    jitter(Duration::from_secs_f64(seconds.min(5.0)))
}

/// Somewhere from the duration to half as long again.
pub(super) fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(1.0..1.5))
}

/// What lies at the bottom of a chain of errors, such as "connection refused"; the chain above it repeats the URL,
/// which may hold a token.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) => "the connection broke".into(),
        None => cause.to_string(),
    }
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_are_bounded_and_differ() {
        for (tried, low, high) in [(1, 0.2, 0.3), (3, 0.8, 1.2), (30, 5.0, 7.5)] {
            let pause = backoff(tried).as_secs_f64();
            assert!((low..=high).contains(&pause), "{tried}: {pause}");
        }
        assert_ne!(backoff(5), backoff(5));
    }
}
