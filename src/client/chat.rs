//! Client of the model API, with the retries of the usual SDKs.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::json;

use super::ClientError;
use super::http::{http_client, is_busy, root_cause, send_with_retries};
use super::url::blank_token;
use crate::protocol::anthropic::TokenCount;
use crate::protocol::openai::{ChatCompletion, ChatMessage, ChatRequest, ErrorBody};
use crate::protocol::swarm::EpisodeConversations;

/// Maximum number of attempts.
const TRIES: u32 = 8;

/// Client of an OpenAI-compatible model with base URL and key; an episode's ([`super::Episode::model`]) or any other.
#[derive(Clone)]
pub struct ModelApi {
    http: reqwest::Client,
    base_url: String,
    api_key: String,
    /// Whether it is a swarm server's.
    is_swarm: bool,
}

impl ModelApi {
    /// Creates a client of the model at `base_url`, which usually ends in `/v1`.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub fn new(base_url: &str, api_key: &str) -> Result<Self, ClientError> {
        Ok(Self {
            http: http_client(base_url)?,
            base_url: base_url.trim_end_matches('/').to_string(),
            api_key: api_key.to_string(),
            is_swarm: false,
        })
    }

    /// Creates a client that shares connections.
    pub(super) fn sharing(http: reqwest::Client, base_url: String, api_key: String) -> Self {
        Self {
            http,
            base_url,
            api_key,
            is_swarm: true,
        }
    }

    /// Returns the `base_url` for OpenAI clients.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Returns the `api_key` for OpenAI clients.
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// Requests a chat completion. Retries while the model is busy (429, 503 and similar); waits for slow answers.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the API's message, [`ClientError::Unreachable`], [`ClientError::Answer`].
    pub async fn chat(&self, request: &ChatRequest) -> Result<ChatCompletion, ClientError> {
        const CALL: &str = "/chat/completions";
        // OpenAI's API requires a model name; a swarm server accepts any and echoes it.
        let request = match request.model {
            Some(_) => Cow::Borrowed(request),
            None => Cow::Owned(ChatRequest {
                model: Some("default".into()),
                ..request.clone()
            }),
        };
        self.answer(CALL, || self.http.post(self.to(CALL)).json(&request)).await
    }

    /// Number of prompt tokens of a request with these messages, by a swarm server's model.
    ///
    /// # Errors
    /// [`ClientError::Refused`], where the messages cannot be rendered or the server does not count;
    /// [`ClientError::Unreachable`], [`ClientError::Answer`].
    pub async fn count_tokens(&self, messages: &[ChatMessage]) -> Result<u64, ClientError> {
        const CALL: &str = "/messages/count_tokens";
        let (system, others): (Vec<_>, Vec<_>) = messages.iter().partition(|message| message.role == "system");
        let system = system.iter().filter_map(|message| message.content.as_str());
        let others = others
            .iter()
            .map(|message| json!({"role": message.role, "content": message.content}));
        let mut request = json!({"model": "default", "messages": others.collect::<Vec<_>>()});
        let system = system.collect::<Vec<_>>().join("\n\n");
        if !system.is_empty() {
            request["system"] = system.into();
        }
        let counted: TokenCount = self
            .answer(CALL, || self.http.post(self.to(CALL)).json(&request))
            .await?;
        Ok(counted.input_tokens)
    }

    /// Returns the episode's conversations so far, as the server recorded them. Counts as activity of the episode.
    ///
    /// # Errors
    /// [`ClientError::Refused`], with 404 from servers that do not record; [`ClientError::Unreachable`],
    /// [`ClientError::Answer`].
    pub async fn conversations(&self) -> Result<EpisodeConversations, ClientError> {
        const CALL: &str = "/episode/conversations";
        self.answer(CALL, || self.http.get(self.to(CALL))).await
    }

    fn to(&self, call: &str) -> String {
        format!("{}{call}", self.base_url)
    }

    /// Creates a POST request.
    pub(super) fn post(&self, call: &str) -> reqwest::RequestBuilder {
        self.http.post(self.to(call))
    }

    /// Returns the answer to a call, retrying while the model is busy or unreachable.
    async fn answer<A: DeserializeOwned>(
        &self,
        call: &'static str,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<A, ClientError> {
        let answer = self.begin(call, request).await?;
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body).map_err(|error| self.unexpected(call, error.to_string()))
    }

    /// Returns the answer to a call, whose body is not read yet; retries as [`ModelApi::answer`] does.
    pub(super) async fn begin(
        &self,
        call: &'static str,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        let request = || request().bearer_auth(&self.api_key);
        let answer = send_with_retries(TRIES, request, |result| match result {
            Ok(answer) => is_busy(answer.status()),
            Err(error) => error.is_connect(),
        });
        let answer = answer.await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        let detail = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => error.error.message,
            Err(_) => String::from_utf8_lossy(&body).chars().take(300).collect(),
        };
        Err(self.refused(call, status.as_u16(), detail))
    }

    pub(super) fn unexpected(&self, call: &'static str, reason: String) -> ClientError {
        ClientError::Answer {
            url: blank_token(&self.base_url),
            call,
            reason,
        }
    }

    pub(super) fn refused(&self, call: &'static str, status: u16, detail: String) -> ClientError {
        match self.is_swarm {
            true => ClientError::Refused { call, status, detail },
            false => ClientError::Api {
                url: blank_token(&self.base_url),
                call,
                status,
                detail,
            },
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        self.unreachable_because(root_cause(error))
    }

    pub(super) fn unreachable_because(&self, reason: String) -> ClientError {
        let url = blank_token(&self.base_url);
        match self.is_swarm {
            true => ClientError::Unreachable { url, reason },
            false => ClientError::ApiUnreachable { url, reason },
        }
    }
}

impl std::fmt::Debug for ModelApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelApi({})", blank_token(&self.base_url))
    }
}
