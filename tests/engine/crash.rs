//! The engine as a process that is killed, and that runs into a full disk: what was finished is never lost.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use ajet_swarm::protocol::engine::{ChatCall, EndEpisode, EngineEvent, EnginePhase, Hello, LogLevel, Update};
use ajet_swarm::protocol::status::EpisodeSummary;
use ajet_swarm::protocol::swarm::EpisodeType;
use ajet_swarm::server::engine::client::{EngineCallError, EngineClient};
use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama");
const TASKS: usize = 2;
const REPEATS: usize = 2;
const EPISODES: usize = TASKS * REPEATS;

fn config(save_freq: i64) -> String {
    format!(
        "ajet:
  experiment_name: test
  model: {{path: {MODEL}}}
  data: {{train_batch_size: {TASKS}, max_prompt_length: 64, max_response_length: 32}}
  rollout: {{num_repeat: {REPEATS}, max_response_length_in_one_turn: 8, compute_madness_checklist: []}}
  trainer_common: {{optim: {{lr: 1.0e-2}}, save_freq: {save_freq}}}
  engine: {{device: cpu, threads: 1}}
"
    )
}

/// YAML as the JSON that an engine reads.
fn as_json(yaml: &str) -> String {
    ajet_swarm::config::parse(yaml).unwrap().to_json().to_string()
}

/// An engine process. It is killed when this is dropped.
struct Engine {
    child: Mutex<Child>,
    client: EngineClient,
    _runtime_dir: tempfile::TempDir,
}

impl Engine {
    fn spawn(experiment_dir: &Path, config: &str) -> Self {
        let runtime_dir = tempfile::tempdir().unwrap();
        let socket = runtime_dir.path().join("s");
        let config_file = runtime_dir.path().join("config.json");
        std::fs::write(&config_file, as_json(config)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .arg("engine")
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config_file)
            .arg("--experiment-dir")
            .arg(experiment_dir)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            child: Mutex::new(child),
            client: EngineClient::new(&socket),
            _runtime_dir: runtime_dir,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.lock().unwrap().id().unwrap() as i32)
    }

    fn has_ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits until it is booted and its batch is the one of `step` or a later one.
    async fn ready(&self, step: u64) -> Result<Hello, EngineCallError> {
        for _ in 0..6000 {
            match self.client.hello().await {
                Ok(hello) if hello.ready && hello.pool.global_step >= step => return Ok(hello),
                Err(error) if self.has_ended() => return Err(error),
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the engine does not get to step {step}");
    }

    async fn chat(&self, episode: &str, text: &str) -> Result<String, EngineCallError> {
        loop {
            let call = ChatCall {
                episode_type: EpisodeType::Train,
                request: to_raw_value(&json!({"model": "m", "messages": [{"role": "user", "content": text}]})).unwrap(),
            };
            let answer = self.client.chat(episode, &call).await?;
            let status = answer.head.status.as_u16();
            let parts: Vec<_> = answer.into_bytes_stream().collect().await;
            let parts: Result<Vec<_>, _> = parts.into_iter().collect();
            let bytes = parts
                .map_err(|error| EngineCallError::Unreachable(error.to_string()))?
                .concat();
            let body: Value = match serde_json::from_slice(&bytes) {
                Ok(body) => body,
                Err(error) => return Err(EngineCallError::Unreachable(error.to_string())), // cut in the middle
            };
            match status {
                200 => return Ok(body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()),
                503 => tokio::time::sleep(Duration::from_millis(5)).await, // the update is about to end
                _ => panic!("{status} {body}"),
            }
        }
    }

    /// Plays one episode of a step; its reward is a function of what the model said.
    async fn play(&self, step: u64, number: usize) -> Result<(), EngineCallError> {
        let (task, episode) = (format!("task-{}", number / REPEATS), name(step, number));
        let text = self.chat(&episode, &format!("say {task}")).await?;
        let reward = text.bytes().map(u64::from).sum::<u64>() as f64 / 1000.0 + number as f64;
        self.end(&episode, &task, reward).await
    }

    async fn end(&self, episode: &str, task: &str, reward: f64) -> Result<(), EngineCallError> {
        let end = EndEpisode {
            episode_type: EpisodeType::Train,
            client_uuid: "client".into(),
            task_id: task.into(),
            reward,
            is_success: None,
            claimed_at_step: 1,
            metadata: Default::default(),
            log_metrics: Default::default(),
        };
        self.client.end(episode, &end).await.map(|_| ())
    }

    async fn shut_down(self) {
        self.client.shutdown().await.unwrap();
        assert!(self.child.into_inner().unwrap().wait().await.unwrap().success());
    }

    /// Lets files grow up to so many bytes, or without bounds again.
    fn limit_files(&self, bytes: Option<u64>) {
        let soft = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let status = std::process::Command::new("prlimit")
            .args(["--pid", &self.pid().to_string(), &format!("--fsize={soft}:unlimited")])
            .status()
            .expect("prlimit of util-linux is needed");
        assert!(status.success());
    }
}

fn name(step: u64, number: usize) -> String {
    format!("s{step}-e{number}")
}

fn checkpoint(experiment_dir: &Path, step: u64) -> PathBuf {
    experiment_dir.join(format!("checkpoints/global_step_{step}"))
}

fn metrics(experiment_dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(experiment_dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// When an engine is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// While an episode is sampled or ended.
    Sampling,
    /// When the batch is full.
    Post,
    /// While the weights are updated.
    Update,
    /// While a checkpoint is written.
    Export,
    /// At any time at all, also while it boots and repeats updates.
    Whenever,
}

/// Kills an engine some time after its moment.
struct Fuse {
    moment: Moment,
    delay: Duration,
    pid: Pid,
}

impl Fuse {
    fn reached(&self, moment: Moment) {
        if moment == self.moment {
            let (pid, delay) = (self.pid, self.delay);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = kill(pid, Signal::SIGKILL); // it was killed already
            });
        }
    }
}

