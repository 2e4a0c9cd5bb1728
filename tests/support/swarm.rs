//! A server with fake engines on a free port of this machine, and calls to it.

use std::sync::Arc;
use std::time::Duration;

use ajet_swarm::server::{Options, Server};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::fake_engine::FakeLauncher;

/// Collection methods, by their names on the wire.
pub const ENOUGH_EPISODES: &str = "rollout_until_finish_enough_episodes";
pub const ENOUGH_TASKS: &str = "rollout_until_finish_enough_tasks";
pub const ENOUGH_NON_DUMMY_TASKS: &str = "rollout_until_finish_enough_non_dummy_tasks";
pub const ANY_AGREES: &str = "rollout_until_any_client_agree_sync_weight";
pub const ALL_AGREE: &str = "rollout_until_all_clients_agree_sync_weight";

/// Longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Swarm {
    pub url: String,
    pub engines: FakeLauncher,
    pub http: reqwest::Client,
    experiments: tempfile::TempDir,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

/// Quick where a user's server is patient.
pub fn quick() -> Options {
    Options {
        slow_poll: Duration::ZERO,
        min_poll_interval: Duration::ZERO,
        claim_timeout: Duration::ZERO,
        start_timeout: Duration::ZERO,
        tick: Duration::from_millis(5),
        stop_timeout: Duration::from_secs(5),
        exit_timeout: Duration::from_secs(5),
        ..Options::default()
    }
}

/// An answer's status and JSON (null where it has none).
pub type Answer = (u16, Value);

/// A claimed episode.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub client: String,
    pub uuid: String,
    pub key: String,
}

impl Swarm {
    pub async fn start() -> Self {
        Self::with(quick()).await
    }

    pub async fn with(options: Options) -> Self {
        Self::at(0, options).await
    }

