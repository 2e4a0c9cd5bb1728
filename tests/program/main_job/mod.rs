//! The main job over HTTP: a swarm server with a real engine and the built-in model, and clients that train it.

use std::collections::BTreeSet;
mod faults;
pub(crate) mod process;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ajet_swarm::client::{BeginEpisode, ClientError, EndOutcome, Episode, SwarmClient};
use ajet_swarm::protocol::openai::{ChatCompletion, ChatMessage, ChatRequest};
use ajet_swarm::protocol::swarm::{EngineStatus, EngineStatusAnswer, EpisodeType, WorkflowOutput};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use process::Server;
use serde_json::Value;

const TASKS: usize = 2;
const REPEATS: usize = 2;

fn config(model: &str) -> String {
    format!(
        "ajet:
  experiment_name: main-job
  model: {{path: '{model}'}}
  data: {{train_batch_size: {TASKS}, max_prompt_length: 96, max_response_length: 32}}
  rollout: {{num_repeat: {REPEATS}, max_response_length_in_one_turn: 12, compute_madness_checklist: []}}
  trainer_common: {{save_freq: 2, optim: {{lr: 1.0e-3}}}}
  engine: {{device: cpu, threads: 1}}
"
    )
}

/// One LLM call of an episode.
async fn ask(episode: &Episode, word: &str) -> Result<ChatCompletion, ClientError> {
    let message = ChatMessage {
        role: "user".into(),
        content: format!("Reverse the word: {word}").into(),
        ..ChatMessage::default()
    };
    let request = ChatRequest {
        messages: vec![message],
        ..ChatRequest::default()
    };
    episode.model().chat(&request).await
}

/// Plays one episode; the reward is its number, so that no group's rewards are equal.
async fn play(
    swarm: &SwarmClient,
    episode_type: EpisodeType,
    task: &str,
    reward: f64,
) -> Result<EndOutcome, ClientError> {
    let begin = BeginEpisode {
        episode_type,
        ..BeginEpisode::default()
    };
    let episode = swarm.begin_episode(&begin).await?;
    let answer = ask(&episode, task).await?;
    assert!(answer.usage.completion_tokens > 0);
    let output = WorkflowOutput {
        reward: reward.into(),
        ..WorkflowOutput::default()
    };
    episode.end(task, output).await
}

/// Plays the episodes of a batch at once, as agents do.
async fn play_batch(swarms: &[&SwarmClient]) {
    let numbers = 0..TASKS * REPEATS;
    let episodes = numbers.map(|n| async move {
        let (swarm, task) = (swarms[n % swarms.len()], format!("task{}", n / REPEATS));
        play(swarm, EpisodeType::Train, &task, n as f64).await.unwrap()
    });
    futures_util::future::join_all(episodes).await;
}

