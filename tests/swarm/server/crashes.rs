//! Crashes of the engine, restarts, and the next server that resumes an experiment.

use std::time::Duration;

use crate::support::fake_engine::HANGS_UP;
use crate::support::swarm::{ENOUGH_EPISODES, ENOUGH_TASKS, Swarm, detail, quick};
use ajet_swarm::protocol::engine::DropReason;
use ajet_swarm::server::Options;
use ajet_swarm::server::engine::resume;
use indexmap::IndexMap;
use serde_json::{Value, json};

#[tokio::test]
async fn a_crashed_engine_restarts_and_its_episodes_are_lost() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    for crash in 1..=3 {
        swarm.engines.die("the engine was killed (signal 9): out of memory");
        swarm
            .until_true("the restart", async |swarm| {
                (swarm.engines.record().launches == crash + 1).then_some(())
            })
            .await;
        let again = swarm.until("ENGINE.ROLLING").await["engine_status_detail"].clone();
        assert!(again.as_str().unwrap().contains("out of memory"), "{again}");
    }
    assert_eq!(swarm.chat(&episode.key).await.0, 404);
    assert_eq!(swarm.pool().await["dropped_episodes"], json!({"engine_lost": 1}));
    swarm.engines.die("the engine was killed (signal 9): out of memory");
    let offline = swarm.until("ENGINE.OFFLINE").await;
    assert!(
        offline["engine_status_detail"]
            .as_str()
            .unwrap()
            .contains("out of memory")
    );
}

#[tokio::test]
async fn an_engine_whose_update_hangs_is_restarted() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    swarm.engines.behave(|engine| engine.refuse_updates = true);
    swarm.episode("a", "t", 1.0).await;
    swarm
        .until_true("another engine", async |swarm| {
            (swarm.engines.record().launches == 2).then_some(())
        })
        .await;
    swarm.engines.behave(|engine| engine.refuse_updates = false);
    let again = swarm.until("ENGINE.ROLLING").await["engine_status_detail"].clone();
    assert!(
        again.as_str().unwrap().contains("failed to update: out of threads"),
        "{again}"
    );
    swarm.episode("a", "t", 1.0).await;
    swarm.until_step(2).await;
}

/// Seen with a disk without room for the record: three engines in 8 s, then OFFLINE.
#[tokio::test]
async fn an_update_on_a_full_disk_is_retried_with_its_batch() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    swarm.engines.behave(|engine| engine.disk_full = true);
    swarm.episode("a", "t", 1.0).await;
    swarm
        .until_true("the third attempt", async |swarm| {
            (swarm.engines.record().updates_put_off == 3).then_some(())
        })
        .await;
    let waiting = swarm.until("ENGINE.WEIGHT_SYNCING").await["engine_status_detail"].clone();
    assert!(waiting.as_str().unwrap().contains("the disk is full"), "{waiting}");
    swarm.engines.behave(|engine| engine.disk_full = false);
    swarm.until_step(2).await;
    let detail = swarm.status().await["engine_status_detail"].to_string();
    assert!(!detail.contains("disk"), "{detail}");
    let record = swarm.engines.record();
    assert_eq!(
        (record.launches, record.updates),
        (1, 1),
        "no engine was given up for it"
    );

    // An engine that is stopped is not asked any more.
    swarm.engines.behave(|engine| engine.disk_full = true);
    swarm.episode("a", "t", 1.0).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
    swarm.post("/stop_engine", json!({})).await;
    swarm.until("ENGINE.OFFLINE").await;
}

/// Seen with a cleaner of temporary folders: ROLLING without a word, and every call a 503.
#[tokio::test]
async fn an_engine_without_its_socket_is_restarted_and_the_detail_says_why() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    std::fs::remove_file(&swarm.engines.record().sockets[0]).unwrap();
    swarm
        .until_true("another engine", async |swarm| {
            (swarm.engines.record().launches == 2).then_some(())
        })
        .await;
    let again = swarm.until("ENGINE.ROLLING").await["engine_status_detail"].clone();
    assert!(again.as_str().unwrap().contains("engine.sock is gone"), "{again}");
    swarm.episode("a", "t", 1.0).await;
}

/// Seen in CI: a boot without its model was told as "the engine tells no events: Connection refused".
#[tokio::test]
async fn an_engine_that_exits_during_a_call_is_reported_with_its_own_message() {
    let swarm = Swarm::start().await;
    swarm.engines.behave(|engine| engine.dies_at = Some("/events"));
    swarm.sync(json!({})).await;
    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    let offline = swarm.until("ENGINE.OFFLINE").await["engine_status_detail"].clone();
    assert_eq!(offline.as_str(), Some(HANGS_UP));

    swarm.engines.behave(|engine| engine.dies_at = Some("/update"));
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    swarm.episode("a", "t", 1.0).await;
    swarm
        .until_true("another engine", async |swarm| {
            (swarm.engines.record().launches == 3).then_some(())
        })
        .await;
    swarm.engines.behave(|engine| engine.dies_at = None);
    let again = swarm.until("ENGINE.ROLLING").await["engine_status_detail"].clone();
    assert!(again.as_str().unwrap().starts_with(HANGS_UP), "{again}");
}

