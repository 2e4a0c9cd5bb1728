//! HTTP calls of one endpoint.

use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::Serialize;
use serde_json::Value;
use tokio_stream::Stream;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::EndpointError;
use super::completion::{self, Chunk};
use super::logprobs::LogprobSemantics;
use crate::inference::{Bias, SamplingParams};
use crate::protocol::completions::{LoadAdapter, UnloadAdapter};

/// Environment variable with the key that endpoints require as bearer token.
pub const KEY_VARIABLE: &str = "AJET_ENDPOINT_KEY";

/// Maximum time to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum silence of an endpoint, which may queue a request before its first token.
const SILENCE: Duration = Duration::from_secs(300);
/// Maximum length of a line of an answer.
const LINE_BYTES: usize = 1 << 20;
/// Maximum length of an error message that is passed on.
const MESSAGE_CHARS: usize = 300;
/// Token of the prompt of trials, which every vocabulary has.
const TRIAL_TOKEN: u32 = 1;

/// Client of one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointClient {
    http: Client,
    /// Without a trailing slash and `/v1`.
    base: String,
    key: Option<String>,
}

impl EndpointClient {
    /// Creates a client of the endpoint at `url`, which may end in `/v1`.
    ///
    /// # Errors
    /// Returns a message if the system's certificates cannot be read.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, String> {
        // reqwest uses the process's TLS provider and panics without one. If one is already installed, that is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE);
        if url.starts_with("http://") {
            builder = builder.tls_certs_only([]);
        }
        if host(url).is_some_and(|host| is_local(&host)) {
            // A proxy from the environment cannot reach this machine's loopback address.
            builder = builder.no_proxy();
        }
        let base = url.trim_end_matches('/');
        Ok(Self {
            http: builder
                .build()
                .map_err(|error| format!("cannot make HTTPS requests: {error}"))?,
            base: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            key,
        })
    }

    /// Returns the names of models and adapters that the endpoint has.
    pub async fn models(&self) -> Result<Vec<String>, EndpointError> {
        let request = self.http.get(format!("{}/v1/models", self.base));
        let answer: Value = self.send(request).await?.json().await.map_err(unexpected)?;
        let models = answer["data"]
            .as_array()
            .ok_or_else(|| unexpected("no list of models"))?;
        let names = models.iter().filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Has the endpoint load the adapter of a directory under a name.
    pub async fn load_adapter(&self, name: &str, dir: &Path) -> Result<(), EndpointError> {
        let body = LoadAdapter {
            lora_name: name.to_owned(),
            lora_path: dir.to_owned(),
        };
        self.post("load_lora_adapter", &body).await.map(drop)
    }

    /// Has the endpoint forget an adapter.
    pub async fn unload_adapter(&self, name: &str) -> Result<(), EndpointError> {
        let lora_name = name.to_owned();
        self.post("unload_lora_adapter", &UnloadAdapter { lora_name })
            .await
            .map(drop)
    }

    /// Samples an answer. Dropping the stream cancels it.
    pub async fn complete(
        &self,
        model: &str,
        prompt: &[u32],
        sampled: &[u32],
        params: &SamplingParams,
    ) -> Result<impl Stream<Item = Result<Chunk, EndpointError>> + Send + use<>, EndpointError> {
        let top = params.top_logprobs;
        let body = completion::request(model, prompt, sampled, params);
        let bytes = self.post("completions", &body).await?.bytes_stream();
        let lines = StreamReader::new(bytes.map_err(|error| std::io::Error::other(reason(&error))));
        let lines = FramedRead::new(lines, LinesCodec::new_with_max_length(LINE_BYTES));
        let chunks = lines.filter_map(move |line| async move {
            match line {
                Ok(line) => {
                    let data = line.strip_prefix("data:")?.trim();
                    (data != "[DONE]").then(|| completion::chunk(data, top))
                }
                Err(error) => Some(Err(EndpointError::Unreachable(error.to_string()))),
            }
        });
        Ok(Box::pin(chunks))
    }

    /// Finds out what the endpoint's log-probabilities mean, by three answers of one token.
    pub async fn logprob_semantics(&self, model: &str) -> Result<LogprobSemantics, EndpointError> {
        let plain = self.trial(model, 1.0, None).await?;
        let at_temperature_2 = self.trial(model, 2.0, None).await?;
        let at_top_k_1 = self.trial(model, 1.0, Some(1)).await?;
        Ok(LogprobSemantics::from_trials(plain, at_temperature_2, at_top_k_1))
    }

    /// Returns the log-probability of the most likely token after a prompt of one token.
    async fn trial(&self, model: &str, temperature: f32, top_k: Option<usize>) -> Result<f32, EndpointError> {
        let params = SamplingParams {
            temperature,
            top_p: 1.0,
            top_k,
            min_p: 0.0,
            bias: Bias::default(),
            seed: 0,
            max_tokens: 1,
            stop_token_ids: vec![],
            top_logprobs: 1,
        };
        let mut chunks = Box::pin(self.complete(model, &[TRIAL_TOKEN], &[], &params).await?);
        while let Some(chunk) = chunks.next().await {
            if let Some((_, logprob)) = chunk?.tokens.first().and_then(|token| token.top.first()) {
                return Ok(*logprob);
            }
        }
        Err(unexpected("an answer without log-probabilities"))
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<Response, EndpointError> {
        self.send(self.http.post(format!("{}/v1/{path}", self.base)).json(body))
            .await
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, EndpointError> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = request
            .send()
            .await
            .map_err(|error| match error.is_timeout() && !error.is_connect() {
                true => EndpointError::Silent(SILENCE.as_secs()),
                false => EndpointError::Unreachable(reason(&error)),
            })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.text().await.unwrap_or_default();
        Err(EndpointError::Refused {
            status: status.as_u16(),
            message: message(&body),
        })
    }
}

fn unexpected(error: impl std::fmt::Display) -> EndpointError {
    EndpointError::Unexpected(error.to_string())
}

/// Returns the innermost cause of an error, without the URL, which may have a token.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match std::ptr::eq(cause, error as &dyn std::error::Error) {
        true => "the request failed".into(),
        false => cause.to_string(),
    }
}

