//! The engine over its contract, with a small random model: real sampling, real updates, real files.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ajet_swarm::collective::Alone;
use ajet_swarm::engine::boot::{EngineError, Options, Purpose, run};
use ajet_swarm::engine::metrics::NAMES;
use ajet_swarm::protocol::engine::{
    ChatCall, DropReason, EndEpisode, EndOutcome, EngineEvent, EnginePhase, ForgetEpisode, Update,
};
use ajet_swarm::protocol::run_files::Advantages;
use ajet_swarm::protocol::status::{EpisodeDetail, EpisodeSummary};
use ajet_swarm::protocol::swarm::EpisodeType;
use ajet_swarm::server::engine::client::EngineClient;
use futures_util::{Stream, StreamExt};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama");
const TASKS: usize = 2;
const REPEATS: usize = 2;

/// What a step reports, whatever happened in it.
const REPORTED: [&str; 43] = [
    "global_step",
    "reward_mean",
    "reward_std",
    "reward_min",
    "reward_max",
    "reward_mean/easy",
    "success_rate",
    "episodes",
    "tasks",
    "dummy_tasks",
    "rows",
    "prompt_tokens",
    "response_tokens",
    "response_length_mean",
    "response_length_max",
    "truncated_share",
    "llm_calls_per_episode",
    "loss",
    "pg_loss",
    "kl",
    "entropy",
    "clip_frac_low",
    "clip_frac_high",
    "ratio_mean",
    "ratio_max",
    "grad_norm",
    "lr",
    "mismatch_kl",
    "importance_truncated_share",
    "dropped/aborted",
    "skipped_steps",
    "seconds/rolling",
    "seconds/post",
    "seconds/update",
    "seconds/update_scoring",
    "seconds/update_forward",
    "seconds/update_backward",
    "seconds/update_optimizer",
    "tokens_per_second/sampling",
    "tokens_per_second/training",
    "prefix_cache_share",
    "peak_memory_mb",
    "turns",
];

type Events = Pin<Box<dyn Stream<Item = EngineEvent> + Send>>;

/// A running engine, in this process.
struct Engine {
    client: EngineClient,
    events: Events,
    task: JoinHandle<Result<(), EngineError>>,
    abandon: oneshot::Sender<()>,
    _runtime_dir: tempfile::TempDir,
}

/// A configuration with `extra` lines below `ajet.trainer_common` and `lora` as `ajet.lora`.
fn config(extra: &str, lora: &str) -> String {
    format!(
        "ajet:
  experiment_name: test
  model: {{path: {MODEL}}}
  data: {{train_batch_size: {TASKS}, max_prompt_length: 64, max_response_length: 32}}
  rollout: {{num_repeat: {REPEATS}, max_response_length_in_one_turn: 8, compute_madness_checklist: []}}
  trainer_common:
    optim: {{lr: 1.0e-2}}
    {extra}
  lora: {lora}
  engine: {{device: cpu, threads: 1}}
"
    )
}

fn launch(experiment_dir: &Path, config: &str) -> Engine {
    let runtime_dir = tempfile::tempdir().unwrap();
    let options = Options {
        socket: runtime_dir.path().join("s"),
        config: runtime_dir.path().join("config.json"),
        experiment_dir: experiment_dir.to_owned(),
        purpose: Purpose::Training,
    };
    let config = ajet_swarm::config::parse(config).unwrap().to_json();
    std::fs::write(&options.config, config.to_string()).unwrap();
    let client = EngineClient::new(&options.socket);
    let (abandon, abandoned) = oneshot::channel::<()>();
    let task = tokio::spawn(run(options, Arc::new(Alone), async {
        let _ = abandoned.await;
    }));
    Engine {
        client,
        events: Box::pin(futures_util::stream::empty()),
        task,
        abandon,
        _runtime_dir: runtime_dir,
    }
}

impl Engine {
    /// Starts an engine and waits until it rolls. Returns the step it rolls at too.
    async fn start(experiment_dir: &Path, config: &str) -> (Self, u64) {
        let mut engine = launch(experiment_dir, config);
        engine.listen().await;
        let step = engine.until_rolling().await;
        (engine, step)
    }