/// Sees in the engine's events when it updates and exports.
async fn watch(client: EngineClient, fuse: Fuse) {
    let Ok(mut events) = client.events().await else { return };
    while let Some(Ok(event)) = events.next().await {
        let EngineEvent::Status { phase, detail, .. } = event else {
            continue;
        };
        let detail = detail.unwrap_or_default();
        if phase == EnginePhase::WeightSyncing || detail.starts_with("repeating") {
            fuse.reached(Moment::Update);
        }
        if detail.starts_with("exporting") {
            fuse.reached(Moment::Export);
        }
    }
}

/// Plays and updates up to a step; ends with an error when the engine dies. `acknowledged` are the ends it confirmed.
async fn drive(
    engine: &Engine,
    steps: u64,
    fuse: Option<&Fuse>,
    acknowledged: &mut BTreeSet<String>,
) -> Result<(), EngineCallError> {
    let reached = |moment| {
        if let Some(fuse) = fuse {
            fuse.reached(moment);
        }
    };
    loop {
        let hello = engine.ready(1).await?;
        let step = hello.pool.global_step;
        if step > steps {
            return Ok(());
        }
        let pooled: Vec<&str> = hello.pool.episodes.iter().map(|e| e.episode_uuid.as_str()).collect();
        let distinct: BTreeSet<&str> = pooled.iter().copied().collect();
        assert_eq!(distinct.len(), pooled.len(), "an episode is doubled: {pooled:?}");
        for number in 0..EPISODES {
            let name = name(step, number);
            if distinct.contains(name.as_str()) {
                acknowledged.insert(name); // or its answer was lost
                continue;
            }
            assert!(
                !acknowledged.contains(&name),
                "{name} was finished and is lost; the pool has {pooled:?}"
            );
            reached(Moment::Sampling);
            engine.play(step, number).await?;
            acknowledged.insert(name);
        }
        reached(Moment::Post);
        match engine.client.update(&Update::default()).await {
            Err(EngineCallError::Refused { message, .. }) => panic!("{message}"),
            other => other?,
        }
        engine.ready(step + 1).await?;
    }
}

