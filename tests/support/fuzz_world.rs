//! A server in this process to which wrong bodies are offered, and what must hold of its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ajet_swarm::server::{CodeAccess, CodeOptions, InProcess, Options, Server};
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fake_engine::FakeLauncher;

/// No answer may take longer, on a machine that does other things besides.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The parts of the visible state.
const STATE: [&str; 6] = ["pool", "buffer", "status", "directory", "replay", "ended"];

/// A running server, some of whose episodes the fuzzer knows.
pub struct World {
    server: InProcess,
    engines: FakeLauncher,
    experiments: tempfile::TempDir,
    pub rng: ChaCha8Rng,
    /// `(client, episode, key)`, the oldest first; some have ended long ago.
    pub episodes: Vec<(String, String, String)>,
    /// The state, where nothing has happened since it was looked at.
    seen: Option<Value>,
    /// How many answers of each status there were.
    pub answers: BTreeMap<u16, u64>,
}

impl World {
    pub fn new(rng: ChaCha8Rng) -> Self {
        let engines = FakeLauncher::default();
        let experiments = tempfile::tempdir().unwrap();
        let options = Options {
            code: CodeOptions {
                access: CodeAccess::Everyone,
                root: experiments.path().join("code"),
                cargo: "true".into(),
                ..CodeOptions::default()
            },
            slow_poll: Duration::ZERO,
            min_poll_interval: Duration::ZERO,
            // What time does is not to be mixed up with what a body does.
            tick: Duration::from_secs(3600),
            ..Options::default()
        };
        Self {
            server: Server::new(options, Arc::new(engines.clone())).in_process(),
            engines,
            experiments,
            rng,
            episodes: Vec::new(),
            seen: None,
            answers: BTreeMap::new(),
        }
    }

