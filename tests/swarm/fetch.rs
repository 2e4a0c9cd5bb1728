//! Checkpoints: their list, their files with ranges, and the client that fetches them, metrics and transcripts.

use std::io::Write;
use std::path::{Path, PathBuf};

use ajet_swarm::client::fetch::{FetchError, fetch, fetch_metrics, fetch_transcripts, selected};
use ajet_swarm::client::{BeginEpisode, ClientError, SwarmClient};
use ajet_swarm::config::checksum::sha256;
use ajet_swarm::protocol::checkpoint::{CheckpointKind, Manifest};
use ajet_swarm::protocol::status::{EpisodeDetail, EpisodeSummary, TokenRow, TranscriptConversation};
use ajet_swarm::server::{Options, Token};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::support::swarm::{Swarm, quick};

const TASKS: &str = "rollout_until_finish_enough_tasks";

/// Bytes that differ at every offset.
fn weights() -> Vec<u8> {
    (0..700_000_u32).flat_map(|number| number.to_le_bytes()).collect()
}

/// Writes a checkpoint as an engine does.
fn write(experiment: &Path, step: u64, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let dir = experiment.join(format!("checkpoints/global_step_{step}"));
    let (mut sizes, mut sums) = (Map::new(), Map::new());
    for (name, content) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        sizes.insert((*name).to_owned(), content.len().into());
        sums.insert((*name).to_owned(), sha256(content).into());
    }
    let manifest = json!({"format": 1, "global_step": step, "run": {"model": "m"}, "files": sizes, "sha256": sums});
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::write(experiment.join("checkpoints/latest"), format!("global_step_{step}")).unwrap();
    dir
}

/// A server whose experiment has the checkpoint of step 3.
async fn with_checkpoint(options: Options) -> (Swarm, PathBuf) {
    let swarm = Swarm::with(options).await;
    swarm.rolling(TASKS, 1, 2).await;
    let experiment = swarm.experiments().join("test");
    let files = [
        ("adapter_config.json", b"{}".to_vec()),
        ("adapter model.safetensors", weights()),
        ("empty", vec![]),
        ("trainer/state.json", b"{\"step\": 3}".to_vec()),
    ];
    let dir = write(&experiment, 3, &files);
    (swarm, dir)
}

async fn manifest(client: &SwarmClient) -> Manifest {
    client.checkpoints(None).await.unwrap().checkpoints[0].manifest.clone()
}

fn files_of(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn checkpoints_are_listed_and_served_while_the_engine_runs_and_after_it() {
    let swarm = Swarm::start().await;
    let before = swarm.get("/checkpoints").await;
    assert_eq!(before.0, 404);
    assert!(
        before.1["detail"]
            .as_str()
            .unwrap()
            .contains("no experiment has been started")
    );
    drop(swarm);
    let (swarm, _) = with_checkpoint(quick()).await;
    let rolling = swarm.get("/checkpoints").await;
    assert_eq!((rolling.0, &rolling.1["experiment"]), (200, &json!("test")));
    let checkpoint = &rolling.1["checkpoints"][0];
    assert_eq!(
        (&checkpoint["kind"], &checkpoint["is_latest"], &checkpoint["is_best"]),
        (&json!("adapter"), &json!(true), &json!(false))
    );
    assert_eq!(swarm.post("/stop_engine", json!({})).await.0, 200);
    assert_eq!(swarm.get("/checkpoints").await, rolling, "the same while offline");
    assert_eq!(
        swarm.get("/checkpoints/3/trainer/state.json").await.1,
        json!({"step": 3})
    );
}

#[tokio::test]
async fn ranges_are_answered_as_http_has_them() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let all = weights();
    let size = all.len();
    for (range, status, part, content_range) in [
        (None, 200, 0..size, None),
        (
            Some("bytes=5-"),
            206,
            5..size,
            Some(format!("bytes 5-{}/{size}", size - 1)),
        ),
        (Some("bytes=5-9"), 206, 5..10, Some(format!("bytes 5-9/{size}"))),
        (
            Some("bytes=-4"),
            206,
            size - 4..size,
            Some(format!("bytes {}-{}/{size}", size - 4, size - 1)),
        ),
        (Some("bytes=9999999-"), 416, 0..0, Some(format!("bytes */{size}"))),
        (Some("lines=1-"), 200, 0..size, None),
    ] {
        let mut request = swarm.request(Method::GET, "/checkpoints/3/adapter%20model.safetensors");
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{range:?}");
        let given = answer
            .headers()
            .get("content-range")
            .map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(given, content_range, "{range:?}");
        assert!(answer.bytes().await.unwrap() == all[part], "{range:?}");
    }
}

