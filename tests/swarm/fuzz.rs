//! Wrong bodies, thousands of them, to a server in this process: it must not panic, hang, call them its own fault, or
//! change its state on what it refuses.
//!
//! `AJET_FUZZ_INPUTS=200000 cargo test --release --test swarm fuzz` sends that many; `AJET_FUZZ_SEED` chooses others. The
//! directory `fuzz/` has the same for libFuzzer, which looks for inputs that take new ways through the code.

use std::collections::BTreeMap;

use crate::support::fuzz_world::{PATIENCE, World};
use ajet_swarm::config::{Strictness, load, load_over};
use ajet_swarm::roll::job::Job;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const DUMP: &str = include_str!("../fixtures/config/python_dump.yaml");
const TEMPLATE: &str = include_str!("../../config/jobs/template.yaml");

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn inputs() -> u64 {
    number("AJET_FUZZ_INPUTS", 5_000)
}

fn rng(lane: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(number("AJET_FUZZ_SEED", 0).wrapping_mul(1000) + lane)
}

/// A call that would do something, and the key it is made with.
fn call(world: &mut World) -> (&'static str, String, Value) {
    let stranger = ("c9".to_owned(), "no-such-episode".to_owned(), "sk-ajet-none".to_owned());
    let recent = world.episodes.len().saturating_sub(12);
    let (client, episode, key) = world.episodes[recent..]
        .choose(&mut world.rng)
        .cloned()
        .unwrap_or(stranger);
    let claimer = format!("c{}", world.rng.random_range(0..3));
    let task = format!("t{}", world.rng.random_range(0..4));
    let throttle = json!({"ratio": 1.5, "expected_batch_size": 4, "expected_num_repeat": 2, "current_task_id": task});
    let output = json!({
        "reward": world.rng.random_range(0..3), "is_success": true, "metadata": {"task_id": task, "note": ["x", {"y": 1}]},
        "log_metrics": {"a": 1.5, "b": [1, 2], "c": {"d": 3}},
    });
    let end = json!({
        "client_uuid": client, "episode_uuid": episode, "task_id": task, "declare_client_active": true,
        "workflow_output": output,
    });
    let chat = json!({
        "model": "m", "stream": world.rng.random::<bool>(), "temperature": 0.5, "max_tokens": 4, "stop": ["a"],
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": []}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    });
    let (path, body) = match world.rng.random_range(0..24) {
        0..=4 => (
            "/claim_episode",
            json!({
                "client_uuid": claimer, "episode_type": "train", "discard_episode_timeout": 240.0,
                "throttle_policy": throttle,
            }),
        ),
        5..=8 => ("/end_episode", end),
        9 | 10 => ("/abort_episode", end),
        11..=15 => ("/v1/chat/completions", chat),
        16 => (
            "/can_continue_episode",
            json!({"client_uuid": client, "episode_uuid": episode}),
        ),
        17 => (
            "/is_episode_claimed",
            json!({"episode_uuid": episode, "unregister_if_not_claimed": false}),
        ),
        18 => ("/get_episode_buffer", json!({})),
        19 => ("/agree_sync_weight", json!({"client_uuid": client})),
        20 => ("/push_verbose_log", json!({"tag": "t", "message": "m"})),
        21 | 22 => ("/sync_train_config", json!({"yaml_as_string": world.yaml()})),
        _ if world.rng.random_ratio(1, 10) => ("/stop_engine", json!({})),
        _ => ("/start_engine", json!({})),
    };
    (path, key, body)
}

/// A snapshot of training code, nine times in ten with bytes that are wrong.
fn archive(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut zip = zip::write::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in [
        ("ajet/Cargo.toml", "[package]\nname = \"ajet-swarm\"\n"),
        ("ajet/Cargo.lock", ""),
        ("ajet/src/main.rs", "fn main() {}\n"),
    ] {
        let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(name, stored).unwrap();
        std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    let mut bytes = zip.finish().unwrap().into_inner();
    if rng.random_ratio(9, 10) {
        crate::support::mutate::raw(&mut bytes, rng);
    }
    bytes
}

async fn one_input(world: &mut World) {
    world.calm().await;
    if world.rng.random_ratio(1, 20) {
        let archive = archive(&mut world.rng);
        world.offer("/sync_train_code", "", archive).await;
        return;
    }
    let (path, key, valid) = call(world);
    let body = match world.rng.random_range(0..10) {
        0..=2 => valid.to_string().into_bytes(),
        _ => crate::support::mutate::body(&valid, &mut world.rng),
    };
    world.offer(path, &key, body).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_breaks_the_server_or_changes_what_it_refuses() {
    let lanes = 2;
    let lanes = (0..lanes).map(|lane| {
        tokio::spawn(async move {
            let mut world = World::new(rng(lane));
            for _ in 0..inputs() / lanes {
                one_input(&mut world).await;
            }
            world.answers
        })
    });
    let mut answers = BTreeMap::<u16, u64>::new();
    for lane in futures_util::future::join_all(lanes).await {
        for (status, count) in lane.unwrap() {
            *answers.entry(status).or_default() += count;
        }
    }
    println!("answers by status: {answers:?}");
    // Without both, the harness would not look where it should.
    for status in [200, 400, 404] {
        assert!(
            answers.get(&status).is_some_and(|&count| count > inputs() / 200),
            "{answers:?}"
        );
    }
}

#[test]
fn no_yaml_breaks_the_reader_of_configurations_and_jobs() {
    let mut rng = rng(100);
    let (mut taken, mut refused) = (0, 0);
    // Each costs milliseconds: the documents are long.
    for _ in 0..inputs() / 10 {
        let valid = *[DUMP, TEMPLATE].choose(&mut rng).unwrap();
        let yaml = crate::support::mutate::text(valid, &mut rng);
        let strictness = *[Strictness::Job, Strictness::Synced].choose(&mut rng).unwrap();
        let started = std::time::Instant::now();
        let outcome = load(&yaml, strictness).map(|_| ());
        let _ = load_over(&yaml, valid, strictness);
        let _ = Job::parse("job.yaml".as_ref(), &yaml);
        assert!(started.elapsed() < PATIENCE, "hangs on {yaml}");
        match outcome {
            Ok(()) => taken += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    println!("{taken} documents taken, {refused} refused");
    assert!(taken > 0 && refused > 0);
}