    async fn send(&self, method: &str, path: &str, key: &str, body: Vec<u8>) -> (u16, Vec<u8>) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.body(Body::from(body.clone())).unwrap();
        let server = self.server.clone();
        // A task of its own, so that even an answer that never yields is noticed.
        let answered = tokio::spawn(async move {
            let response = server.answer(request).await;
            let status = response.status().as_u16();
            (status, to_bytes(response.into_body(), usize::MAX).await.unwrap())
        });
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(answer) => answer.map(|(status, bytes)| (status, bytes.to_vec())).unwrap(),
            Err(_) => panic!("{method} {path} hangs on {}", String::from_utf8_lossy(&body)),
        }
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, "", Vec::new()).await;
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice(&body).unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.send("POST", path, "", body.to_string().into_bytes()).await;
        assert_eq!(status, 200, "{path} {body}: {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).unwrap()
    }

    /// Everything that clients can see of the state, except when something last happened: a request that is refused is
    /// a sign of life as well. Verbose logs pass by themselves.
    async fn visible_state(&self) -> Value {
        let mut pool = self.get("/get_current_batch_rollout_pool_information").await;
        for episode in pool["running_episode_details"]
            .as_object_mut()
            .into_iter()
            .flat_map(|all| all.values_mut())
        {
            episode["time_since_last_activity"] = Value::Null;
        }
        let clients = pool["swarm_client_instruction"]["active_clients"]
            .as_array_mut()
            .unwrap();
        clients
            .iter_mut()
            .for_each(|client| client["last_activity_at"] = Value::Null);
        let mut buffer = self.post("/get_episode_buffer", json!({})).await;
        for episode in buffer["buffer"].as_array_mut().unwrap() {
            episode["latest_activity_timestamp"] = Value::Null;
        }
        json!({
            "pool": pool, "buffer": buffer,
            "status": self.get("/get_engine_status").await,
            "directory": self.get("/get_server_experiment_dir").await,
            "replay": String::from_utf8_lossy(&self.send("POST", "/replay_latest_llm_call", "", Vec::new()).await.1),
            "ended": self.engines.ends(),
        })
    }

    /// A configuration that is taken.
    pub fn yaml(&mut self) -> String {
        let method = [
            "rollout_until_finish_enough_episodes",
            "rollout_until_finish_enough_tasks",
            "rollout_until_finish_enough_non_dummy_tasks",
            "rollout_until_any_client_agree_sync_weight",
            "rollout_until_all_clients_agree_sync_weight",
        ]
        .choose(&mut self.rng)
        .unwrap();
        let directory = self.experiments.path().join("fuzz");
        let ajet = json!({
            "experiment_name": "fuzz", "experiment_dir": directory, "model": {"path": "builtin:tiny"},
            "data": {"train_batch_size": 4}, "rollout": {"num_repeat": 2}, "swarm_mode_sample_collection_method": method,
        });
        json!({ "ajet": ajet }).to_string()
    }

    async fn status(&self) -> String {
        self.get("/get_engine_status").await["engine_status"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Brings the engine to ROLLING, or (most times that it is there) leaves it OFFLINE: where nothing changes by itself.
    pub async fn calm(&mut self) {
        if self.status().await != "ENGINE.OFFLINE" || self.rng.random_ratio(1, 20) {
            self.roll().await;
        }
    }

    /// Brings the engine to ROLLING.
    pub async fn roll(&mut self) {
        loop {
            let status = self.status().await;
            if status == "ENGINE.ROLLING" {
                return;
            }
            self.seen = None;
            match status.as_str() {
                "ENGINE.OFFLINE" => {
                    let yaml = self.yaml();
                    self.post("/sync_train_config", json!({"yaml_as_string": yaml})).await;
                    // Code that an archive brought is not to be built here.
                    let (status, _) = self.send("DELETE", "/sync_train_code", "", Vec::new()).await;
                    assert_eq!(status, 200);
                    self.post("/start_engine", json!({})).await;
                }
                "ENGINE.ROLLING_POST" => {
                    for episode in self.running().await {
                        let body =
                            json!({"client_uuid": episode["client_uuid"], "episode_uuid": episode["episode_uuid"]});
                        self.post("/abort_episode", body).await;
                    }
                }
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    async fn running(&self) -> Vec<Value> {
        let listed = self.post("/get_episode_buffer", json!({})).await;
        listed["buffer"].as_array().unwrap().clone()
    }

    /// An episode that runs, claimed if there is none.
    pub async fn episode(&mut self) -> (String, String, String) {
        let running = self.running().await;
        let runs = |(_, uuid, _): &&(String, String, String)| running.iter().any(|it| it["episode_uuid"] == *uuid);
        if let Some(known) = self.episodes.iter().rev().find(runs) {
            return known.clone();
        }
        let claim = json!({"client_uuid": "fuzzer", "episode_type": "train", "discard_episode_timeout": 240.0});
        self.offer("/claim_episode", "", claim.to_string().into_bytes()).await;
        self.episodes.last().cloned().unwrap()
    }

    /// Offers one body and checks the answer: never a fault of the server's own, and where it is refused, a sentence
    /// and no change. The status.
    pub async fn offer(&mut self, path: &str, key: &str, body: Vec<u8>) -> u16 {
        let before = match self.seen.take() {
            Some(seen) => seen,
            None => self.visible_state().await,
        };
        let (status, answer) = self.send("POST", path, key, body.clone()).await;
        *self.answers.entry(status).or_default() += 1;
        let shown = || format!("{path} {}\n→ {status} {}", show(&body), show(&answer));
        assert!(status < 500, "{}", shown());
        if status >= 400 {
            let error: Value = serde_json::from_slice(&answer).unwrap();
            let sentence = match path.starts_with("/v1/") {
                true => &error["error"]["message"],
                false => &error["detail"],
            };
            assert!(sentence.as_str().is_some_and(|text| !text.is_empty()), "{}", shown());
            let after = self.visible_state().await;
            if let Some(part) = STATE.into_iter().find(|part| after[*part] != before[*part]) {
                panic!(
                    "{part} changed from {}\nto {}\nby {}",
                    before[part],
                    after[part],
                    shown()
                );
            }
            self.seen = Some(after);
        }
        if path == "/claim_episode" && status == 200 {
            let claimed: Value = serde_json::from_slice(&answer).unwrap();
            if claimed["success"] == true {
                let field = |name: &str| claimed[name].as_str().unwrap().to_owned();
                self.episodes
                    .push((field("client_uuid"), field("episode_uuid"), field("openai_api_key")));
            }
        }
        status
    }
}

/// The beginning of what was sent or answered.
fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned()
}