#[tokio::test]
async fn clients_wait_for_a_restart_as_for_a_weight_sync() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm.engines.behave(|engine| engine.hold_boot = true);
    swarm.engines.die("the engine was killed (signal 9)");
    let booting = swarm.until("ENGINE.BOOTING").await;
    let detail = booting["engine_status_detail"].as_str().unwrap();
    assert!(
        detail.contains("signal 9") && detail.contains("restarting the engine (attempt 1 of 3)"),
        "{detail}"
    );
    let refused = swarm.try_claim("a", "train", 240.0).await.1;
    let cause = refused["fail_cause"].as_str().unwrap();
    assert!(
        cause.contains("Engine not ready. Current status: [ENGINE.BOOTING]."),
        "{cause}"
    );
    assert!(cause.contains("Engine is syncing weights"), "{cause}");
    let refused = swarm.end(&episode, "t", 1.0).await;
    assert_eq!(refused.0, 400);
    assert!(self::detail(&refused).contains("WEIGHT_SYNCING"), "{refused:?}");
    assert_eq!(swarm.chat(&episode.key).await.0, 404);
    swarm.engines.behave(|engine| engine.hold_boot = false);
    swarm.until("ENGINE.ROLLING").await;
}

#[tokio::test]
async fn without_restart_on_crash_the_engine_goes_offline_with_its_message() {
    let swarm = Swarm::start().await;
    swarm.rolling_with(json!({"engine": {"restart_on_crash": false}})).await;
    swarm.engines.die("the engine ended with exit code 101: boom");
    let offline = swarm.until("ENGINE.OFFLINE").await;
    assert_eq!(
        offline["engine_status_detail"],
        "the engine ended with exit code 101: boom"
    );
    assert_eq!(offline["global_step"], 0);
}

#[tokio::test]
async fn the_next_server_resumes_an_experiment_unless_it_was_stopped() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let directory = swarm.get("/get_server_experiment_dir").await.1["server_experiment_dir"].clone();
    let directory = std::path::PathBuf::from(directory.as_str().unwrap());
    let config = resume::config(&directory).unwrap();
    swarm.post("/stop_engine", json!({})).await;
    resume::config(&directory).unwrap_err();

    let next = Swarm::with(Options {
        start_with: Some(config),
        ..quick()
    })
    .await;
    next.until("ENGINE.ROLLING").await;
    let goes_on_in = next.get("/get_server_experiment_dir").await.1["server_experiment_dir"].clone();
    assert_eq!(goes_on_in.as_str().unwrap(), directory.to_str().unwrap());
    assert!(resume::config(&directory).is_ok(), "and may be interrupted again");
}

/// Seen with a disk that was read-only after a restart: OFFLINE, and only the log said why.
#[tokio::test]
async fn the_status_says_why_an_experiment_is_not_resumed() {
    for (config, said) in [
        ("ajet: {model: {path: /no/such/model}}", "/no/such/model"),
        (
            "ajet: {model: {path: 'builtin:tiny'}, experiment_dir: /proc/no}",
            "/proc/no",
        ),
        ("ajet: [", "cannot resume the experiment"),
    ] {
        let swarm = Swarm::with(Options {
            start_with: Some(config.to_owned()),
            ..quick()
        })
        .await;
        let mut detail = Value::Null;
        for _ in 0..200 {
            detail = swarm.get("/get_engine_status").await.1["engine_status_detail"].clone();
            if detail
                .as_str()
                .is_some_and(|detail| detail.contains("cannot resume the experiment"))
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            detail.as_str().is_some_and(|detail| detail.contains(said)),
            "{config}: {detail}"
        );
    }
}

#[tokio::test]
async fn drops_reach_the_update_of_their_batch_even_after_crashes() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 3).await;
    let (aborted, lost, eval) = (
        swarm.claim("a").await,
        swarm.claim("a").await,
        swarm.claim_kind("a", "eval", 240.0).await,
    );
    swarm.abort(&aborted).await;
    swarm.abort(&eval).await;
    swarm.chat(&lost.key).await;
    swarm.engines.die("the engine was killed (signal 9)");
    swarm
        .until_true("the restart", async |swarm| {
            (swarm.engines.record().launches == 2).then_some(())
        })
        .await;
    swarm.until("ENGINE.ROLLING").await;
    let without_call = swarm.claim("a").await;
    swarm.end(&without_call, "t", 1.0).await;
    for step in 2..=3 {
        for _ in 0..3 {
            swarm.episode("a", "t", 1.0).await;
        }
        swarm.until_step(step).await;
    }
    let of_batch = IndexMap::from([
        (DropReason::Aborted, 1),
        (DropReason::EngineLost, 1),
        (DropReason::NoLlmCall, 1),
    ]);
    assert_eq!(swarm.engines.record().dropped, [of_batch, IndexMap::from([])]);
    let all = json!({"aborted": 1, "engine_lost": 1, "no_llm_call": 1});
    assert_eq!(swarm.pool().await["dropped_episodes"], all);
}
