//! A judge on this machine's loopback that answers by a script.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use super::client::{Judge, JudgeModel};

/// What it answers to one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// This text.
    Text(String),
    /// A text that was cut.
    Cut(String),
    /// A status with a body, and perhaps `Retry-After` seconds.
    Status(u16, &'static str, Option<u64>),
    /// Nothing, for this long.
    Silence(Duration),
    /// Scores for the agents that the prompt shows, in the order of their names in the messages: by a function of the text
    /// that follows an agent's tag.
    Scores(fn(&str) -> f64),
}

#[derive(Default)]
struct Record {
    replies: VecDeque<Reply>,
    requests: Vec<(Instant, Value)>,
    keys: Vec<Option<String>>,
    running: usize,
    most_running: usize,
}

/// A judge that runs as long as this lives.
pub struct FakeJudge {
    url: String,
    record: Arc<Mutex<Record>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for FakeJudge {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl FakeJudge {
    /// Gives these answers; the last one again and again.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let record = Arc::new(Mutex::new(Record {
            replies: replies.into_iter().collect(),
            ..Record::default()
        }));
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(record.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, record, serving }
    }

    /// How it is asked, with short patience.
    pub fn model(&self) -> JudgeModel {
        JudgeModel {
            model: "judge".into(),
            base_url: self.url.clone(),
            api_key_env: None,
            request: Map::new(),
            retries: 2,
            timeout: Duration::from_secs(5),
            max_concurrency: 4,
        }
    }

    pub fn judge(&self) -> Judge {
        Judge::new(self.model()).unwrap()
    }

    /// When it was asked what.
    pub fn requests(&self) -> Vec<(Instant, Value)> {
        self.record.lock().unwrap().requests.clone()
    }

    /// The last user message.
    pub fn last_prompt(&self) -> String {
        let (_, request) = self.requests().pop().unwrap();
        let last = request["messages"].as_array().unwrap().last().unwrap().clone();
        last["content"].as_str().unwrap().to_owned()
    }

    pub fn keys(&self) -> Vec<Option<String>> {
        self.record.lock().unwrap().keys.clone()
    }

    pub fn most_running(&self) -> usize {
        self.record.lock().unwrap().most_running
    }
}

async fn answer(State(record): State<Arc<Mutex<Record>>>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let reply = {
        let mut record = record.lock().unwrap();
        let key = headers
            .get("authorization")
            .map(|value| value.to_str().unwrap().to_owned());
        record.keys.push(key);
        record.requests.push((Instant::now(), request.clone()));
        record.running += 1;
        record.most_running = record.most_running.max(record.running);
        match record.replies.len() {
            0 | 1 => record
                .replies
                .front()
                .cloned()
                .unwrap_or(Reply::Text("Score: 5".into())),
            _ => record.replies.pop_front().unwrap(),
        }
    };
    if let Reply::Silence(pause) = reply {
        tokio::time::sleep(pause).await;
    } else {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    record.lock().unwrap().running -= 1;
    let completion = |text: String, reason: &str| {
        Json(json!({
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10},
        }))
        .into_response()
    };
    match reply {
        Reply::Text(text) => completion(text, "stop"),
        Reply::Silence(_) => completion("Score: 5".into(), "stop"),
        Reply::Cut(text) => completion(text, "length"),
        Reply::Scores(score) => completion(scores(&request, score), "stop"),
        Reply::Status(status, body, wait) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some(seconds) = wait {
                response.headers_mut().insert("retry-after", seconds.into());
            }
            response
        }
    }
}

fn scores(request: &Value, score: fn(&str) -> f64) -> String {
    let messages = request["messages"].as_array().unwrap();
    let prompt = messages.last().unwrap()["content"].as_str().unwrap();
    let agents = prompt.split("<agent id=\"").skip(1).map(|agent| {
        let (id, rest) = agent.split_once("\">").unwrap();
        json!({"id": id, "explanation": "-", "score": score(rest.split_once("</agent>").unwrap().0)})
    });
    format!("Here: ```json\n{}\n```", json!({"scores": agents.collect::<Vec<_>>()}))
}