/// A whole run; the engine is killed at each of the moments.
async fn run(experiment_dir: &Path, steps: u64, moments: &[Moment], rng: &mut ChaCha8Rng) {
    let mut acknowledged = BTreeSet::new();
    for moment in moments {
        let engine = Engine::spawn(experiment_dir, &config(2));
        let fuse = |rng: &mut ChaCha8Rng| Fuse {
            moment: *moment,
            delay: Duration::from_micros(match moment {
                Moment::Sampling => rng.random_range(0..60_000),
                Moment::Post => rng.random_range(0..3_000),
                Moment::Update => rng.random_range(0..60_000),
                Moment::Export => rng.random_range(0..15_000),
                Moment::Whenever => rng.random_range(0..300_000),
            }),
            pid: engine.pid(),
        };
        let (mine, watched) = (fuse(rng), fuse(rng));
        mine.reached(Moment::Whenever);
        let client = engine.client.clone();
        let watching = tokio::spawn(async move {
            while client.hello().await.is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            watch(client, watched).await;
        });
        let driven = drive(&engine, steps, Some(&mine), &mut acknowledged).await;
        // On a quick machine the last step may be done before; the engine is killed then while it has nothing to do.
        assert!(
            driven.is_err() || matches!(moment, Moment::Whenever),
            "{moment:?} never came within {steps} steps"
        );
        let status = engine.child.into_inner().unwrap().wait().await.unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{moment:?}"
        );
        watching.abort();
    }
    let engine = Engine::spawn(experiment_dir, &config(2));
    drive(&engine, steps, None, &mut acknowledged).await.unwrap();
    engine.shut_down().await;
    assert_eq!(acknowledged.len() as u64, steps * EPISODES as u64);
}

/// `AJET_KILLS=20` kills twenty times instead of five.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_ends_with_the_weights_of_an_unbroken_run() {
    let kills: usize = std::env::var("AJET_KILLS").map_or(5, |kills| kills.parse().unwrap());
    let moments = [
        Moment::Sampling,
        Moment::Post,
        Moment::Update,
        Moment::Export,
        Moment::Whenever,
    ];
    let moments: Vec<Moment> = moments.into_iter().cycle().take(kills).collect();
    let steps = 2 * kills as u64;
    let mut rng = ChaCha8Rng::seed_from_u64(kills as u64);

    let (unbroken, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(unbroken.path(), steps, &[], &mut rng).await;
    run(broken.path(), steps, &moments, &mut rng).await;

    for file in [
        "model.safetensors",
        "trainer/trainer.safetensors",
        "trainer/trainer.json",
    ] {
        let read = |dir: &Path| std::fs::read(checkpoint(dir, steps).join(file)).unwrap();
        assert!(read(broken.path()) == read(unbroken.path()), "{file} differs");
    }
    let told = |dir: &Path| -> Vec<(Value, Value, Value)> {
        let of = |m: &Value| (m["global_step"].clone(), m["episodes"].clone(), m["loss"].clone());
        metrics(dir).iter().map(of).collect()
    };
    assert_eq!(told(broken.path()), told(unbroken.path()));
    assert_eq!(told(broken.path()).len() as u64, steps);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_checkpoints_asked_for_the_journal_is_cut_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn(dir.path(), &config(-1));
    let journal = || std::fs::metadata(dir.path().join("journal.jsonl")).unwrap().len();
    drive(&engine, 49, None, &mut BTreeSet::new()).await.unwrap();
    let before = journal();
    drive(&engine, 50, None, &mut BTreeSet::new()).await.unwrap();
    // The next batch is open a moment before the checkpoint has its name and the journal is cut.
    for _ in 0..1000 {
        if checkpoint(dir.path(), 50).exists() && journal() < before / 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(checkpoint(dir.path(), 50).exists());
    assert!(journal() < before / 10, "{before} bytes became {}", journal());
    engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_ends_are_refused_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn(dir.path(), &config(100));
    engine.ready(1).await.unwrap();
    engine.play(1, 0).await.unwrap();
    let journal = dir.path().join("journal.jsonl");
    let written = std::fs::read(&journal).unwrap();
    // room for the beginning of a line
    engine.limit_files(Some(written.len() as u64 + 20));
    engine.chat(&name(1, 1), "say task-0").await.unwrap();
    for _ in 0..2 {
        let Err(EngineCallError::Refused { status, message }) = engine.end(&name(1, 1), "task-0", 0.25).await else {
            panic!("an end was acknowledged that is not on disk");
        };
        assert_eq!(status.as_u16(), 503, "{message}");
        assert!(message.contains("journal.jsonl"), "{message}");
        assert_eq!(std::fs::read(&journal).unwrap(), written, "half a line is left");
    }
    assert_eq!(engine.ready(1).await.unwrap().pool.episodes.len(), 1);
    engine.limit_files(None);
    engine.end(&name(1, 1), "task-0", 0.25).await.unwrap();
    let pool = engine.ready(1).await.unwrap().pool;
    assert_eq!(pool.episodes.len(), 2);
    assert_eq!(pool.episodes[1].reward, 0.25);
    drop(engine);
    let engine = Engine::spawn(dir.path(), &config(100));
    assert_eq!(engine.ready(1).await.unwrap().pool.episodes.len(), 2);
    engine.shut_down().await;
}

/// Waits for a status of this phase whose detail has these words; the detail.
async fn shown(engine: &Engine, phase: EnginePhase, words: &str) -> String {
    let mut events = Box::pin(engine.client.events().await.unwrap());
    loop {
        if let EngineEvent::Status {
            phase: now,
            detail: Some(detail),
            ..
        } = events.next().await.unwrap().unwrap()
            && now == phase
            && detail.contains(words)
        {
            return detail;
        }
    }
}

/// Seen with a disk that filled up at the `update` record: three crashes in 8 s, then OFFLINE.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_an_update_is_refused_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn(dir.path(), &config(100));
    engine.ready(1).await.unwrap();
    for number in 0..EPISODES {
        engine.play(1, number).await.unwrap();
    }
    let journal = std::fs::metadata(dir.path().join("journal.jsonl")).unwrap().len();
    engine.limit_files(Some(journal + 5));
    for _ in 0..3 {
        let refused = engine.client.update(&Update::default()).await;
        assert!(
            matches!(&refused, Err(EngineCallError::Refused { status, .. }) if status.as_u16() == 503),
            "{refused:?}"
        );
    }
    engine.limit_files(None);
    engine.client.update(&Update::default()).await.unwrap();
    engine.ready(2).await.unwrap();
    engine.shut_down().await;
    assert_eq!(metrics(dir.path())[0]["episodes"], EPISODES);
}

