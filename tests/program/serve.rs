//! `serve` and `chat` as processes, on checkpoints and exports of a trained built-in model.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ajet_swarm::collective::Alone;
use ajet_swarm::config::{Strictness, load};
use ajet_swarm::engine::batch::identity::RunIdentity;
use ajet_swarm::engine::events::EventHub;
use ajet_swarm::engine::model_thread::Worker;
use ajet_swarm::engine::storage::checkpoint::CheckpointStore;
use ajet_swarm::engine::worker::ModelWorker;
use ajet_swarm::timeline::Row;
use ajet_swarm::train::TrainEpisode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};

/// Writes an experiment with a checkpoint of one large update of the built-in model.
fn train(experiment: &Path, lora: &str) {
    let yaml = format!(
        "ajet: {{model: {{path: 'builtin:tiny'}}, lora: {lora}, engine: {{device: cpu, threads: 1}}, \
         trainer_common: {{optim: {{lr: 5.0e-3}}}}}}"
    );
    let config = load(&yaml, Strictness::Job).unwrap().ajet;
    let episode = |number: u32| TrainEpisode {
        episode_uuid: number.to_string(),
        task_id: "t".into(),
        reward: f64::from(number),
        rows: vec![Row {
            token_ids: vec![5, 6, 7 + number, 8 + number],
            loss_mask: vec![false, false, true, true],
            logprobs: vec![0.0, 0.0, -3.0, -3.0],
            truncated: false,
            ..Row::default()
        }],
    };
    let (mut worker, _) = ModelWorker::build(Arc::new(Alone), &config, None, EventHub::default().into()).unwrap();
    worker.update(1, &[episode(0), episode(1)]).unwrap();
    let store = CheckpointStore::new(experiment, 2, RunIdentity::new(&config));
    store.stage(1, |dir| worker.save(dir)).unwrap().publish().unwrap();
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command.args(args).env_remove("AJET_SWARM_TOKEN").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit code, standard output, standard error.
fn output(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = program(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A `serve` process; killed if a test fails before it ends.
struct Serving {
    child: Child,
    url: String,
    key: String,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = program(&[&["serve", "--port", "0", "--device", "cpu"], args].concat())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || lines.next().expect("a line").unwrap();
        let url = next().rsplit_once(" at ").unwrap().1.to_owned();
        let key = next()
            .trim_start_matches("API key: ")
            .trim_end_matches(" (shown once)")
            .to_owned();
        Self { child, url, key }
    }

    async fn call(&self, method: Method, path: &str, key: &str, body: Value) -> (u16, Value) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
        let request = http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(key)
            .json(&body);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (
            status,
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default(),
        )
    }

    /// The greedy answer to a question.
    async fn answer(&self, question: &str) -> String {
        let messages = json!([{"role": "user", "content": question}]);
        let body = json!({"model": "m", "messages": messages, "temperature": 0, "max_tokens": 12});
        let (status, answer) = self.call(Method::POST, "/chat/completions", "any", body).await;
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const QUESTIONS: [&str; 3] = ["Reverse the word: house", "Reverse the word: abc", "Hello"];

/// What every form of a trained model answers, over HTTP and in `chat`.
async fn answers(checkpoint: &Path) -> Vec<String> {
    let server = Serving::start(&[text(checkpoint)]);
    let mut answers = vec![];
    for question in QUESTIONS {
        answers.push(server.answer(question).await);
    }
    let args = [
        "chat",
        text(checkpoint),
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "12",
    ];
    let (code, printed, err) = output(&args, &QUESTIONS.join("\n\n"));
    assert_eq!(
        (code, printed),
        (0, answers.iter().map(|answer| format!("{answer}\n")).collect()),
        "{err}"
    );
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_its_adapter_and_its_exports_answer_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let [full, lora] = ["full", "lora"].map(|name| dir.path().join(name));
    train(&full, "{}");
    train(&lora, "{lora_rank: 4, lora_alpha: 32, target_modules: all-linear}");
    let export = |from: &Path, name: &str, merge: &[&str]| -> PathBuf {
        let to = dir.path().join(name);
        let (code, _, err) = output(
            &[&["export", "--from", text(from), "--to", text(&to)], merge].concat(),
            "",
        );
        assert_eq!(code, 0, "{err}");
        to
    };
    let of_full = answers(&full).await;
    assert_eq!(answers(&full.join("checkpoints/global_step_1")).await, of_full);
    assert_eq!(answers(&export(&full, "full-export", &[])).await, of_full);
    let of_lora = answers(&lora).await;
    assert_eq!(answers(&export(&lora, "adapter", &[])).await, of_lora);
    assert_eq!(answers(&export(&lora, "merged", &["--merge-lora"])).await, of_lora);
    let untrained = answers(Path::new("builtin:tiny")).await;
    assert!(untrained != of_full && untrained != of_lora, "{untrained:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_usual_apis_are_served_and_the_swarms_are_not() {
    let server = Serving::start(&["builtin:tiny"]);
    assert_eq!(server.key, "any");
    let question = json!([{"role": "user", "content": "Reverse the word: house"}]);
    let chat = server.answer("Reverse the word: house").await;
    for key in ["", "sk-anything"] {
        let body = json!({"model": "m", "max_tokens": 12, "temperature": 0, "messages": question});
        let (status, message) = server.call(Method::POST, "/messages", key, body).await;
        assert_eq!(
            (status, message["content"][0]["text"].as_str()),
            (200, Some(chat.as_str()))
        );
    }
    let body = json!({"model": "m", "max_output_tokens": 12, "temperature": 0, "input": "Reverse the word: house"});
    let (status, response) = server.call(Method::POST, "/responses", "k", body).await;
    assert_eq!(
        (status, response["output"][0]["content"][0]["text"].as_str()),
        (200, Some(chat.as_str()))
    );
    let id = response["id"].as_str().unwrap();
    let body = json!({"model": "m", "input": "Again.", "previous_response_id": id, "max_output_tokens": 4});
    assert_eq!(server.call(Method::POST, "/responses", "k", body).await.0, 200);
    let (status, models) = server.call(Method::GET, "/models", "", json!({})).await;
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!("builtin:tiny")));
    let body = json!({"model": "m", "messages": question, "max_tokens": 2});
    let (status, count) = server.call(Method::POST, "/messages/count_tokens", "", body).await;
    assert!(status == 200 && count["input_tokens"].as_u64() > Some(0), "{count}");
    // The same request twice is sampled twice.
    let mut sampled = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let body = json!({"model": "m", "messages": question, "max_tokens": 12, "temperature": 2.0});
        let answer = server.call(Method::POST, "/chat/completions", "", body).await.1;
        sampled.insert(answer["choices"][0]["message"]["content"].to_string());
    }
    assert!(sampled.len() > 1, "{sampled:?}");
    let too_long = json!([{"role": "user", "content": "word ".repeat(9000)}]);
    let body = json!({"model": "m", "messages": too_long});
    let (status, refused) = server.call(Method::POST, "/chat/completions", "", body).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    for (method, path) in [
        (Method::POST, "/../claim_episode"),
        (Method::POST, "/../start_engine"),
        (Method::POST, "/../sync_train_code"),
        (Method::GET, "/../checkpoints"),
        (Method::GET, "/episode/conversations"),
    ] {
        assert_eq!(server.call(method, path, "", json!({})).await.0, 404, "{path}");
    }
    let mut server = server;
    kill(Pid::from_raw(server.child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_it_is_the_key() {
    let server = Serving::start(&["builtin:tiny", "--host", "0.0.0.0"]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    for (key, status) in [
        ("", 401),
        ("another-key-of-some-length", 401),
        (server.key.as_str(), 200),
    ] {
        let (answered, answer) = server.call(Method::POST, "/chat/completions", key, body.clone()).await;
        assert_eq!(answered, status, "{answer}");
    }
}

#[test]
fn what_cannot_be_served_ends_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let none = text(dir.path());
    std::fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    for (args, reason) in [
        (
            vec!["serve", "--port", "0", "/no/such/model"],
            "model not found: /no/such/model",
        ),
        (vec!["chat", "/no/such/model"], "model not found: /no/such/model"),
        (vec!["chat", none], "base_model_name_or_path"),
        (vec!["chat", none, "--base", "builtin:tiny"], "it needs `r`"),
        (
            vec!["serve", "--port", "0", "builtin:tiny", "--base", "builtin:tiny"],
            "omit --base",
        ),
        (
            vec!["chat", "--api", "http://127.0.0.1:9/v1"],
            "cannot reach the model API",
        ),
    ] {
        let (code, _, err) = output(&args, "hello\n");
        assert!(code == 1 && err.contains(reason), "{args:?}: {code} {err}");
    }
}