    async fn listen(&mut self) {
        while self.client.hello().await.is_err() {
            assert!(!self.task.is_finished(), "{:?}", (&mut self.task).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let events = self.client.events().await.unwrap();
        self.events = Box::pin(events.map(Result::unwrap));
    }

    /// Reads events until the engine rolls; the step.
    async fn until_rolling(&mut self) -> u64 {
        while let Some(event) = self.events.next().await {
            match event {
                EngineEvent::Status {
                    phase: EnginePhase::Rolling,
                    global_step,
                    ..
                } => return global_step,
                EngineEvent::Fatal { message } => panic!("{message}"),
                _ => {}
            }
        }
        panic!("the engine ended: {:?}", (&mut self.task).await);
    }

    async fn chat(&self, episode: &str, text: &str) -> Value {
        let request = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let call = ChatCall {
            episode_type: EpisodeType::Train,
            request: to_raw_value(&request).unwrap(),
        };
        let answer = self.client.chat(episode, &call).await.unwrap();
        let status = answer.head.status;
        let body: Vec<u8> = answer
            .into_bytes_stream()
            .map(|bytes| bytes.unwrap().to_vec())
            .concat()
            .await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 200, "{body}");
        body
    }

    async fn end(&self, episode: &str, task: &str, episode_type: EpisodeType, reward: f64) -> EndOutcome {
        self.end_at(episode, task, episode_type, reward, 1).await
    }

    /// Ends an episode that was claimed at this step.
    async fn end_at(
        &self,
        episode: &str,
        task: &str,
        episode_type: EpisodeType,
        reward: f64,
        claimed_at_step: u64,
    ) -> EndOutcome {
        let end = EndEpisode {
            episode_type,
            client_uuid: "client".into(),
            task_id: task.into(),
            reward,
            is_success: Some(reward > 0.5),
            claimed_at_step,
            metadata: [("tag".to_owned(), json!("easy"))].into_iter().collect(),
            log_metrics: [("turns".to_owned(), json!(2))].into_iter().collect(),
        };
        self.client.end(episode, &end).await.unwrap()
    }

    /// Plays one episode of a step. The reward is a function of what the model said.
    async fn play(&self, step: u64, number: usize) -> EndOutcome {
        let (task, episode) = (format!("task-{}", number / REPEATS), format!("s{step}-e{number}"));
        let answer = self.chat(&episode, &format!("say {task}")).await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let reward = text.bytes().map(u64::from).sum::<u64>() as f64 / 1000.0 + number as f64;
        self.end(&episode, &task, EpisodeType::Train, reward).await
    }

    /// Plays a whole batch and its update; the step after it.
    async fn step(&mut self, step: u64) -> u64 {
        self.finish_step(step, 0).await
    }

    /// Plays what is left of a batch, and its update.
    async fn finish_step(&mut self, step: u64, from: usize) -> u64 {
        for number in from..TASKS * REPEATS {
            let outcome = self.play(step, number).await;
            assert_eq!((outcome.rows, outcome.llm_calls), (1, 1));
            assert_eq!(outcome.change.full, number + 1 == TASKS * REPEATS);
        }
        let dropped = [(DropReason::Aborted, 1), (DropReason::NoLlmCall, 1)]
            .into_iter()
            .collect();
        self.client.update(&Update { dropped }).await.unwrap();
        self.until_rolling().await
    }

    async fn shut_down(self) {
        self.client.shutdown().await.unwrap();
        drop(self.events);
        assert_eq!(self.task.await.unwrap(), Ok(()));
    }

    /// Ends it as when its control plane was killed: without a last checkpoint.
    async fn kill(self) {
        self.abandon.send(()).unwrap();
        drop(self.events);
        assert_eq!(self.task.await.unwrap(), Ok(()));
    }
}

fn metrics(experiment_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(experiment_dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn checkpoint(experiment_dir: &Path, step: u64) -> PathBuf {
    experiment_dir.join(format!("checkpoints/global_step_{step}"))
}

fn weights(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model.safetensors")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_of_the_best_evaluation_is_named_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = Engine::start(dir.path(), &config("save_freq: 1\n    keep_last: 1", "{}")).await;
    // The model before the first update has no checkpoint. The last evaluation is followed by no update.
    for (step, reward) in [(1, 1.0), (2, 0.25), (3, 0.75), (4, 0.5), (5, 0.625)] {
        let episode = format!("eval-{step}");
        engine.chat(&episode, "say it").await;
        engine.end_at(&episode, "v", EpisodeType::Eval, reward, step).await;
        if step < 5 {
            assert_eq!(engine.step(step).await, step + 1);
        }
    }
    engine.shut_down().await;
    let best = std::fs::read(dir.path().join("checkpoints/best")).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&best).unwrap(),
        json!({"step": 2, "metric": "eval/reward_mean", "value": 0.75, "episodes": 1})
    );
    let kept = [1, 2, 3, 4].map(|step| checkpoint(dir.path(), step).exists());
    assert_eq!(kept, [false, true, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_samples_trains_measures_and_writes_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, step) = Engine::start(dir.path(), &config("save_freq: 2", "{}")).await;
    assert_eq!(step, 1);
    let hello = engine.client.hello().await.unwrap();
    assert!(hello.ready && hello.trainable_parameters == hello.parameters);
    assert!(hello.device.starts_with("cpu ("), "{}", hello.device);
    assert!(
        engine.client.update(&Update::default()).await.is_err(),
        "the batch is not full"
    );

    engine.chat("eval", "say it").await;
    let outcome = engine.end("eval", "v", EpisodeType::Eval, 1.0).await;
    assert_eq!(outcome.change.added, None);
    engine.chat("given-up", "say it").await;
    let forget = ForgetEpisode {
        reason: DropReason::Aborted,
        episode_type: EpisodeType::Train,
        client_uuid: "c".into(),
        task_id: "t".into(),
        claimed_at_step: 1,
    };
    engine.client.forget("given-up", &forget).await.unwrap();
    let outcome = engine.end("never-called", "t", EpisodeType::Train, 1.0).await;
    assert_eq!(outcome.dropped, Some(DropReason::NoLlmCall));
    let first = engine.play(1, 0).await;
    let again = engine.play_end_again(1, 0).await;
    assert_eq!(again.change, first.change, "an end that is tried again adds nothing");

    assert_eq!(engine.finish_step(1, 1).await, 2);
    assert!(!checkpoint(dir.path(), 1).exists());
    assert_eq!(engine.step(2).await, 3);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("checkpoints/latest")).unwrap(),
        "global_step_2"
    );
    assert_ne!(weights(&checkpoint(dir.path(), 2)), weights(Path::new(MODEL)));
    engine.shut_down().await;

