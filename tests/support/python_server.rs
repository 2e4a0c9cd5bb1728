//! An AgentJet server as the Python one behaves where ours does not: `"global_step": null` before its first step, the pool
//! information of the last run until the first update, and connections that stay open, unanswered, once they were idle
//! (its trainer is forked and keeps a copy of every socket). A call that it does not do is answered with 200 and `error`, a
//! stop that it did with `null`, and a claim of an episode that has just gone with 500.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Idle time after which a connection is dead, a little less than uvicorn's keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// Why the server does not do what it refuses.
pub const WHY: &str = "No module named 'ray'";

/// A method that the last run had, which is not the present one's.
pub const LAST_METHOD: &str = "rollout_until_any_client_agree_sync_weight";

#[derive(Debug, Default)]
pub struct Record {
    pub running: bool,
    pub ended: u64,
    pub updates: u64,
    pub claims: u64,
    pub agreements: u64,
    pub hung: u64,
    /// Claims that are yet to be dropped without an answer.
    pub drop_claims: u64,
    /// Claims that are yet to fail.
    pub fail_claims: u64,
    /// A path whose calls are not done, which is an answer with 200 there.
    pub refuses: Option<String>,
}

#[derive(Clone)]
pub struct PythonServer {
    pub url: String,
    record: Arc<Mutex<Record>>,
    /// Episodes of a batch; an agreement ends it too.
    batch: u64,
    /// The stop rule of the last run, which the pool information tells.
    told_method: &'static str,
}

impl PythonServer {
    pub async fn start(batch: u64, told_method: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            record: Arc::default(),
            batch,
            told_method,
        };
        tokio::spawn(server.clone().accept(listener));
        server
    }

    pub fn record<R>(&self, look: impl FnOnce(&mut Record) -> R) -> R {
        look(&mut self.record.lock().unwrap())
    }

    async fn accept(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let server = self.clone();
            let last = Arc::new(Mutex::new(Instant::now()));
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (server, last) = (server.clone(), Arc::clone(&last));
                async move {
                    if last.lock().unwrap().elapsed() > KEEP_ALIVE {
                        server.record(|record| record.hung += 1);
                        std::future::pending::<()>().await;
                    }
                    let answer = server.answer(request.map(Body::new)).await;
                    *last.lock().unwrap() = Instant::now();
                    answer.ok_or("dropped")
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    /// `None` closes the connection without an answer.
    async fn answer(&self, request: Request) -> Option<Response> {
        let path = request.uri().path().to_owned();
        let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = self.record(|record| self.decide(record, &path, &body))?;
        Some(answer.map(Json).into_response())
    }

    fn decide(&self, record: &mut Record, path: &str, body: &Value) -> Option<Result<Value, StatusCode>> {
        Some(Ok(match path {
            "/health" => json!({"status": "ok"}),
            "/sync_train_config" | "/start_engine" | "/stop_engine" if record.refuses == Some(path.to_owned()) => {
                json!({"success": false, "error": WHY})
            }
            "/sync_train_config" => json!({"success": true}),
            "/start_engine" => {
                record.running = true;
                json!({"success": true, "pid": 1})
            }
            "/stop_engine" => {
                record.running = false;
                Value::Null
            }
            "/get_engine_status" => {
                let status = if record.running {
                    "ENGINE.ROLLING"
                } else {
                    "ENGINE.OFFLINE"
                };
                let step = (record.updates > 0).then_some(record.updates + 1);
                json!({"engine_status": status, "engine_status_detail": null, "global_step": step})
            }
            "/get_current_batch_rollout_pool_information" => json!({
                "sample_collection_method": self.told_method, "completed_episodes": 0, "completed_episode_target": 512,
                "completed_tasks": 0, "completed_task_target": 64, "task_expected_num_repeat": 8,
                "completed_tasks_details": {}, "running_episode_details": null, "engine_status": null,
                "global_step": 41, "booting_start_time": null, "swarm_client_instruction": null,
            }),
            "/get_server_experiment_dir" => json!({"server_experiment_dir": null}),
            "/claim_episode" if record.drop_claims > 0 => {
                record.drop_claims -= 1;
                return None;
            }
            "/claim_episode" if record.fail_claims > 0 => {
                record.fail_claims -= 1;
                return Some(Err(StatusCode::INTERNAL_SERVER_ERROR));
            }
            "/claim_episode" => {
                record.claims += 1;
                json!({
                    "success": true, "client_uuid": body["client_uuid"], "episode_uuid": record.claims.to_string(),
                    "openai_base_url": format!("{}/v1", self.url), "openai_api_key": "sk-ajet-x", "fail_cause": "",
                })
            }
            "/end_episode" => {
                record.ended += 1;
                if record.ended.is_multiple_of(self.batch) {
                    record.updates += 1;
                }
                json!({"success": true})
            }
            "/agree_sync_weight" => {
                record.agreements += 1;
                json!({"success": true, "failure_reason": null})
            }
            "/v1/chat/completions" => json!({
                "id": "c", "object": "chat.completion", "created": 0, "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }),
            _ => json!({"success": true}),
        }))
    }
}
