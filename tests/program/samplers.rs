//! `serve` as the sampler of a training engine's episodes: two of them, one of which is killed and started again.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ajet_swarm::client::{BeginEpisode, EndOutcome, SwarmClient};
use ajet_swarm::protocol::swarm::WorkflowOutput;
use serde_json::{Value, json};

use crate::main_job::process::Server;

const TASKS: usize = 4;
const REPEATS: usize = 8;
/// Maximum wait for the endpoints' states.
const PATIENCE: Duration = Duration::from_secs(120);

/// A `serve` process, killed when dropped. Its output stays open, since it ends without.
struct Sampler {
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Sampler {
    fn start(port: u16, adapters: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .args([
                "serve",
                "builtin:tiny",
                "--device",
                "cpu",
                "--port",
                &port.to_string(),
                "--adapters",
            ])
            .arg(adapters)
            .env_remove("AJET_SWARM_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        assert!(ready.starts_with("serving builtin:tiny"), "{ready:?}");
        Self { child, _out: out }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs the episodes of a batch; the shorter an answer, the better. Returns the mean reward.
async fn batch(swarm: &SwarmClient) -> f64 {
    let mut sum = 0.0;
    for number in 0..TASKS * REPEATS {
        let task = format!("task {}", number % TASKS);
        let episode = swarm.begin_episode(&BeginEpisode::default()).await.unwrap();
        let messages = json!([{"role": "user", "content": format!("Reverse the word: {task}")}]);
        let request = serde_json::from_value(json!({"model": "m", "messages": messages})).unwrap();
        let answer = episode.model().chat(&request).await.unwrap();
        let reward = 1.0 / (1.0 + answer.usage.completion_tokens as f64);
        sum += reward;
        let output = WorkflowOutput {
            reward: reward.into(),
            ..WorkflowOutput::default()
        };
        assert_eq!(episode.end(&task, output).await.unwrap(), EndOutcome::Accepted);
    }
    sum / (TASKS * REPEATS) as f64
}

/// Waits until the endpoints of `/status` satisfy `wanted`.
async fn until(url: &str, wanted: impl Fn(&[Value]) -> bool) {
    let begun = Instant::now();
    loop {
        let status: Value = reqwest::get(format!("{url}/status"))
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let endpoints = status["sampling"]["endpoints"].as_array().cloned().unwrap_or_default();
        if wanted(&endpoints) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{endpoints:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn episodes_are_sampled_elsewhere_with_the_weights_of_each_update() {
    let scratch = tempfile::tempdir().unwrap();
    let adapters = scratch.path().join("adapters");
    std::fs::create_dir(&adapters).unwrap();
    let ports = [free_port(), free_port()];
    let mut samplers = ports.map(|port| Some(Sampler::start(port, &adapters)));
    let server = Server::start(scratch.path(), &[]);
    let config = json!({"ajet": {
        "experiment_name": "elsewhere", "model": {"path": "builtin:tiny"},
        "data": {"train_batch_size": TASKS, "max_prompt_length": 64, "max_response_length": 16},
        "rollout": {
            "num_repeat": REPEATS, "endpoints": ports.map(|port| format!("http://127.0.0.1:{port}")),
            // At which answers differ in length.
            "adapter_dir": adapters, "temperature": 2.0,
        },
        "trainer_common": {"optim": {"lr": 4e-3}, "use_kl_loss": false},
        "lora": {"lora_rank": 8},
        "engine": {"device": "cpu", "threads": 1},
    }});
    let swarm = SwarmClient::new(&server.url).unwrap();
    swarm
        .auto_sync_train_config_and_start_engine(&config.to_string(), false, |_| {})
        .await
        .unwrap();

    let mut rewards = vec![];
    for step in 1..=10 {
        match step {
            // In the middle of a batch, so that running answers go on elsewhere.
            4 => drop(samplers[1].take()),
            6 => {
                samplers[1] = Some(Sampler::start(ports[1], &adapters));
                let is_ready = |endpoint: &Value| endpoint["problem"].is_null() && endpoint["weight_version"].is_u64();
                until(&server.url, |endpoints| endpoints.iter().all(is_ready)).await;
            }
            _ => {}
        }
        rewards.push(batch(&swarm).await);
        swarm.wait_until_rolling(|_| {}).await.unwrap();
        if step == 4 {
            until(&server.url, |endpoints| endpoints[1]["problem"].is_string()).await;
        }
    }
    // The last update ends when the next batch may begin.
    batch(&swarm).await;
    let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len() as f64;
    assert!(mean(&rewards[8..]) > 1.2 * mean(&rewards[..2]), "{rewards:?}");

    let metrics = scratch.path().join("saved_experiments/elsewhere/metrics.jsonl");
    let metrics: Vec<Value> = std::fs::read_to_string(metrics)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| -> Vec<f64> { metrics.iter().filter_map(|step| step[name].as_f64()).collect() };
    // The trainer computes the log-probabilities that the samplers reported: they had its weights at every step.
    let mismatch = of("mismatch_kl");
    assert!(
        mismatch.len() >= 8 && mismatch.iter().all(|kl| kl.abs() < 1e-4),
        "{mismatch:?}"
    );
    assert!(
        of("endpoints/token_share").iter().all(|share| *share == 1.0),
        "{:?}",
        of("endpoints/token_share")
    );
    assert_eq!(of("endpoints/ready")[4], 1.0);
    assert_eq!(of("endpoints/ready")[8], 2.0);
}