/// Seen with a directory that was deleted while the engine ran: its ends were acknowledged into the void.
#[tokio::test(flavor = "multi_thread")]
async fn no_end_is_acknowledged_into_a_directory_that_is_gone() {
    type Loss = fn(&Path);
    let losses: [(&str, Loss); 3] = [
        ("deleted", |dir| std::fs::remove_dir_all(dir).unwrap()),
        ("moved away", |dir| {
            std::fs::rename(dir, dir.with_extension("away")).unwrap()
        }),
        ("its journal replaced", |dir| {
            std::fs::remove_file(dir.join("journal.jsonl")).unwrap();
            std::fs::write(dir.join("journal.jsonl"), "").unwrap();
        }),
    ];
    for (name, lose) in losses {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("experiment");
        let engine = Engine::spawn(&dir, &config(100));
        engine.ready(1).await.unwrap();
        engine.play(1, 0).await.unwrap();
        lose(&dir);
        let Err(EngineCallError::Refused { status, message }) = engine.play(1, 1).await else {
            panic!("{name}: an end was acknowledged");
        };
        assert!(
            status.as_u16() == 503 && message.contains("deleted or replaced"),
            "{name}: {message}"
        );
        shown(&engine, EnginePhase::Rolling, "deleted or replaced").await;
        assert_eq!(engine.ready(1).await.unwrap().pool.episodes.len(), 1, "{name}");
    }
}

/// Seen with a NaN in a model's file: ROLLING, and every chat a 500, without a word why.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_finite_does_not_boot() {
    for (at, value) in [(0, f32::NAN), (0, f32::INFINITY), (9, f32::NEG_INFINITY)] {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir(&model).unwrap();
        for entry in std::fs::read_dir(MODEL).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
        }
        let file = model.join("model.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let place = 8 + header + 4 * at;
        bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let config_file = dir.path().join("config.json");
        let config = config(1).replace(MODEL, model.to_str().unwrap());
        std::fs::write(&config_file, as_json(&config)).unwrap();
        let mut engine = std::process::Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .arg("engine")
            .arg("--socket")
            .arg(dir.path().join("s"))
            .arg("--config")
            .arg(&config_file)
            .arg("--experiment-dir")
            .arg(dir.path().join("e"))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _held = engine.stdin.take(); // or it ends since its server is gone
        let why = String::from_utf8(engine.wait_with_output().unwrap().stderr).unwrap();
        assert!(why.contains("weights are NaN or infinite"), "{value}: {why:?}");
    }
}

