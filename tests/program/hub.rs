//! A model and a data set by their hub ids, through the real program: fetched into the hub client's cache from a hub on
//! this machine, taken from the cache when the hub is gone, and refused with a sentence where neither has it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, Request};
use axum::http::{Response, StatusCode};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILES: [&str; 7] = [
    TEMPLATE,
    DEFAULT_TEMPLATE,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];
const DATA_SET: [&str; 5] = [
    "README.md",
    "main/test-00000-of-00001.parquet",
    "main/train-00000-of-00001.parquet",
    "socratic/test-00000-of-00001.parquet",
    "socratic/train-00000-of-00001.parquet",
];
/// A template of its own for requests with tools.
const TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// A model with template files has no other templates, so the default one is a file too.
const DEFAULT_TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_SOURCE: &str = "tests/fixtures/chat_templates/qwen3.jinja";
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A hub with the repository `acme/tiny`. As on the real one, weights are redirected to where large files are.
async fn hub() -> String {
    let listing = json!({
        "siblings": FILES.map(|file| json!({ "rfilename": file })),
        "sha": COMMIT,
    });
    let data_set = json!({
        "siblings": DATA_SET.map(|file| json!({ "rfilename": file })),
        "sha": COMMIT,
    });
    let router = Router::new()
        .route(
            "/api/datasets/acme/sums/revision/main",
            get(async move || axum::Json(data_set)),
        )
        .route(
            "/datasets/acme/sums/resolve/main/{*file}",
            get(async |UrlPath(file): UrlPath<String>, request: Request| {
                let content = std::fs::read(Path::new("tests/fixtures/datasets/gsm8k").join(&file)).unwrap();
                part(&file, &content, &request)
            }),
        )
        .route(
            "/api/models/acme/tiny/revision/main",
            get(async move || axum::Json(listing)),
        )
        .route("/acme/tiny/resolve/main/{*file}", get(resolve))
        .route(
            "/large/{file}",
            get(async |UrlPath(file): UrlPath<String>, request: Request| part(&file, &model(&file), &request)),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// The content of a file of the model.
fn model(file: &str) -> Vec<u8> {
    let tiny = Path::new("assets/models/tiny");
    match file {
        TEMPLATE => std::fs::read(TEMPLATE_SOURCE).unwrap(),
        DEFAULT_TEMPLATE => {
            let config = std::fs::read(tiny.join("tokenizer_config.json")).unwrap();
            let config: Value = serde_json::from_slice(&config).unwrap();
            config["chat_template"].as_str().unwrap().into()
        }
        file => std::fs::read(tiny.join(file)).unwrap(),
    }
}

async fn resolve(UrlPath(file): UrlPath<String>, request: Request) -> Response<Body> {
    if file != "model.safetensors" {
        return part(&file, &model(&file), &request);
    }
    let host = request.headers()["host"].to_str().unwrap();
    Response::builder()
        .status(StatusCode::FOUND)
        .header("location", format!("http://{host}/large/{file}"))
        .header("x-linked-etag", format!("\"{file}\""))
        .header("x-repo-commit", COMMIT)
        .body(Body::empty())
        .unwrap()
}

/// The bytes that the request's range asks for.
fn part(file: &str, bytes: &[u8], request: &Request) -> Response<Body> {
    let range = request.headers()["range"].to_str().unwrap();
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let first: usize = first.parse().unwrap();
    let last = last.parse().unwrap_or(bytes.len() - 1);
    Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header("etag", format!("\"{}\"", file.replace('/', "-")))
        .header("x-repo-commit", COMMIT)
        .header("content-range", format!("bytes {first}-{last}/{}", bytes.len()))
        .body(Body::from(bytes[first..=last].to_vec()))
        .unwrap()
}

/// Evaluates four words with the model `acme/tiny`, with a hub and its cache in `home`.
async fn evaluate(endpoint: &str, home: &Path) -> Output {
    let free_port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let job = home.join("job.yaml");
    let experiment = home.join("saved/hub");
    let yaml = json!({
        "ajet": {
            "experiment_name": "hub",
            "experiment_dir": experiment,
            "model": {"path": "acme/tiny"},
            "data": {"train_batch_size": 2, "max_prompt_length": 64, "max_response_length": 16},
            "rollout": {"num_repeat": 2},
            "task_reader": {
                "type": "reverse_text",
                "reverse_text": {"tasks": 4, "validation_tasks": 4},
                // Seen with an engine that could not read its configuration.
                "columns": {"answer": "{{ text }}"},
            },
        },
        "roll": {
            "swarm_url": format!("http://{free_port}"),
            "agent": {"type": "chat", "user": "{{ main_query }}"},
            "reward": {"type": "exact_match", "answer": "{{ metadata.answer }}"},
        },
    });
    std::fs::write(&job, yaml.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command
        .args(["roll", "--eval-only", "--json"])
        .arg(job)
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", home)
        .env_remove("AJET_SWARM_TOKEN")
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_id_is_fetched_once_and_then_needs_no_hub() {
    let home = tempfile::tempdir().unwrap();
    for endpoint in [hub().await.as_str(), NOWHERE] {
        let output = evaluate(endpoint, home.path()).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let events = String::from_utf8(output.stdout).unwrap();
        let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let eval = events.iter().find(|event| event["event"] == "eval").unwrap();
        assert_eq!(eval["episodes"], 4, "{eval}");
    }
    let snapshot = home.path().join("hub/models--acme--tiny/snapshots").join(COMMIT);
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(text(&snapshot.join(TEMPLATE)), text(Path::new(TEMPLATE_SOURCE)));
}

#[tokio::test(flavor = "multi_thread")]
async fn offline_without_the_model_is_a_sentence_that_names_it() {
    let home = tempfile::tempdir().unwrap();
    let output = evaluate(NOWHERE, home.path()).await;
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("acme/tiny") && told.contains("hint:"), "{told}");
    assert!(!told.contains("panicked"), "{told}");
}

/// Checks a job on `configuration` of the data set `acme/sums`, with a hub and its cache in `home`.
async fn check(endpoint: &str, home: &Path, configuration: &str, offline: &str) -> Output {
    let job = home.join("job.yaml");
    let yaml = json!({
        "ajet": {
            "experiment_name": "hub",
            "model": {"path": "builtin:tiny"},
            "data": {"train_batch_size": 2},
            "task_reader": {
                "type": "huggingface_dat_repo",
                "limit": 6,
                "filter": "'17' not in question",
                "columns": {"answer": "{{ answer.split('#### ')[1] }}"},
                "huggingface_dat_repo": {
                    "dataset_path": "acme/sums",
                    "dataset_name": configuration,
                    "validation_split": "test",
                },
            },
        },
        "roll": {
            "agent": {"type": "chat", "user": "{{ main_query }}"},
            "reward": {"type": "number_match", "answer": "{{ metadata.answer }}"},
        },
    });
    std::fs::write(&job, yaml.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command
        .args(["job", "check"])
        .arg(job)
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", "/nonexistent")
        .env("HF_HUB_CACHE", home.join("cache"))
        .env("HF_HUB_OFFLINE", offline)
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_set_is_fetched_into_pythons_cache() {
    let home = tempfile::tempdir().unwrap();
    let hub = hub().await;
    for (endpoint, offline) in [(hub.as_str(), "0"), (NOWHERE, "0"), (hub.as_str(), "1")] {
        let output = check(endpoint, home.path(), "main", offline).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let checked = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{told}");
        assert!(checked.contains("6 training tasks, 3 evaluation tasks"), "{checked}");
    }
    let snapshot = home.path().join("cache/datasets--acme--sums/snapshots").join(COMMIT);
    assert!(snapshot.join("main/train-00000-of-00001.parquet").is_file());
    assert!(!snapshot.join("socratic").exists(), "only what is needed is fetched");
    let offline = check(&hub, home.path(), "socratic", "1").await;
    let told = String::from_utf8_lossy(&offline.stderr).into_owned();
    assert!(!offline.status.success(), "{told}");
    assert!(
        told.contains("the hub's cache does not have all of it") && told.contains("hint:"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_set_that_is_nowhere_is_named() {
    let home = tempfile::tempdir().unwrap();
    let output = check(NOWHERE, home.path(), "main", "1").await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{told}");
    assert!(
        told.contains("`acme/sums`") && told.contains("HF_HUB_OFFLINE"),
        "{told}"
    );
}
