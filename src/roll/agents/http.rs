//! The agent that is a service of the user's: it gets the task by HTTP, runs the episode and answers.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::request::EpisodeRequest;
use super::{Access, AgentError, Rollout, answer};
use crate::client::{blank_token, http_client, root_cause};
use crate::config::Problem;
use crate::roll::tasks::Task;

/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 8 << 20;

/// `roll.agent` of type `http`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where the task is posted to, such as `http://localhost:9000/episode`.
    url: String,
    /// Headers of the request, such as `authorization: "Bearer ${TOKEN}"`.
    #[serde(default)]
    headers: IndexMap<String, String>,
    /// Maximum seconds of an episode, after which the request is cancelled.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
    #[serde(skip)]
    client: OnceLock<reqwest::Client>,
}

fn default_timeout() -> f64 {
    600.0
}

/// Why a service returned no answer.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The connection failed.
    #[error("cannot reach the agent at {url}: {reason}")]
    Unreachable {
        /// The service, without secrets.
        url: String,
        /// The system's reason.
        reason: String,
    },
    /// It took too long.
    #[error("the agent at {url} did not answer within {seconds} s")]
    Timeout {
        /// The service, without secrets.
        url: String,
        /// The limit.
        seconds: f64,
    },
    /// Its status says that it failed.
    #[error("the agent at {url} answered with status {status}: {body}")]
    Status {
        /// The service, without secrets.
        url: String,
        /// The status.
        status: u16,
        /// The beginning of its answer.
        body: String,
    },
}

impl Http {
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = vec![];
        match reqwest::Url::parse(&self.url) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => {}
            _ => problems.push(Problem::new(
                "roll.agent.url",
                format!("{:?} is not an http:// or https:// URL", self.url),
            )),
        }
        for (name, value) in &self.headers {
            let is_valid = reqwest::header::HeaderName::try_from(name).is_ok()
                && reqwest::header::HeaderValue::try_from(value).is_ok();
            if !is_valid {
                // The value may be a secret.
                problems.push(Problem::new(
                    format!("roll.agent.headers.{name}"),
                    "its name or value cannot stand in an HTTP header",
                ));
            }
        }
        problems
    }

    fn client(&self) -> Result<reqwest::Client, AgentError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = http_client(&self.url)?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let mut request = self.client()?.post(&self.url).json(&EpisodeRequest::new(task, access));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let timeout = Duration::from_secs_f64(self.timeout);
        match tokio::time::timeout(timeout, self.exchange(request)).await {
            Ok(body) => {
                let object: Result<Map<String, Value>, _> = serde_json::from_slice(&body?);
                let wrong = |reason| AgentError::Answer(format!("no JSON object as its body ({reason})"));
                answer::in_object(object.map_err(wrong)?)
            }
            Err(_) => Err(AgentError::Service(ServiceError::Timeout {
                url: self.shown(),
                seconds: self.timeout,
            })),
        }
    }

    /// The whole answer to a request; dropping the future cancels it.
    async fn exchange(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, AgentError> {
        let unreachable = |error: reqwest::Error| ServiceError::Unreachable {
            url: self.shown(),
            reason: root_cause(&error),
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let (mut body, mut chunks) = (vec![], answer.bytes_stream());
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(unreachable)?);
            if body.len() > ANSWER_BYTES {
                return Err(AgentError::Answer(format!("a body of more than {ANSWER_BYTES} bytes")));
            }
        }
        match status.is_success() {
            true => Ok(body),
            false => Err(AgentError::Service(ServiceError::Status {
                url: self.shown(),
                status: status.as_u16(),
                body: answer::short(String::from_utf8_lossy(&body).trim()),
            })),
        }
    }

    /// The URL without secrets.
    fn shown(&self) -> String {
        blank_token(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, http::StatusCode, routing::post};
    use serde_json::json;

    use super::*;
    use crate::client::ModelApi;
    use crate::roll::job::test_section;

    fn access() -> Access {
        Access {
            model: ModelApi::new("http://localhost:1/v1", "sk-1").unwrap(),
            model_name: "m".into(),
            episode_uuid: "e".into(),
            is_recorded: false,
            max_completion_tokens: None,
            models: indexmap::IndexMap::new(),
        }
    }

    /// A service that does what the task says.
    async fn service() -> String {
        async fn episode(Json(request): Json<Value>) -> (StatusCode, String) {
            match request["task"]["main_query"].as_str().unwrap() {
                "fail" => (StatusCode::INTERNAL_SERVER_ERROR, "the tool broke".into()),
                "garbage" => (StatusCode::OK, "<html>".into()),
                "hang" => std::future::pending().await,
                "text" => (StatusCode::OK, json!({"reward": "1"}).to_string()),
                _ => (StatusCode::OK, json!({"reward": 0.5, "output": request}).to_string()),
            }
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/episode", listener.local_addr().unwrap());
        let router = Router::new().route("/episode", post(episode));
        tokio::spawn(async { axum::serve(listener, router).await });
        url
    }

    async fn run(url: &str, query: &str) -> Result<Rollout, AgentError> {
        let agent: Http = test_section("roll.agent", &format!("{{url: '{url}', timeout: 0.3}}"));
        assert!(agent.problems().is_empty());
        let task = Task {
            main_query: query.into(),
            ..Task::default()
        };
        agent.run(&task, &access()).await
    }

    #[tokio::test]
    async fn a_service_gets_task_and_model_and_its_answer_comes_back() {
        let rollout = run(&service().await, "hi").await.unwrap();
        assert_eq!(rollout.reward, Some(0.5));
        let request: Value = serde_json::from_str(&rollout.output).unwrap();
        assert_eq!(request["task"]["main_query"], "hi");
        assert_eq!(request["base_url"], "http://localhost:1/v1");
        assert_eq!(request["anthropic_base_url"], "http://localhost:1");
        let named = [&request["api_key"], &request["model"], &request["episode_uuid"]];
        assert_eq!(named, ["sk-1", "m", "e"]);
        assert_eq!(request["seed"], Task::default().seed());
    }

    #[tokio::test]
    async fn failures_of_a_service_have_reasons() {
        let url = service().await;
        for (url, query, reason, message) in [
            (url.as_str(), "fail", "agent_failed", "status 500: the tool broke"),
            (&url, "garbage", "bad_answer", "no JSON object as its body"),
            (&url, "hang", "agent_timeout", "did not answer within 0.3 s"),
            (&url, "text", "bad_reward", "the reward \"1\""),
            (
                "http://127.0.0.1:1/",
                "",
                "agent_unreachable",
                "cannot reach the agent at http://127.0.0.1:1/",
            ),
        ] {
            let error = run(url, query).await.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!((error.reason(), error.is_permanent()), (reason, false), "{query}");
        }
    }

    #[test]
    fn a_wrong_url_or_header_is_named() {
        let agent: Http = test_section("roll.agent", "{url: 'localhost:9000', headers: {'a b': x}}");
        let problems: Vec<_> = agent.problems().iter().map(ToString::to_string).collect();
        assert!(
            problems[0].starts_with("roll.agent.url: \"localhost:9000\" is not an http://"),
            "{problems:?}"
        );
        assert!(problems[1].starts_with("roll.agent.headers.a b: "), "{problems:?}");
    }
}