/// Seen with rows without a response: the reason was a word that its reader did not know, and the index of episodes did
/// not say which ones were meant.
#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_train_is_counted_by_reason_and_marked_in_the_index() {
    let too_long = "a long prompt ".repeat(40);
    for (first, rewards, reason, count) in [
        (too_long.as_str(), [0.0, 1.0, 2.0, 3.0], "no_response", 1),
        ("short", [1.7e308, 1.6e308, 1.5e308, 1.4e308], "non_finite", EPISODES),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::spawn(dir.path(), &config(100));
        engine.ready(1).await.unwrap();
        let mut events = Box::pin(engine.client.events().await.unwrap());
        for (number, reward) in rewards.into_iter().enumerate() {
            let text = if number == 0 { first } else { "short" };
            engine.chat(&name(1, number), text).await.unwrap();
            let task = format!("task-{}", number / REPEATS);
            engine.end(&name(1, number), &task, reward).await.unwrap();
        }
        engine.client.update(&Update::default()).await.unwrap();
        engine.ready(2).await.unwrap();
        assert_eq!(metrics(dir.path())[0][format!("dropped/{reason}")], count, "{reason}");
        loop {
            if let EngineEvent::Dropped { reason: told, count: n } = events.next().await.unwrap().unwrap() {
                assert_eq!((told.as_str(), n), (reason, count as u64));
                break;
            }
        }
        engine.shut_down().await;
        let index = std::fs::read_to_string(dir.path().join("episodes.jsonl")).unwrap();
        let lines = index.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut marked: Vec<EpisodeSummary> = lines.filter(|line: &EpisodeSummary| line.ended == 0.0).collect();
        marked.sort_by(|a, b| a.episode_uuid.cmp(&b.episode_uuid));
        let marked: Vec<_> = marked
            .iter()
            .map(|line| (line.episode_uuid.clone(), line.dropped.as_deref()))
            .collect();
        let expected: Vec<_> = (0..count).map(|number| (name(1, number), Some(reason))).collect();
        assert_eq!(marked, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_a_checkpoint_fails_and_training_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn(dir.path(), &config(1));
    let mut acknowledged = BTreeSet::new();
    drive(&engine, 1, None, &mut acknowledged).await.unwrap();
    let mut events = Box::pin(engine.client.events().await.unwrap());
    engine.limit_files(Some(60_000)); // the model's file is larger
    drive(&engine, 2, None, &mut acknowledged).await.unwrap();
    let (mut warned, mut shown) = (false, false);
    while !(warned && shown) {
        match events.next().await.unwrap().unwrap() {
            EngineEvent::Log { level, message } => {
                warned |= level == LogLevel::Warn && message.contains("checkpoint of step 2")
            }
            EngineEvent::Status {
                phase: EnginePhase::Rolling,
                detail,
                ..
            } => {
                shown |= detail.is_some_and(|detail| detail.contains("checkpoint of step 2"));
            }
            _ => {}
        }
    }
    assert!(!checkpoint(dir.path(), 2).exists());
    engine.limit_files(None);
    drive(&engine, 3, None, &mut acknowledged).await.unwrap();
    engine.shut_down().await;
    let failed: Vec<_> = metrics(dir.path()).iter().map(|m| m["export_failed"].clone()).collect();
    assert_eq!(failed, [0, 1, 0]);
    let latest = std::fs::read_to_string(dir.path().join("checkpoints/latest")).unwrap();
    assert_eq!(latest, "global_step_3");
    // what the failed checkpoint would have held was still in the journal; a new start goes on behind step 3
    let engine = Engine::spawn(dir.path(), &config(1));
    assert_eq!(engine.ready(1).await.unwrap().pool.global_step, 4);
    engine.shut_down().await;
}