#[tokio::test]
async fn nothing_outside_of_a_checkpoint_is_served() {
    let (swarm, dir) = with_checkpoint(quick()).await;
    std::fs::write(dir.join("unlisted"), "x").unwrap();
    for path in [
        "/checkpoints/4/empty",
        "/checkpoints/x/empty",
        "/checkpoints/-3/empty",
        "/checkpoints/3/unlisted",
        "/checkpoints/3/trainer",
        "/checkpoints/3/%2e%2e/latest",
        "/checkpoints/3/..%2flatest",
        "/checkpoints/3/%2fetc%2fpasswd",
        "/checkpoints/..%2f..%2f/empty",
        "/checkpoints/3/manifest.json%00",
    ] {
        let answer = swarm.get(path).await;
        assert_eq!(answer.0, 404, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn checkpoints_need_the_servers_token_and_no_episode_key_opens_them() {
    let token = Token::new("a-token-of-sixteen").unwrap();
    let swarm = Swarm::with(Options {
        token: Some(token),
        ..quick()
    })
    .await;
    let client = SwarmClient::new(&format!("{}/t/a-token-of-sixteen", swarm.url)).unwrap();
    let config = swarm.yaml(json!({}));
    client
        .auto_sync_train_config_and_start_engine(&config, false, |_| {})
        .await
        .unwrap();
    write(&swarm.experiments().join("test"), 3, &[("a", b"a".to_vec())]);
    let episode = client.begin_episode(&BeginEpisode::default()).await.unwrap();
    for path in ["/checkpoints", "/checkpoints/3/a"] {
        for key in ["", episode.api_key()] {
            let answer = swarm.request(Method::GET, path).bearer_auth(key).send().await.unwrap();
            assert_eq!(answer.status(), 401, "{path}");
        }
    }
    assert_eq!(manifest(&client).await.files.len(), 1);
    episode.abort().await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_is_fetched_with_or_without_the_trainers_state() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let whole = manifest(&client).await;
    let target = tempfile::tempdir().unwrap();
    for (name, with_state, files) in [
        (
            "model",
            false,
            vec![
                "adapter model.safetensors",
                "adapter_config.json",
                "empty",
                "manifest.json",
            ],
        ),
        (
            "all",
            true,
            vec![
                "adapter model.safetensors",
                "adapter_config.json",
                "empty",
                "manifest.json",
                "trainer",
            ],
        ),
    ] {
        let to = target.path().join(name);
        let wanted = selected(&whole, with_state);
        let mut seen = 0;
        fetch(&client, None, &wanted, &to, &mut |present| seen = present)
            .await
            .unwrap();
        assert_eq!(seen, wanted.bytes());
        assert_eq!(files_of(&to), files);
        assert!(std::fs::read(to.join("adapter model.safetensors")).unwrap() == weights());
        let kept: Manifest = serde_json::from_slice(&std::fs::read(to.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(kept, wanted, "with what identifies the run");
        let again = fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap_err();
        assert!(matches!(again, FetchError::TargetNotEmpty(_)), "{again}");
    }
    assert_eq!(files_of(target.path()), ["all", "model"], "nothing temporary is left");
}

#[tokio::test]
async fn an_interrupted_fetch_continues_where_it_ended() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let wanted = selected(&manifest(&client).await, false);
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    // Dropped within the large file, as by Ctrl-C.
    let interrupted = async {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut stop = Some(stop);
        let mut progress = |present| {
            if present > 100_000 {
                stop.take().map(|stop| stop.send(()));
            }
        };
        tokio::select! {
            biased;
            _ = stopped => {}
            done = fetch(&client, None, &wanted, &to, &mut progress) => done.unwrap(),
        }
    };
    interrupted.await;
    let partial = target.path().join(&files_of(target.path())[0]);
    let before = std::fs::metadata(partial.join("adapter model.safetensors"))
        .unwrap()
        .len();
    assert!(before > 0, "{partial:?}");
    let mut reported = vec![];
    let continued = fetch(&client, None, &wanted, &to, &mut |present| reported.push(present)).await;
    continued.unwrap();
    let repeated = reported.iter().find(|present| (3..before).contains(*present));
    assert_eq!(repeated, None, "bytes that were present are not received again");
    assert!(std::fs::read(to.join("adapter model.safetensors")).unwrap() == weights());
    assert_eq!(files_of(target.path()), ["model"]);
}

#[tokio::test]
async fn what_is_damaged_here_is_fetched_again_and_what_is_damaged_there_is_refused() {
    let (swarm, dir) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let wanted = selected(&manifest(&client).await, false);
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    let name = "adapter model.safetensors";
    let mut damaged = weights();
    damaged[5] ^= 1;
    std::fs::write(dir.join(name), &damaged).unwrap();
    let refused = fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap_err();
    assert!(
        matches!(&refused, FetchError::Content { file, .. } if file == name),
        "{refused}"
    );
    assert!(!to.exists());
    // The server's file is right again; the copy in the temporary directory is not.
    std::fs::write(dir.join(name), weights()).unwrap();
    fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap();
    assert!(std::fs::read(to.join(name)).unwrap() == weights());
    // Too short or too long on the server.
    for (number, content) in [weights()[..100].to_vec(), [weights(), vec![0]].concat()]
        .into_iter()
        .enumerate()
    {
        std::fs::write(dir.join(name), content).unwrap();
        let to = target.path().join(number.to_string());
        let refused = fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap_err();
        assert!(matches!(refused, FetchError::Content { .. }), "{refused}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
    let to = target.path().join("gone");
    let refused = fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap_err();
    let FetchError::Client(ClientError::Refused { status, detail, .. }) = refused else {
        panic!("{refused}");
    };
    assert!(
        status == 404 && detail.contains("old checkpoints are removed"),
        "{detail}"
    );
}

#[tokio::test]
async fn a_listing_cannot_make_the_client_write_elsewhere() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let target = tempfile::tempdir().unwrap();
    for name in ["../escaped", "/tmp/escaped", "a/../../escaped", ""] {
        let mut wanted = manifest(&client).await;
        wanted.files.insert(name.to_owned(), 1);
        let to = target.path().join("model");
        let refused = fetch(&client, None, &wanted, &to, &mut |_| {}).await.unwrap_err();
        assert!(matches!(refused, FetchError::FileName(_)), "{refused}");
    }
    assert_eq!(files_of(target.path()), Vec::<String>::new());
}

#[tokio::test]
async fn the_listing_says_what_a_checkpoint_is() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let experiment = swarm.experiments().join("test");
    write(&experiment, 12, &[("model.safetensors", b"w".to_vec())]);
    let best = json!({"step": 3, "metric": "eval/reward_mean", "value": 0.5, "episodes": 8});
    std::fs::write(experiment.join("checkpoints/best"), best.to_string()).unwrap();
    let client = SwarmClient::new(&swarm.url).unwrap();
    let listing = client.checkpoints(None).await.unwrap();
    let seen: Vec<_> = listing
        .checkpoints
        .iter()
        .map(|info| (info.manifest.global_step, info.kind, info.is_latest, info.is_best))
        .collect();
    assert_eq!(
        seen,
        [
            (3, CheckpointKind::Adapter, false, true),
            (12, CheckpointKind::Model, true, false)
        ]
    );
    assert_eq!(listing.checkpoints[0].manifest.run, json!({"model": "m"}));
    assert_eq!(Value::from(listing.experiment), json!("test"));
}

/// Writes an episode as an engine does; without its transcript where `said` is none.
fn write_episode(experiment: &Path, step: u64, uuid: &str, said: Option<&str>) {
    let summary = EpisodeSummary {
        episode_uuid: uuid.into(),
        global_step: step,
        ended: 1.7e9 + step as f64,
        reward: 0.5,
        has_transcript: true,
        ..EpisodeSummary::default()
    };
    let mut episodes = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(experiment.join("episodes.jsonl"))
        .unwrap();
    writeln!(episodes, "{}", json!(summary)).unwrap();
    let Some(said) = said else { return };
    let dir = experiment.join(format!("trajectories/train/step_{step}"));
    std::fs::create_dir_all(&dir).unwrap();
    let detail = EpisodeDetail {
        summary,
        conversations: vec![TranscriptConversation {
            messages: vec![json!({"role": "user", "content": said})],
            ..TranscriptConversation::default()
        }],
        rows: vec![TokenRow {
            ids: vec![7],
            ..TokenRow::default()
        }],
        ..EpisodeDetail::default()
    };
    std::fs::write(dir.join(format!("{uuid}.json")), json!(detail).to_string()).unwrap();
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn uuids(path: &Path) -> Vec<String> {
    let uuid = |line: Value| line["summary"]["episode_uuid"].as_str().unwrap().to_owned();
    lines(path).into_iter().map(uuid).collect()
}

#[tokio::test]
async fn transcripts_are_fetched_once_and_a_later_fetch_adds_what_is_new() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let experiment = swarm.experiments().join("test");
    write_episode(&experiment, 1, "a", Some("one"));
    write_episode(&experiment, 1, "b", Some("two"));
    write_episode(&experiment, 2, "c", None);
    let target = tempfile::tempdir().unwrap();
    let (first, second) = (
        target.path().join("train/step_1.jsonl"),
        target.path().join("train/step_2.jsonl"),
    );
    let fetch = async |with_tokens| {
        let fetched = fetch_transcripts(&client, None, target.path(), with_tokens, &mut |_| {}).await;
        let fetched = fetched.unwrap();
        (fetched.new, fetched.completed, fetched.present, fetched.without)
    };
    assert_eq!(fetch(false).await, (2, 0, 0, 1));
    assert_eq!(uuids(&first), ["b", "a"]);
    assert_eq!(lines(&first)[0]["conversations"][0]["messages"][0]["content"], "two");
    assert_eq!(lines(&first)[0]["rows"], json!([]));
    // Killed in the middle of a line.
    let text = std::fs::read_to_string(&first).unwrap();
    std::fs::write(&first, &text[..text.len() - 9]).unwrap();
    write_episode(&experiment, 2, "d", Some("three"));
    // Seen: the tokens of a transcript that was there without them were never fetched.
    assert_eq!(fetch(true).await, (2, 1, 0, 1));
    assert_eq!(lines(&first)[0]["rows"][0]["ids"], json!([7]));
    assert_eq!(
        (uuids(&first), uuids(&second)),
        (vec!["b".into(), "a".into()], vec!["d".into()])
    );
    assert_eq!(lines(&second)[0]["rows"][0]["ids"], json!([7]));
    assert_eq!(fetch(true).await, (0, 0, 3, 1));
    assert_eq!(fetch(false).await, (0, 0, 3, 1));
}

#[tokio::test]
async fn metrics_are_fetched_to_a_file_that_a_later_fetch_replaces() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let metrics = swarm.experiments().join("test/metrics.jsonl");
    let target = tempfile::tempdir().unwrap();
    let file = target.path().join("metrics.jsonl");
    // More steps than a page has.
    let mut text: String = (1..=5001)
        .map(|step| format!("{{\"global_step\":{step},\"loss\":0.1}}\n"))
        .collect();
    std::fs::write(&metrics, &text).unwrap();
    let fetched = fetch_metrics(&client, None, &file).await.unwrap();
    assert_eq!(fetched, ("test".to_owned(), 5001));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let evaluated = "{\"global_step\":5001,\"eval/reward_mean\":0.5}\n";
    text += evaluated;
    std::fs::write(&metrics, &text).unwrap();
    fetch_metrics(&client, Some("test"), &file).await.unwrap();
    let last = json!({"global_step": 5001, "loss": 0.1, "eval/reward_mean": 0.5});
    assert_eq!((lines(&file).len(), lines(&file).pop()), (5001, Some(last)));

    let notes = target.path().join("notes.txt");
    std::fs::write(&notes, "do not lose this\n").unwrap();
    let refused = fetch_metrics(&client, None, &notes).await.unwrap_err();
    assert!(matches!(refused, FetchError::NoMetrics(_)), "{refused}");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "do not lose this\n");
}

#[tokio::test]
async fn another_experiment_of_the_directory_is_fetched_by_its_name() {
    let (swarm, _) = with_checkpoint(quick()).await;
    let client = SwarmClient::new(&swarm.url).unwrap();
    let older = swarm.experiments().join("an older one");
    write(&older, 9, &[("model.safetensors", b"w".to_vec())]);
    std::fs::write(older.join("metrics.jsonl"), "{\"global_step\":8}\n").unwrap();
    let names: Vec<_> = client
        .runs()
        .await
        .unwrap()
        .runs
        .into_iter()
        .map(|run| run.name)
        .collect();
    assert!(names.contains(&"an older one".to_owned()), "{names:?}");
    let run = Some("an older one");
    let listing = client.checkpoints(run).await.unwrap();
    assert_eq!(
        (listing.experiment.as_str(), listing.checkpoints.len()),
        ("an older one", 1)
    );
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    let manifest = &listing.checkpoints[0].manifest;
    fetch(&client, run, manifest, &to, &mut |_| {}).await.unwrap();
    assert_eq!(std::fs::read(to.join("model.safetensors")).unwrap(), b"w");
    for name in ["none", "../test", ""] {
        let answer = client.checkpoints(Some(name)).await;
        let is_refused = matches!(answer, Err(ClientError::Refused { status: 404, .. }));
        // An empty name is none: the current experiment.
        assert_eq!(is_refused, !name.is_empty(), "{name:?}: {answer:?}");
    }
}