    let lines = metrics(dir.path());
    assert_eq!(lines.len(), 2);
    let first = &lines[0];
    for (name, value) in [
        ("global_step", 1.0),
        ("episodes", 4.0),
        ("tasks", 2.0),
        ("rows", 4.0),
        ("turns", 2.0),
        ("eval/episodes", 1.0),
        ("eval/reward_mean", 1.0),
        ("dropped/aborted", 1.0),
        ("dropped/no_llm_call", 1.0),
        ("llm_calls_per_episode", 1.0),
    ] {
        assert_eq!(first[name].as_f64(), Some(value), "{name} in {first}");
    }
    for name in REPORTED {
        assert!(first[name].is_number(), "{name} in {first}");
    }
    let own = ["turns", "eval/turns"];
    for name in first
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !own.contains(&name.as_str()))
    {
        let documented = |ours: &str| ours == name || ours.ends_with('/') && name.starts_with(ours);
        assert!(
            NAMES.iter().any(|(ours, _)| documented(ours)),
            "{name} is not documented"
        );
    }
    assert!(
        first["mismatch_kl"].as_f64().unwrap() < 1e-6,
        "sampler and trainer disagree: {first}"
    );
    assert!(lines[1]["seconds/export"].is_number());
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_with_eight_bits_is_trained_on_with_a_correction() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, quantization) = (config("save_freq: 9", "{}"), "rollout: {quantization: int8, ");
    assert!(config.contains("rollout: {"), "{config}");
    config = config.replacen("rollout: {", quantization, 1);
    let (mut engine, _) = Engine::start(dir.path(), &config).await;
    engine.step(1).await;
    engine.step(2).await;
    engine.shut_down().await;
    for line in metrics(dir.path()) {
        let mismatch = line["mismatch_kl"].as_f64().unwrap();
        assert!(
            mismatch > 1e-6 && mismatch < 0.1,
            "rounded weights sample a little differently: {line}"
        );
        assert!(line["importance_truncated_share"].as_f64().unwrap() < 0.1, "{line}");
        assert!(line["grad_norm"].as_f64().unwrap() > 0.0, "{line}");
    }
}