    /// On this port of this machine; 0 is a free one.
    pub async fn at(port: u16, options: Options) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let engines = FakeLauncher::default();
        let server = Server::new(options, Arc::new(engines.clone()));
        let (shutdown, told) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let told = async {
                let _ = told.await;
            };
            server.serve(listener, told).await.unwrap();
        });
        Self {
            url,
            engines,
            http: reqwest::Client::builder().tls_certs_only([]).build().unwrap(),
            experiments: tempfile::tempdir().unwrap(),
            shutdown: Some(shutdown),
            serving,
        }
    }

    /// Ends the server as a signal would, and waits for it.
    pub async fn shut_down(mut self) -> FakeLauncher {
        let _ = self.shutdown.take().unwrap().send(());
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("the server ends")
            .unwrap();
        self.engines
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        answer(self.request(Method::POST, path).json(&body)).await
    }

    /// A configuration of the test's `ajet` section, with what every one needs.
    pub fn yaml(&self, mut ajet: Value) -> String {
        ajet["experiment_name"] = "test".into();
        ajet["experiment_dir"] = self.experiments.path().join("test").to_str().unwrap().into();
        if ajet["model"].is_null() {
            ajet["model"] = json!({"path": "builtin:tiny"});
        }
        format!("ajet: {ajet}\n") // JSON is YAML
    }

    /// Where the experiments are.
    pub fn experiments(&self) -> std::path::PathBuf {
        self.experiments.path().to_owned()
    }

    pub async fn sync(&self, ajet: Value) -> Answer {
        let body = json!({"yaml_as_string": self.yaml(ajet)});
        self.post("/sync_train_config", body).await
    }

    /// ROLLING with batches of `tasks` tasks of `repeats` episodes that end by `method`.
    pub async fn rolling(&self, method: &str, tasks: u64, repeats: u64) {
        self.rolling_with(json!({
            "data": {"train_batch_size": tasks}, "rollout": {"num_repeat": repeats},
            "swarm_mode_sample_collection_method": method,
        }))
        .await;
    }

    pub async fn rolling_with(&self, ajet: Value) {
        assert_eq!(self.sync(ajet).await, (200, json!({"success": true})));
        let (status, started) = self.post("/start_engine", json!({})).await;
        assert_eq!((status, &started["success"]), (200, &json!(true)), "{started}");
        self.until("ENGINE.ROLLING").await;
    }

    pub async fn status(&self) -> Value {
        self.get("/get_engine_status").await.1
    }

    /// Waits for a status; the whole answer.
    pub async fn until(&self, wanted: &str) -> Value {
        self.until_true(wanted, async |swarm| {
            let status = swarm.status().await;
            (status["engine_status"] == wanted).then_some(status)
        })
        .await
    }

    pub async fn until_step(&self, step: u64) {
        self.until_true("the step", async |swarm| {
            let status = swarm.status().await;
            (status["engine_status"] == "ENGINE.ROLLING" && status["global_step"] == step).then_some(())
        })
        .await;
    }

    /// Asks again and again until there is an answer.
    pub async fn until_true<T>(&self, what: &str, ask: impl AsyncFn(&Self) -> Option<T>) -> T {
        let asked = async {
            loop {
                if let Some(found) = ask(self).await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain for {what}; status {}", self.status().await),
        }
    }

    pub async fn pool(&self) -> Value {
        self.get("/get_current_batch_rollout_pool_information").await.1
    }

    pub async fn try_claim(&self, client: &str, kind: &str, timeout: f64) -> Answer {
        self.post(
            "/claim_episode",
            json!({"client_uuid": client, "episode_type": kind, "discard_episode_timeout": timeout}),
        )
        .await
    }

    pub async fn claim(&self, client: &str) -> Claimed {
        self.claim_kind(client, "train", 240.0).await
    }

    pub async fn claim_kind(&self, client: &str, kind: &str, timeout: f64) -> Claimed {
        let (status, claimed) = self.try_claim(client, kind, timeout).await;
        assert_eq!((status, &claimed["success"]), (200, &json!(true)), "{claimed}");
        Claimed {
            client: client.into(),
            uuid: claimed["episode_uuid"].as_str().unwrap().into(),
            key: claimed["openai_api_key"].as_str().unwrap().into(),
        }
    }

    pub fn chat_request(&self, key: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, "/v1/chat/completions")
            .bearer_auth(key)
            .json(body)
    }

    pub async fn chat(&self, key: &str) -> Answer {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        answer(self.chat_request(key, &body)).await
    }

    pub async fn end(&self, episode: &Claimed, task: &str, reward: impl Into<Value>) -> Answer {
        self.post("/end_episode", end_body(episode, task, reward)).await
    }

    pub async fn abort(&self, episode: &Claimed) -> Answer {
        let body = json!({
            "client_uuid": episode.client, "episode_uuid": episode.uuid, "task_id": "",
            "workflow_output": {"reward": 0.0, "metadata": {}},
        });
        self.post("/abort_episode", body).await
    }

    /// Claim, one chat, end.
    pub async fn episode(&self, client: &str, task: &str, reward: f64) {
        let episode = self.claim(client).await;
        assert_eq!(self.chat(&episode.key).await.0, 200);
        assert_eq!(self.end(&episode, task, reward).await, (200, json!({"success": true})));
    }
}

pub fn end_body(episode: &Claimed, task: &str, reward: impl Into<Value>) -> Value {
    json!({
        "client_uuid": episode.client, "episode_uuid": episode.uuid, "task_id": task,
        "workflow_output": {"reward": reward.into(), "is_success": null, "metadata": {"task_id": task}},
    })
}

pub async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.bytes().await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// The answer of a call that succeeded and returns nothing else.
pub fn success() -> Answer {
    (200, json!({"success": true}))
}

/// The message of an error answer.
pub fn detail(answer: &Answer) -> &str {
    answer.1["detail"]
        .as_str()
        .unwrap_or_else(|| panic!("no detail in {answer:?}"))
}