/// Finds the message in the body of an error, whose form differs between servers and their versions.
fn message(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let places = [
        &json["error"]["message"],
        &json["message"],
        &json["detail"],
        &json["error"],
    ];
    let found = places.into_iter().find_map(Value::as_str).unwrap_or(body);
    found.chars().take(MESSAGE_CHARS).collect()
}

/// Returns an endpoint's URL as it is shown to people: scheme, host and port, without a token.
pub fn shown(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let shown = parsed.and_then(|url| {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{}://{}{port}", url.scheme(), url.host_str()?))
    });
    shown.unwrap_or_else(|| "invalid URL".into())
}

fn host(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_tokens_and_may_end_in_v1() {
        for (url, base, people) in [
            ("http://box2:8000", "http://box2:8000", "http://box2:8000"),
            ("http://box2:8000/v1/", "http://box2:8000", "http://box2:8000"),
            ("https://a.b/t/secret", "https://a.b/t/secret", "https://a.b"),
            (
                "http://me:secret@[::1]:1/v1",
                "http://me:secret@[::1]:1",
                "http://[::1]:1",
            ),
        ] {
            assert_eq!(EndpointClient::new(url, None).unwrap().base, base);
            assert_eq!(shown(url), people);
        }
        assert_eq!(shown("nonsense"), "invalid URL");
    }

    #[test]
    fn messages_of_errors_are_found() {
        for (body, found) in [
            (r#"{"error":{"message":"no such model","code":404}}"#, "no such model"),
            (r#"{"object":"error","message":"too long"}"#, "too long"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            ("Bad Gateway", "Bad Gateway"),
        ] {
            assert_eq!(message(body), found);
        }
    }
}