impl Engine {
    /// Sends an end once more, as after a lost answer.
    async fn play_end_again(&self, step: u64, number: usize) -> EndOutcome {
        let episode = format!("s{step}-e{number}");
        self.end(&episode, "whatever", EpisodeType::Train, 99.0).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_ends_with_the_very_weights_of_an_unbroken_one() {
    for lora in ["{}", "{lora_rank: 2, lora_alpha: 4}"] {
        let file = if lora == "{}" {
            "model.safetensors"
        } else {
            "adapter_model.safetensors"
        };
        let config = config("save_freq: 2", lora);
        let unbroken = tempfile::tempdir().unwrap();
        let (mut engine, _) = Engine::start(unbroken.path(), &config).await;
        for step in 1..=4 {
            engine.step(step).await;
        }
        engine.shut_down().await;

        let broken = tempfile::tempdir().unwrap();
        let (mut engine, _) = Engine::start(broken.path(), &config).await;
        engine.step(1).await;
        engine.play(2, 0).await;
        engine.kill().await;
        // no checkpoint yet: the first update is repeated, the second batch goes on
        let (mut engine, step) = Engine::start(broken.path(), &config).await;
        assert_eq!(step, 2);
        assert_eq!(engine.client.hello().await.unwrap().pool.episodes.len(), 1);
        assert_eq!(engine.finish_step(2, 1).await, 3);
        assert_eq!(engine.step(3).await, 4);
        engine.play(4, 0).await;
        engine.kill().await;
        // from the checkpoint of step 2, with the update of step 3 repeated
        let (mut engine, step) = Engine::start(broken.path(), &config).await;
        assert_eq!(step, 4);
        assert_eq!(engine.finish_step(4, 1).await, 5);
        engine.shut_down().await;

        let read = |dir: &Path, step| std::fs::read(checkpoint(dir, step).join(file)).unwrap();
        assert_eq!(read(broken.path(), 4), read(unbroken.path(), 4), "lora: {lora}");
        assert_ne!(read(broken.path(), 4), read(broken.path(), 2));
        let steps: Vec<_> = metrics(broken.path())
            .iter()
            .map(|m| m["global_step"].clone())
            .collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        for line in metrics(broken.path()) {
            let mismatch = line["mismatch_kl"].as_f64().unwrap();
            assert!(mismatch < 1e-6, "the sampler does not use the updated weights: {line}");
        }
        let losses = |dir: &Path| metrics(dir).iter().map(|m| m["loss"].clone()).collect::<Vec<_>>();
        assert_eq!(losses(broken.path()), losses(unbroken.path()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_end_saves_what_no_checkpoint_holds_and_a_new_start_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = Engine::start(dir.path(), &config("save_freq: 100", "{}")).await;
    engine.step(1).await;
    engine.shut_down().await;
    assert!(checkpoint(dir.path(), 1).join("model.safetensors").exists());
    let (engine, step) = Engine::start(dir.path(), &config("save_freq: 100", "{}")).await;
    assert_eq!(step, 2);
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flagged_train_episode_has_the_reward_of_madness_and_an_eval_episode_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let flagging = config("save_freq: 100", "{}").replace(
        "compute_madness_checklist: []",
        "compute_madness_checklist: [format_type_1], agent_madness_reward: -2.5",
    );
    let (mut engine, _) = Engine::start(dir.path(), &flagging).await;
    engine.chat("eval", "say it").await;
    engine.end("eval", "v", EpisodeType::Eval, 1.0).await;
    assert_eq!(engine.finish_step(1, 0).await, 2);
    engine.shut_down().await;
    let line = &metrics(dir.path())[0];
    assert_eq!((&line["reward_min"], &line["reward_max"]), (&json!(-2.5), &json!(-2.5)));
    assert_eq!(line["counts/madness/format_type_1"], TASKS * REPEATS);
    assert_eq!(line["eval/reward_mean"], 1);
    assert_eq!(line["grad_norm"], 0, "equal rewards are no signal: {line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn event_files_and_trajectories_are_written_where_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "logger: [swanlab]";
    let (mut engine, _) = Engine::start(dir.path(), &config(lines, "{}")).await;
    engine.step(1).await;
    engine.shut_down().await;
    let files = |below: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir.path().join(below)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let [events] = files("tensorboard").try_into().unwrap();
    assert!(events.to_string_lossy().contains("tfevents") && std::fs::metadata(events).unwrap().len() > 500);
    let trajectories = files("trajectories/train/step_1");
    assert_eq!(trajectories.len(), TASKS * REPEATS + 1, "and the advantages");
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let advantages: Advantages =
        serde_json::from_str(&text(&dir.path().join("trajectories/train/step_1/advantages.json"))).unwrap();
    assert_eq!(advantages.len(), TASKS * REPEATS);
    let index = text(&dir.path().join("episodes.jsonl"));
    let ended: Vec<EpisodeSummary> = index.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ended.len(), TASKS * REPEATS);
    for summary in ended {
        let path = dir
            .path()
            .join(format!("trajectories/train/step_1/{}.json", summary.episode_uuid));
        let told: EpisodeDetail = serde_json::from_str(&text(&path)).unwrap();
        assert_eq!(told.conversations[0].messages.len(), 2);
        assert_eq!(
            (told.summary.reward, told.summary.tag.as_deref()),
            (summary.reward, Some("easy"))
        );
        assert!(summary.has_transcript && summary.seconds > 0.0 && summary.completion_tokens > 0);
        let row = &told.rows[0];
        assert!(row.ids.len() == row.texts.len() && row.ids.len() == row.mask.len() && row.mask.contains(&true));
        assert_eq!(advantages[&summary.episode_uuid].len(), told.rows.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_after_a_damaged_checkpoint_are_done_and_recorded_anew() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("save_freq: 1", "{}");
    let (mut engine, _) = Engine::start(dir.path(), &config).await;
    engine.step(1).await;
    engine.step(2).await;
    engine.shut_down().await;
    let weights = checkpoint(dir.path(), 2).join("model.safetensors");
    std::fs::OpenOptions::new()
        .write(true)
        .open(weights)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let (mut engine, step) = Engine::start(dir.path(), &config).await;
    assert_eq!(step, 2);
    assert_eq!(engine.step(2).await, 3);
    engine.shut_down().await;
    let steps: Vec<_> = metrics(dir.path()).iter().map(|m| m["global_step"].clone()).collect();
    assert_eq!(steps, [1, 2, 2]);
    let (engine, step) = Engine::start(dir.path(), &config).await;
    assert_eq!(step, 3);
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_passed_over_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("save_freq: 1", "{}");
    let (mut engine, _) = Engine::start(dir.path(), &config).await;
    engine.step(1).await;
    engine.step(2).await;
    engine.shut_down().await;
    std::fs::remove_file(checkpoint(dir.path(), 2).join("model.safetensors")).unwrap();
    let mut engine = launch(dir.path(), &config);
    engine.listen().await;
    // The present status comes first; where the engine booted quickly, what it said before comes after.
    let (mut log, mut rolls_at) = (String::new(), None);
    while rolls_at.is_none() || !log.contains("model.safetensors") {
        let event = tokio::time::timeout(Duration::from_secs(60), engine.events.next()).await;
        match event.expect("no warning came").unwrap() {
            EngineEvent::Log { message, .. } => log += &message,
            EngineEvent::Status {
                phase: EnginePhase::Rolling,
                global_step,
                ..
            } => rolls_at = Some(global_step),
            _ => {}
        }
    }
    assert_eq!(rolls_at, Some(2));
    assert!(log.contains("global_step_2 is damaged"), "{log}");
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_an_engine_from_booting_is_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = Engine::start(dir.path(), &config("save_freq: 1", "{lora_rank: 2}")).await;
    engine.step(1).await;
    engine.shut_down().await;

    let elsewhere = config("save_freq: 1", "{}").replace(MODEL, "/no/such/model");
    let no_gpu = config("save_freq: 1", "{}").replace("device: cpu", "device: 'tpu:0'");
    let fresh = tempfile::tempdir().unwrap();
    let file = fresh.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below_a_file = file.join("experiment");
    for (dir, config, told) in [
        (
            below_a_file.as_path(),
            config("save_freq: 1", "{}"),
            "cannot use the experiment directory",
        ),
        (
            dir.path(),
            config("save_freq: 1", "{lora_rank: 4}"),
            "ajet.lora.lora_rank is 4, but",
        ),
        (fresh.path(), elsewhere, "/no/such/model"),
        (fresh.path(), no_gpu, "tpu:0"),
    ] {
        let mut engine = launch(dir, &config);
        let error = match tokio::time::timeout(Duration::from_secs(60), &mut engine.task).await {
            Ok(ended) => ended.unwrap().unwrap_err().to_string(),
            Err(_) => panic!("it hangs instead of saying `{told}`"),
        };
        assert!(error.contains(told), "{error}");
    }
}

/// Seen with AgentJet's client: the reason spoke of the journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_metrics_that_cannot_be_written_is_told_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let too_long = dir.path().join("m".repeat(300));
    for key in ["train_print_to_markdown_file_path", "val_print_to_markdown_file_path"] {
        for path in [
            dir.path(),
            &file.join("metrics.md"),
            &too_long,
            "/proc/none/m.md".as_ref(),
        ] {
            let config = config(&format!("{key}: {}", path.display()), "{}");
            let experiment = tempfile::tempdir().unwrap();
            let mut engine = launch(experiment.path(), &config);
            let ended = tokio::time::timeout(Duration::from_secs(60), &mut engine.task).await;
            let error = ended.unwrap().unwrap().unwrap_err().to_string();
            let told = format!("cannot write ajet.trainer_common.{key}: {}: ", path.display());
            assert!(error.starts_with(&told), "{error}");
        }
    }
}