/// Waits until the engine rolls at `global_step`, noting every state on the way.
async fn until_rolling_at(
    swarm: &SwarmClient,
    global_step: u64,
    seen: &Mutex<BTreeSet<&'static str>>,
) -> EngineStatusAnswer {
    loop {
        let status = swarm.status().await.unwrap();
        seen.lock().unwrap().insert(status.engine_status.as_str());
        assert_ne!(status.engine_status, EngineStatus::Offline, "{status:?}");
        if status.engine_status == EngineStatus::Rolling && status.global_step == global_step {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn metrics(experiment_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(experiment_dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_train_the_built_in_model_through_all_five_states() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let (first, second) = (
        SwarmClient::new(&server.url).unwrap(),
        SwarmClient::new(&server.url).unwrap(),
    );
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let offline = first.status().await.unwrap().engine_status;
    seen.lock().unwrap().insert(offline.as_str());
    first.sync_train_config(&config("builtin:tiny")).await.unwrap();
    let booting = seen.clone();
    let note = move |status: &EngineStatusAnswer| {
        booting.lock().unwrap().insert(status.engine_status.as_str());
    };
    first.start_engine(note).await.unwrap();
    assert_eq!(first.status().await.unwrap().global_step, 1);
    play(&first, EpisodeType::Eval, "held-out", 1.0).await.unwrap();

    for step in 1..=2 {
        // One episode still runs when the batch is full: the state in between lasts until it ends.
        let late = second.begin_episode(&BeginEpisode::default()).await.unwrap();
        play_batch(&[&first, &second]).await;
        let status = first.status().await.unwrap();
        assert_eq!(status.engine_status, EngineStatus::RollingPost);
        seen.lock().unwrap().insert(status.engine_status.as_str());
        late.abort().await.unwrap();
        until_rolling_at(&first, step + 1, &seen).await;
    }
    let all = ["BOOTING", "OFFLINE", "ROLLING", "ROLLING_POST", "WEIGHT_SYNCING"];
    let seen: Vec<_> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|s| s.trim_start_matches("ENGINE."))
        .collect();
    assert_eq!(seen, all);

    let pool = second.pool_information().await.unwrap();
    assert_eq!((pool.completed_episodes, pool.global_step), (0, 3));
    assert!(pool.latest_metrics["grad_norm"] > 0.0, "{:?}", pool.latest_metrics);
    let checkpoint = server.experiment_dir().join("checkpoints/global_step_2");
    assert!(checkpoint.join("model.safetensors").exists() && checkpoint.join("tokenizer.json").exists());
    let lines = metrics(&server.experiment_dir());
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["eval/reward_mean"], 1);
    assert_eq!(lines[1]["reward_mean"], 1.5);

    first.stop_engine().await.unwrap();
    assert_eq!(first.status().await.unwrap().engine_status, EngineStatus::Offline);
    assert_eq!(server.engines(), [0; 0]);
    assert_eq!(server.end_by(Signal::SIGINT), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_comes_back_with_the_batch_and_a_good_end_saves_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let swarm = SwarmClient::new(&server.url).unwrap();
    swarm.sync_train_config(&config("builtin:tiny")).await.unwrap();
    swarm.start_engine(|_| {}).await.unwrap();
    let seen = Mutex::default();
    play_batch(&[&swarm]).await;
    until_rolling_at(&swarm, 2, &seen).await;
    play(&swarm, EpisodeType::Train, "task0", 0.0).await.unwrap();

    let killed = server.engines();
    assert_eq!(killed.len(), 1);
    kill(Pid::from_raw(killed[0]), Signal::SIGKILL).unwrap();
    while server.engines().iter().all(|pid| killed.contains(pid)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until_rolling_at(&swarm, 2, &seen).await;
    assert_eq!(swarm.pool_information().await.unwrap().completed_episodes, 1);
    for (task, reward) in [("task0", 1.0), ("task1", 0.0), ("task1", 1.0)] {
        play(&swarm, EpisodeType::Train, task, reward).await.unwrap();
    }
    until_rolling_at(&swarm, 3, &seen).await;
    let steps: Vec<_> = metrics(&server.experiment_dir())
        .iter()
        .map(|m| m["global_step"].clone())
        .collect();
    assert_eq!(steps, [1, 2]);

    play_batch(&[&swarm]).await;
    until_rolling_at(&swarm, 4, &seen).await;
    let experiment = server.experiment_dir();
    assert_eq!(server.engines().len(), 1);
    swarm.stop_engine().await.unwrap();
    assert_eq!(
        std::fs::read_to_string(experiment.join("checkpoints/latest")).unwrap(),
        "global_step_3"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_there_is_told_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let swarm = SwarmClient::new(&server.url).unwrap();
    let told = match swarm.sync_train_config(&config("/no/such/model")).await {
        Err(error) => error,
        Ok(()) => swarm.start_engine(|_| {}).await.unwrap_err(),
    };
    assert!(told.to_string().contains("/no/such/model"), "{told}");
    assert_eq!(swarm.status().await.unwrap().engine_status, EngineStatus::Offline);
}

/// A chat call with this very body; the status and the answer's JSON.
async fn post_chat(url: &str, key: &str, body: Vec<u8>) -> (u16, Value) {
    let call = reqwest::Client::new().post(format!("{url}/v1/chat/completions"));
    let answer = call.bearer_auth(key).body(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_the_apis_error_and_cost_the_episode_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let swarm = SwarmClient::new(&server.url).unwrap();
    swarm.sync_train_config(&config("builtin:tiny")).await.unwrap();
    swarm.start_engine(|_| {}).await.unwrap();
    let claim = BeginEpisode {
        episode_type: EpisodeType::Eval,
        ..BeginEpisode::default()
    };
    let episode = swarm.begin_episode(&claim).await.unwrap();
    let chat = |body: String| post_chat(&server.url, episode.api_key(), body.into_bytes());
    let with =
        |field: &str| format!(r#"{{"messages": [{{"role": "user", "content": "Reverse the word: abc"}}], {field}}}"#);

    let stops = vec!["x"; 1000];
    for (body, said) in [
        (with(r#""max_tokens": 0"#), "`max_tokens` must be at least 1, got 0"),
        (with(r#""max_tokens": -3"#), "`max_tokens` is invalid"),
        (with(r#""max_tokens": 1e400"#), "number out of range"),
        (with(r#""temperature": NaN"#), "expected value"),
        (with(r#""temperature": "NaN""#), "`temperature` is invalid"),
        (
            with(r#""temperature": -1"#),
            "`temperature` must be between 0 and 2, got -1",
        ),
        (with(&format!(r#""stop": {stops:?}"#)), "at most 64 strings, got 1000"),
        (
            r#"{"messages": []}"#.into(),
            "`messages` must contain at least one message",
        ),
        ("[]".into(), "JSON object"),
        (String::new(), "EOF"),
    ] {
        let (status, answer) = chat(body.clone()).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(message.contains(said), "{body}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{body}: {answer}");
    }
    let broken = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}".to_vec();
    let (status, answer) = post_chat(&server.url, episode.api_key(), broken).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].is_string(), "{answer}");

    let (status, answer) = chat(with(r#""max_tokens": 4"#)).await;
    assert_eq!(
        (status, &answer["object"]),
        (200, &"chat.completion".into()),
        "{answer}"
    );
    // Longer than the context: by default the agent gets the answer that AgentJet's helper knows, which ends for its length.
    let long = "word ".repeat(5000);
    let (status, answer) = chat(format!(r#"{{"messages": [{{"role": "user", "content": "{long}"}}]}}"#)).await;
    let choice = &answer["choices"][0];
    assert_eq!((status, &choice["finish_reason"]), (200, &"length".into()), "{answer}");
    let notice = choice["message"]["content"].as_str().unwrap();
    assert!(
        notice.starts_with("AgentJet: Exceeded max model context length. token_overflow("),
        "{answer}"
    );
    let output = WorkflowOutput {
        reward: 1.0.into(),
        ..WorkflowOutput::default()
    };
    assert_eq!(episode.end("task0", output).await.unwrap(), EndOutcome::Accepted);
}
