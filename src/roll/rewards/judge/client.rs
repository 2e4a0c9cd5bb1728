//! One question to a judge, with its retries.

use std::time::Duration;

use indexmap::IndexMap;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::error::JudgeError;
use crate::client::{backoff, blank_token, http_client, retry_after, root_cause};

/// Maximum size of an answer in bytes.
const MAX_ANSWER: usize = 4 << 20;

/// A model that judges, and how it is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeModel {
    /// The name that its API knows it by.
    pub model: String,
    /// Base URL of an OpenAI-compatible API.
    pub base_url: String,
    /// Environment variable that holds its key; none for an API without keys.
    pub api_key_env: Option<String>,
    /// Further fields of the request, such as `reasoning_effort`; null leaves a field out.
    pub request: Map<String, Value>,
    /// Requests after the first one, where it fails or has no usable score.
    pub retries: u32,
    /// Time for one request.
    pub timeout: Duration,
    /// Maximum number of requests at once.
    pub max_concurrency: usize,
}

/// What an answer cost, all tries together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Requests that were sent.
    pub calls: u64,
    /// Tokens that the judge was given, as far as it says.
    pub prompt_tokens: u64,
    /// Tokens that it wrote, as far as it says.
    pub completion_tokens: u64,
}

impl Cost {
    /// As metrics, shared by `answers` answers.
    pub fn metrics(self, answers: usize) -> IndexMap<String, Value> {
        let share = |count: u64| json!(count as f64 / answers.max(1) as f64);
        [
            ("judge/calls", self.calls),
            ("judge/prompt_tokens", self.prompt_tokens),
            ("judge/completion_tokens", self.completion_tokens),
        ]
        .map(|(name, count)| (name.to_owned(), share(count)))
        .into()
    }
}

/// A judge, ready to be asked.
#[derive(Debug)]
pub struct Judge {
    http: reqwest::Client,
    model: JudgeModel,
    key: Option<String>,
    places: Semaphore,
}

/// What is read of an answer. Other servers leave out much of what OpenAI's API has.
#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Default, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

/// Why a try brought nothing.
struct Failed {
    reason: String,
    /// How long the judge wants to be left alone.
    pause: Option<Duration>,
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self { reason, pause: None }
    }
}

impl Judge {
    /// The judge with the key of the environment.
    ///
    /// # Errors
    /// Fails if the key is missing, or no HTTP client can be set up.
    pub fn new(model: JudgeModel) -> Result<Self, JudgeError> {
        let key = match &model.api_key_env {
            None => None,
            Some(variable) => match std::env::var(variable) {
                Ok(key) if !key.trim().is_empty() => Some(key.trim().to_owned()),
                _ => {
                    let variable = variable.clone();
                    return Err(JudgeError::NoKey { variable });
                }
            },
        };
        Ok(Self {
            http: http_client(&model.base_url).map_err(|error| JudgeError::Setup(error.to_string()))?,
            places: Semaphore::new(model.max_concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            model,
            key,
        })
    }

    /// Asks until an answer can be read, as often as the retries allow. `read` says what is wrong with one that cannot.
    pub(super) async fn ask<T>(
        &self,
        system: Option<&str>,
        prompt: &str,
        cost: &mut Cost,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, JudgeError> {
        let body = self.request(system, prompt);
        let tries = self.model.retries.saturating_add(1);
        let mut tried = 0;
        loop {
            tried += 1;
            cost.calls += 1;
            let answered = self.answer(&body, cost).await?;
            let failed = match answered.and_then(|text| read(&text).map_err(|why| unreadable(&why, &text))) {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            if tried >= tries {
                return Err(JudgeError::NoScore {
                    url: self.url(),
                    tries,
                    reason: failed.reason,
                });
            }
            tracing::debug!("try {tried} of the judge: {}", failed.reason);
            tokio::time::sleep(failed.pause.unwrap_or_else(|| backoff(tried))).await;
        }
    }

    fn request(&self, system: Option<&str>, prompt: &str) -> Value {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system
            .into_iter()
            .chain([json!({"role": "user", "content": prompt})])
            .collect();
        // Greedy, so that the same answer gets the same score wherever the API allows it.
        let mut body = Map::from_iter([
            ("temperature".to_owned(), json!(0)),
            ("max_tokens".to_owned(), json!(2048)),
        ]);
        body.extend(self.model.request.clone());
        body.retain(|_, value| !value.is_null());
        body.insert("model".into(), json!(self.model.model));
        body.insert("messages".into(), json!(messages));
        Value::Object(body)
    }

    /// One request. The outer error is one that no other try mends.
    async fn answer(&self, body: &Value, cost: &mut Cost) -> Result<Result<String, Failed>, JudgeError> {
        let _place = self
            .places
            .acquire()
            .await
            .map_err(|error| JudgeError::Setup(error.to_string()))?;
        let url = format!("{}/chat/completions", self.model.base_url.trim_end_matches('/'));
        let mut request = self.http.post(url).timeout(self.model.timeout).json(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(self.broken(&error))),
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = match read_body(answer).await {
            Ok(body) => body,
            Err(error) => return Ok(Err(self.broken(&error))),
        };
        let Some(body) = body else {
            return Ok(Err(format!("its answer has more than {MAX_ANSWER} bytes").into()));
        };
        if !status.is_success() {
            let detail = sentence(&body);
            if !may_pass(status) {
                let (url, status) = (self.url(), status.as_u16());
                return Err(JudgeError::Refused { url, status, detail });
            }
            return Ok(Err(Failed {
                reason: format!("it answered {status}: {detail}"),
                pause: retry_after(&headers),
            }));
        }
        Ok(read_completion(&body, cost))
    }

    fn broken(&self, error: &reqwest::Error) -> Failed {
        let timeout = self.model.timeout.as_secs_f64();
        match error.is_timeout() {
            true => format!("it did not answer within {timeout} s").into(),
            false => root_cause(error).into(),
        }
    }

    /// For messages: without the secrets that a URL may hold.
    fn url(&self) -> String {
        blank_token(&self.model.base_url)
    }
}

/// Whether the same request may succeed later.
fn may_pass(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// The whole body; `None` of one that is too large.
async fn read_body(mut answer: reqwest::Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Ok(None);
        }
    }
    Ok(Some(body))
}

fn sentence(body: &[u8]) -> String {
    // OpenAI's error object, or what other servers have in its place.
    let error: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = ["/error/message", "/message", "/detail", "/error"];
    let message = message.iter().find_map(|path| error.pointer(path)?.as_str());
    message.map_or_else(|| excerpt(&String::from_utf8_lossy(body)), str::to_owned)
}

/// The text of an answer. One that was cut may end in the middle of its score.
fn read_completion(body: &[u8], cost: &mut Cost) -> Result<String, Failed> {
    let completion: Completion = serde_json::from_slice(body)
        .map_err(|error| format!("its answer is not a chat completion: {error}: {}", sentence(body)))?;
    let usage = completion.usage.unwrap_or_default();
    cost.prompt_tokens = cost.prompt_tokens.saturating_add(usage.prompt_tokens);
    cost.completion_tokens = cost.completion_tokens.saturating_add(usage.completion_tokens);
    let choice = completion.choices.into_iter().next();
    let choice = choice.ok_or_else(|| "its answer has no choice".to_owned())?;
    if choice.finish_reason.as_deref() == Some("length") {
        return Err(
            "its answer was cut by a token limit; hint: `request: {max_tokens: …}` raises it"
                .to_owned()
                .into(),
        );
    }
    choice
        .message
        .content
        .ok_or_else(|| "its answer has no text".to_owned().into())
}

fn unreadable(why: &str, text: &str) -> Failed {
    format!("{why} in its answer {:?}", excerpt(text)).into()
}

/// The end of a long text, where a judge puts its score.
fn excerpt(text: &str) -> String {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(300);
    text.chars().skip(skipped).collect()
}
