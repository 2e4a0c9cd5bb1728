//! The swarm protocol and the model API against fake engines, over real sockets.

#[allow(dead_code, reason = "each test file uses a part of what they share")]
use std::time::Duration;

use crate::support::fake_engine::HANGS_UP;
use crate::support::swarm::{Swarm, answer, end_body, quick};
use ajet_swarm::protocol::engine::{CONTRACT_VERSION, DropReason, EngineEvent, EnginePhase};
use ajet_swarm::server::engine::resume;
use ajet_swarm::server::{Options, Token};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

const EPISODES: &str = "rollout_until_finish_enough_episodes";
const TASKS: &str = "rollout_until_finish_enough_tasks";
const NON_DUMMY: &str = "rollout_until_finish_enough_non_dummy_tasks";
const ANY: &str = "rollout_until_any_client_agree_sync_weight";
const ALL: &str = "rollout_until_all_clients_agree_sync_weight";

fn success() -> (u16, Value) {
    (200, json!({"success": true}))
}

fn detail(answer: &(u16, Value)) -> &str {
    answer.1["detail"]
        .as_str()
        .unwrap_or_else(|| panic!("no detail in {answer:?}"))
}

fn dropped<const N: usize>(counts: [(DropReason, u64); N]) -> indexmap::IndexMap<DropReason, u64> {
    counts.into_iter().collect()
}

// ---- engine control ----

#[tokio::test]
async fn an_offline_server_answers_everything_it_can() {
    let swarm = Swarm::start().await;
    assert_eq!(swarm.get("/health").await, (200, json!({"status": "ok"})));
    assert_eq!(
        swarm.status().await,
        json!({"engine_status": "ENGINE.OFFLINE", "engine_status_detail": null, "global_step": 0})
    );
    let pool = swarm.pool().await;
    for (field, value) in [
        ("engine_status", json!("ENGINE.OFFLINE")),
        ("global_step", json!(0)),
        ("sample_collection_method", json!("")),
        ("completed_tasks_details", json!({})),
        ("completed_tasks_rewards", json!({})),
        ("completed_tasks_client_uuids", json!({})),
        ("running_episode_details", Value::Null),
        ("booting_start_time", Value::Null),
        ("training_model_path", Value::Null),
        ("swarm_client_instruction", json!({"active_clients": []})),
    ] {
        assert_eq!(pool[field], value, "{field}");
    }
    assert_eq!(
        swarm.get("/get_server_experiment_dir").await,
        (200, json!({"server_experiment_dir": null}))
    );
    assert_eq!(
        swarm.post("/get_episode_buffer", json!({})).await,
        (200, json!({"buffer": []}))
    );
    assert_eq!(swarm.post("/replay_latest_llm_call", json!({})).await.0, 404);
    let start = swarm.post("/start_engine", json!({})).await;
    assert_eq!(start.0, 400);
    assert!(detail(&start).contains("No training config found"));
    let stopped = (200, json!({"success": true, "failure_reason": ""}));
    assert_eq!(swarm.post("/stop_engine", json!({})).await, stopped);
}

#[tokio::test]
async fn all_five_states_are_walked_and_the_step_advances() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 2).await;
    let status = swarm.status().await;
    assert_eq!(status["global_step"], 1);
    let directory = swarm.get("/get_server_experiment_dir").await.1["server_experiment_dir"].clone();
    assert!(directory.as_str().unwrap().ends_with("/test") && directory.as_str().unwrap().starts_with('/'));
    swarm.engines.behave(|engine| engine.hold_updates = true);

    let first = swarm.claim("a").await;
    let second = swarm.claim("a").await;
    let third = swarm.try_claim("a", "train", 240.0).await.1;
    assert!(
        third["fail_cause"]
            .as_str()
            .unwrap()
            .contains("No available episodes to claim.")
    );
    for episode in [&first, &second] {
        assert_eq!(swarm.chat(&episode.key).await.0, 200);
    }
    assert_eq!(swarm.end(&first, "t", 1.0).await, success());
    // The batch has two episodes only with the second one; a third claim keeps it open after that.
    let last = swarm.claim("b").await;
    assert_eq!(swarm.end(&second, "t", 0.0).await, success());
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.ROLLING_POST");
    let refused = swarm.try_claim("a", "train", 240.0).await.1;
    let cause = refused["fail_cause"].as_str().unwrap();
    assert!(
        cause.contains("Engine not ready. Current status: [ENGINE.ROLLING_POST]."),
        "{cause}"
    );
    assert!(cause.contains("Engine is in post-rolling phase"), "{cause}");
    assert_eq!(swarm.chat(&last.key).await.0, 200, "what runs may go on");

    assert_eq!(swarm.end(&last, "t", 0.5).await, success());
    let status = swarm
        .until_true("exporting", async |swarm| {
            let status = swarm.status().await;
            (status["engine_status_detail"] == "exporting step 1").then_some(status)
        })
        .await;
    assert_eq!(
        (&status["engine_status"], &status["global_step"]),
        (&json!("ENGINE.WEIGHT_SYNCING"), &json!(1))
    );
    let refused = swarm.try_claim("a", "train", 240.0).await.1;
    let cause = refused["fail_cause"].as_str().unwrap();
    assert!(
        cause.contains("Engine not ready. Current status: [ENGINE.WEIGHT_SYNCING]."),
        "{cause}"
    );
    assert!(cause.contains("Engine is syncing weights"), "{cause}");
    let pool = swarm.pool().await;
    assert_eq!(
        (&pool["completed_episodes"], &pool["running_episode_details"]),
        (&json!(0), &Value::Null)
    );

    swarm.engines.behave(|engine| engine.hold_updates = false);
    swarm.until_step(2).await;
    assert_eq!(swarm.pool().await["latest_metrics"], json!({"actor/loss": 0.25}));
    swarm.post("/stop_engine", json!({})).await;
    let status = swarm.status().await;
    assert_eq!(
        (&status["engine_status"], &status["global_step"]),
        (&json!("ENGINE.OFFLINE"), &json!(0))
    );
    assert_eq!(
        swarm.get("/get_server_experiment_dir").await.1["server_experiment_dir"],
        directory,
        "kept after the first start"
    );
    let record = swarm.engines.record();
    assert_eq!((record.updates, record.shutdowns, record.launches), (1, 1, 1));
}

#[tokio::test]
async fn configuration_and_start_are_only_taken_offline() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    for (path, body) in [
        ("/sync_train_config", json!({"yaml_as_string": swarm.yaml(json!({}))})),
        ("/start_engine", json!({})),
    ] {
        let refused = swarm.post(path, body).await;
        assert_eq!(refused.0, 400);
        assert!(detail(&refused).contains("ENGINE.ROLLING"), "{refused:?}");
    }
    swarm.post("/stop_engine", json!({})).await;
    let restarted = swarm.post("/start_engine", json!({})).await;
    assert_eq!(restarted.0, 200, "the synced configuration is kept: {restarted:?}");
}

#[tokio::test]
async fn a_wrong_configuration_is_named_and_an_earlier_one_forgotten() {
    let swarm = Swarm::start().await;
    assert_eq!(swarm.sync(json!({})).await, success());
    for (yaml, said) in [
        ("ajet: [".to_owned(), "not valid YAML"),
        (
            swarm.yaml(json!({"data": {"train_batch_size": "many"}})),
            "train_batch_size",
        ),
        (
            swarm.yaml(json!({"swarm_mode_sample_collection_method": "whenever"})),
            "whenever",
        ),
    ] {
        let refused = swarm.post("/sync_train_config", json!({"yaml_as_string": yaml})).await;
        assert_eq!(refused.0, 400);
        assert!(detail(&refused).contains(said), "{refused:?}");
    }
    assert!(detail(&swarm.post("/start_engine", json!({})).await).contains("No training config found"));
}

#[tokio::test]
async fn a_start_that_cannot_go_well_is_refused_at_once() {
    let swarm = Swarm::start().await;
    let ajet = json!({"model": {"path": "/no/such/model"}});
    assert_eq!(swarm.sync(ajet).await, success());
    let refused = swarm.post("/start_engine", json!({})).await;
    assert_eq!(refused.0, 400);
    assert!(
        detail(&refused).contains("model not found: /no/such/model"),
        "{refused:?}"
    );
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.OFFLINE");
    assert_eq!(swarm.engines.record().launches, 0);
}

#[tokio::test]
async fn a_boot_that_fails_stays_visible_and_tells_why() {
    let swarm = Swarm::with(Options {
        slow_poll: Duration::from_millis(300),
        ..quick()
    })
    .await;
    swarm
        .engines
        .behave(|engine| (engine.boot_error, engine.hold_boot) = (Some("the weights are torn".into()), true));
    swarm.sync(json!({})).await;
    let started = std::time::Instant::now();
    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    swarm.engines.behave(|engine| engine.hold_boot = false);
    let booting = swarm
        .until_true("the reason", async |swarm| {
            let status = swarm.status().await;
            let detail = status["engine_status_detail"].as_str().unwrap_or("").to_owned();
            detail.contains("the weights are torn").then_some(status)
        })
        .await;
    assert_eq!(booting["engine_status"], "ENGINE.BOOTING");
    let offline = swarm.until("ENGINE.OFFLINE").await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(
        offline["engine_status_detail"]
            .as_str()
            .unwrap()
            .contains("the weights are torn")
    );
}

/// Seen with AgentJet's client, which prints nothing of a boot but a refusal of `start_engine`.
#[tokio::test]
async fn a_client_that_polls_slowly_is_told_the_outcome_of_the_boot_by_the_start_itself() {
    let swarm = Swarm::with(Options {
        slow_poll: Duration::from_secs(600),
        start_timeout: Duration::from_secs(20),
        ..quick()
    })
    .await;
    for reason in [
        "CUDA out of memory: 139 GiB are asked for",
        "the tokenizer is torn",
        "/models/x/model.safetensors ends in the middle of `lm_head.weight`",
    ] {
        swarm.engines.behave(|engine| engine.boot_error = Some(reason.into()));
        // Once more at once: a boot that its caller is told of does not stay visible.
        swarm.sync(json!({})).await;
        let refused = swarm.post("/start_engine", json!({})).await;
        assert_eq!(refused.0, 400, "{refused:?}");
        assert!(detail(&refused).contains(reason), "{refused:?}");
        assert_eq!(swarm.status().await["engine_status"], "ENGINE.OFFLINE");
    }
    swarm.engines.behave(|engine| {
        engine.boot_error = None;
        engine.hold_boot = true;
    });
    swarm.sync(json!({})).await;
    let stopped = async {
        swarm.until("ENGINE.BOOTING").await;
        swarm.post("/stop_engine", json!({})).await
    };
    let (refused, _) = tokio::join!(swarm.post("/start_engine", json!({})), stopped);
    assert_eq!(refused.0, 400, "{refused:?}");
    assert!(detail(&refused).contains("stopped during its boot"), "{refused:?}");

    swarm.sync(json!({})).await;
    let released = async {
        let booting = swarm.until("ENGINE.BOOTING").await;
        assert!(swarm.pool().await["booting_start_time"].is_number(), "{booting}");
        swarm.engines.behave(|engine| engine.hold_boot = false);
    };
    let (started, ()) = tokio::join!(swarm.post("/start_engine", json!({})), released);
    assert_eq!((started.0, &started.1["success"]), (200, &json!(true)));
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.ROLLING");
    assert_eq!(swarm.pool().await["booting_start_time"], Value::Null);
}

#[tokio::test]
async fn a_boot_that_outlasts_the_patience_is_answered_as_started_and_one_of_ours_is_not_waited_for() {
    let swarm = Swarm::with(Options {
        start_timeout: Duration::from_millis(50),
        ..quick()
    })
    .await;
    swarm.engines.behave(|engine| engine.hold_boot = true);
    swarm.sync(json!({})).await;
    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.BOOTING");
    swarm.shut_down().await;

    let swarm = Swarm::with(Options {
        start_timeout: Duration::from_secs(600),
        ..quick()
    })
    .await;
    swarm.engines.behave(|engine| engine.hold_boot = true);
    swarm.sync(json!({})).await;
    let start = swarm
        .request(Method::POST, "/start_engine")
        .header("x-ajet-client", "1");
    assert_eq!(answer(start.json(&json!({}))).await.0, 200);
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.BOOTING");
    swarm.shut_down().await;
}

/// A hard cap, as in AgentJet; there training went on without end before.
#[tokio::test]
async fn after_total_training_steps_the_engine_goes_offline_with_the_reason() {
    for (cap, batches) in [(1, 1), (2, 2), (3, 3)] {
        let swarm = Swarm::start().await;
        let ajet = json!({
            "data": {"train_batch_size": 1}, "rollout": {"num_repeat": 1},
            "trainer_common": {"total_training_steps": cap},
        });
        swarm.rolling_with(ajet.clone()).await;
        let unfinished = |swarm: &Swarm| resume::latest(&swarm.experiments()).is_some();
        assert!(unfinished(&swarm));
        for step in 1..=batches {
            swarm.until_step(step).await;
            swarm.episode("a", "t", 1.0).await;
        }
        let offline = swarm.until("ENGINE.OFFLINE").await;
        let reason = offline["engine_status_detail"].as_str().unwrap();
        assert!(
            reason.starts_with(&format!(
                "all {cap} updates of ajet.trainer_common.total_training_steps are done; the last checkpoint is in /"
            )),
            "{reason}"
        );
        let record = swarm.engines.record();
        assert_eq!(
            (record.launches, record.shutdowns, u64::from(record.updates)),
            (1, 1, batches)
        );
        assert!(!unfinished(&swarm), "no later server goes on with it");
        assert_eq!(swarm.pool().await["latest_metrics"]["actor/loss"], 0.25);
        let refused = swarm.try_claim("a", "train", 240.0).await.1;
        assert!(refused["fail_cause"].as_str().unwrap().contains(reason), "{refused}");
    }
}

#[tokio::test]
async fn a_boot_that_hangs_is_given_up_but_not_one_that_is_slow() {
    let swarm = Swarm::with(Options {
        boot_timeout: Duration::from_millis(150),
        ..quick()
    })
    .await;
    swarm.engines.behave(|engine| engine.hold_boot = true);
    swarm.sync(json!({})).await;
    let booting = |detail: &str| EngineEvent::Status {
        phase: EnginePhase::Booting,
        detail: Some(detail.into()),
        global_step: 0,
    };

    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    for percent in 0..10 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        swarm.engines.send(&booting(&format!("loading weights {percent}%")));
    }
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.BOOTING", "slow is fine");
    let offline = swarm.until("ENGINE.OFFLINE").await;
    let detail = offline["engine_status_detail"].as_str().unwrap();
    assert!(
        detail.contains("boot timed out") && detail.contains("loading weights 9%"),
        "{detail}"
    );

    swarm.engines.behave(|engine| engine.hold_boot = false);
    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    swarm.until("ENGINE.ROLLING").await;
}

#[tokio::test]
async fn an_engine_of_another_contract_is_refused_with_both_numbers() {
    let swarm = Swarm::start().await;
    swarm.engines.behave(|engine| engine.contract_version = 99);
    swarm.sync(json!({})).await;
    swarm.post("/start_engine", json!({})).await;
    let offline = swarm.until("ENGINE.OFFLINE").await;
    let detail = offline["engine_status_detail"].as_str().unwrap();
    assert!(
        detail.contains("version 99") && detail.contains(&format!("version {CONTRACT_VERSION}")),
        "{detail}"
    );
}

#[tokio::test]
async fn a_crashed_engine_is_started_again_and_its_episodes_are_lost() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
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
async fn an_engine_that_does_not_update_is_replaced_instead_of_waited_for() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
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
async fn a_full_disk_at_the_update_is_waited_out_with_the_batch() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
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
async fn an_engine_whose_socket_is_gone_is_replaced_and_the_detail_says_why() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
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

#[tokio::test]
async fn a_discard_timeout_that_no_clock_can_hold_is_refused() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 10, 1).await;
    for timeout in [1e308, f64::MAX, 31_536_001.0, 0.0, -1.0] {
        let (status, answer) = swarm.try_claim("a", "train", timeout).await;
        let answer = answer.to_string();
        assert!(
            status == 400 && answer.contains("at most 31536000 seconds"),
            "{timeout}: {status} {answer}"
        );
    }
    for timeout in [1e-3, 240.0, 31_536_000.0] {
        assert_eq!(
            swarm.try_claim("a", "train", timeout).await.1["success"],
            true,
            "{timeout}"
        );
    }
}

/// Seen in CI: a boot without its model was told as "the engine tells no events: Connection refused".
#[tokio::test]
async fn an_engine_that_hangs_up_on_us_is_told_by_its_own_last_words() {
    let swarm = Swarm::start().await;
    swarm.engines.behave(|engine| engine.dies_at = Some("/events"));
    swarm.sync(json!({})).await;
    assert_eq!(swarm.post("/start_engine", json!({})).await.0, 200);
    let offline = swarm.until("ENGINE.OFFLINE").await["engine_status_detail"].clone();
    assert_eq!(offline.as_str(), Some(HANGS_UP));

    swarm.engines.behave(|engine| engine.dies_at = Some("/update"));
    swarm.rolling(EPISODES, 1, 1).await;
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
    swarm.rolling(TASKS, 2, 2).await;
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
async fn a_crash_without_restart_is_the_end_with_its_words() {
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
async fn the_end_of_the_server_ends_the_engine() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let engines = swarm.shut_down().await;
    assert_eq!(engines.record().shutdowns, 1);
}

#[tokio::test]
async fn the_end_of_the_server_does_not_wait_for_a_stop_that_takes_long() {
    let swarm = Swarm::with(Options {
        stop_timeout: Duration::from_secs(600),
        exit_timeout: Duration::from_millis(50),
        ..quick()
    })
    .await;
    swarm.rolling(TASKS, 2, 2).await;
    swarm.engines.behave(|engine| engine.hold_shutdown = true);
    let stopping = swarm.request(Method::POST, "/stop_engine").json(&json!({})).send();
    let stopping = tokio::spawn(stopping);
    swarm.until("ENGINE.OFFLINE").await;
    swarm.shut_down().await;
    stopping.abort();
}

#[tokio::test]
async fn an_experiment_is_gone_on_with_by_the_next_server_unless_it_was_stopped() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
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

// Seen with a disk that was read-only after a restart: OFFLINE, and only the log said why.
#[tokio::test]
async fn why_an_experiment_is_not_gone_on_with_is_in_the_status() {
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

// ---- claims ----

#[tokio::test]
async fn claims_are_refused_with_the_phrases_that_clients_match_on() {
    let swarm = Swarm::start().await;
    let (status, refused) = swarm.try_claim("a", "train", 240.0).await;
    assert_eq!(status, 200);
    assert_eq!(
        (
            &refused["success"],
            &refused["episode_uuid"],
            &refused["openai_api_key"],
            &refused["openai_base_url"]
        ),
        (&json!(false), &json!(""), &json!(""), &json!(""))
    );
    let cause = refused["fail_cause"].as_str().unwrap();
    assert!(
        cause.contains("Engine not ready. Current status: [ENGINE.OFFLINE]."),
        "{cause}"
    );
    for (kind, timeout) in [("test", 240.0), ("train", 0.0), ("train", -1.0)] {
        assert_eq!(swarm.try_claim("a", kind, timeout).await.0, 400, "{kind} {timeout}");
    }
}

/// Seen with AgentJet's client, which waits for 15 s after such a refusal, however short the update is.
#[tokio::test]
async fn a_claim_that_meets_an_update_is_held_until_the_engine_rolls() {
    for (method, meets) in [
        (EPISODES, "ENGINE.WEIGHT_SYNCING"),
        (EPISODES, "ENGINE.ROLLING_POST"),
        (TASKS, "ENGINE.WEIGHT_SYNCING"),
        (TASKS, "ENGINE.ROLLING_POST"),
    ] {
        let swarm = Swarm::with(Options {
            claim_timeout: Duration::from_secs(20),
            ..quick()
        })
        .await;
        swarm.rolling(method, 1, 1).await;
        let straggler = match meets {
            "ENGINE.ROLLING_POST" => Some(swarm.claim("a").await),
            _ => None,
        };
        swarm.engines.behave(|engine| engine.hold_updates = true);
        match &straggler {
            Some(straggler) => {
                assert_eq!(swarm.chat(&straggler.key).await.0, 200);
                swarm.engines.behave(|engine| engine.hold_ends = true);
            }
            None => swarm.episode("a", "t", 1.0).await,
        }
        let ended = async {
            if let Some(straggler) = &straggler {
                assert_eq!(swarm.end(straggler, "t", 1.0).await.0, 200);
            }
        };
        let held = async {
            swarm.until("ENGINE.WEIGHT_SYNCING").await;
            let ours = swarm
                .request(Method::POST, "/claim_episode")
                .header("x-ajet-client", "1");
            let body = json!({"client_uuid": "b", "episode_type": "train", "discard_episode_timeout": 9});
            let refused = answer(ours.json(&body)).await.1;
            assert!(
                refused["fail_cause"]
                    .as_str()
                    .unwrap()
                    .contains("Engine is syncing weights"),
                "our own clients look often and are not held: {refused}"
            );
            swarm.try_claim("c", "train", 240.0).await
        };
        let released = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            swarm.engines.behave(|engine| engine.hold_ends = false);
            swarm.until("ENGINE.WEIGHT_SYNCING").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            swarm.engines.behave(|engine| engine.hold_updates = false);
        };
        let (claimed, (), ()) = tokio::join!(held, released, ended);
        assert_eq!(claimed.1["success"], true, "{method} {meets}: {claimed:?}");
    }
}

#[tokio::test]
async fn a_held_claim_ends_with_its_patience_its_client_its_server_and_its_engine() {
    let patient = |claim_timeout| Options {
        claim_timeout,
        ..quick()
    };
    let syncing = async |swarm: &Swarm| {
        swarm.rolling(EPISODES, 1, 1).await;
        swarm.engines.behave(|engine| engine.hold_updates = true);
        swarm.episode("a", "t", 1.0).await;
        swarm.until("ENGINE.WEIGHT_SYNCING").await;
    };
    let swarm = Swarm::with(patient(Duration::from_millis(60))).await;
    syncing(&swarm).await;
    let refused = swarm.try_claim("a", "train", 240.0).await.1;
    assert!(
        refused["fail_cause"]
            .as_str()
            .unwrap()
            .contains("Engine is syncing weights"),
        "{refused}"
    );

    let swarm = Swarm::with(patient(Duration::from_secs(600))).await;
    syncing(&swarm).await;
    // A client that hangs up leaves no episode behind.
    let claim = swarm.try_claim("a", "train", 240.0);
    assert!(tokio::time::timeout(Duration::from_millis(50), claim).await.is_err());
    swarm.engines.behave(|engine| engine.hold_updates = false);
    swarm.until_step(2).await;
    assert_eq!(
        swarm.post("/get_episode_buffer", json!({})).await.1["buffer"],
        json!([])
    );

    swarm.engines.behave(|engine| engine.hold_updates = true);
    swarm.episode("a", "t", 1.0).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
    let stopped = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        swarm.post("/stop_engine", json!({})).await
    };
    let (refused, _) = tokio::join!(swarm.try_claim("a", "train", 240.0), stopped);
    assert!(
        refused.1["fail_cause"].as_str().unwrap().contains("[ENGINE.OFFLINE]"),
        "{refused:?}"
    );

    let swarm = Swarm::with(patient(Duration::from_secs(600))).await;
    syncing(&swarm).await;
    let (url, http) = (swarm.url.clone(), swarm.http.clone());
    let held = tokio::spawn(async move {
        let body = json!({"client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 9});
        http.post(format!("{url}/claim_episode")).json(&body).send().await
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = std::time::Instant::now();
    swarm.shut_down().await;
    let answered = held.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{answered:?}");
}

/// The status as our own clients are told it: at once.
async fn status_now(swarm: &Swarm) -> String {
    let ours = swarm
        .request(Method::GET, "/get_engine_status")
        .header("x-ajet-client", "1");
    answer(ours).await.1["engine_status"].as_str().unwrap().to_owned()
}

async fn until_now(swarm: &Swarm, wanted: &str) {
    let arrived = async |swarm: &Swarm| (status_now(swarm).await == wanted).then_some(());
    swarm.until_true(wanted, arrived).await;
}

/// A server with slow pollers that look so often, ROLLING with batches of two episodes whose updates are held.
async fn looked_at_every(min_poll_interval: Duration, method: &str) -> Swarm {
    let swarm = Swarm::with(Options {
        min_poll_interval,
        ..quick()
    })
    .await;
    swarm.engines.behave(|engine| engine.hold_updates = true);
    let config = json!({
        "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 1}, "swarm_mode_sample_collection_method": method,
    });
    swarm.sync(config).await;
    let start = swarm
        .request(Method::POST, "/start_engine")
        .header("x-ajet-client", "1");
    assert_eq!(answer(start.json(&json!({}))).await.0, 200);
    until_now(&swarm, "ENGINE.ROLLING").await;
    swarm
}

/// Seen with AgentJet's client, which waits for 5 s when the status that it looked at last is not ROLLING.
#[tokio::test]
async fn the_end_of_a_batch_is_told_to_slow_pollers_when_it_has_lasted() {
    let ten_minutes = Duration::from_secs(600);
    for meets in ["ENGINE.WEIGHT_SYNCING", "ENGINE.ROLLING_POST"] {
        let swarm = looked_at_every(ten_minutes, EPISODES).await;
        swarm.episode("a", "t", 1.0).await;
        let straggler = match meets {
            "ENGINE.ROLLING_POST" => Some(swarm.claim("a").await),
            _ => None,
        };
        swarm.episode("a", "u", 1.0).await;
        until_now(&swarm, meets).await;
        let over = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            if let Some(straggler) = &straggler {
                swarm.abort(straggler).await;
            }
            until_now(&swarm, "ENGINE.WEIGHT_SYNCING").await;
            swarm.engines.behave(|engine| engine.hold_updates = false);
        };
        let (told, ()) = tokio::join!(swarm.status(), over);
        assert_eq!(
            (&told["engine_status"], &told["global_step"]),
            (&json!("ENGINE.ROLLING"), &json!(2)),
            "{meets}"
        );
    }
    let swarm = looked_at_every(Duration::from_millis(40), EPISODES).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.episode("a", "u", 1.0).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;

    // Who agreed waits for that very status.
    let swarm = looked_at_every(ten_minutes, ANY).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.post("/agree_sync_weight", json!({"client_uuid": "a"})).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
}

/// Seen with AgentJet's client: what it looked at last was BOOTING, whereupon it waited, or gave up a second start.
#[tokio::test]
async fn a_start_is_answered_when_slow_pollers_have_seen_what_became_of_it() {
    let min_poll_interval = Duration::from_millis(300);
    for boot_error in [None, Some("the weights are torn")] {
        let swarm = Swarm::with(Options {
            min_poll_interval,
            start_timeout: Duration::from_secs(20),
            ..quick()
        })
        .await;
        swarm
            .engines
            .behave(|engine| engine.boot_error = boot_error.map(str::to_owned));
        swarm.sync(json!({})).await;
        let started = std::time::Instant::now();
        let answer = swarm.post("/start_engine", json!({})).await;
        assert!(started.elapsed() >= min_poll_interval);
        match boot_error {
            None => assert_eq!(answer.0, 200, "{answer:?}"),
            Some(reason) => assert!(detail(&answer).contains(reason), "{answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_claim_names_the_episode_its_key_and_where_the_model_is() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let (_, claimed) = swarm
        .post(
            "/claim_episode",
            json!({
                "client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 240, "unknown": 1,
                "throttle_policy": {"ratio": 1.5, "expected_batch_size": 2, "expected_num_repeat": 2, "current_task_id": "t7"},
            }),
        )
        .await;
    assert_eq!(
        (&claimed["success"], &claimed["client_uuid"], &claimed["fail_cause"]),
        (&json!(true), &json!("a"), &json!(""))
    );
    assert_eq!(claimed["openai_base_url"], format!("{}/v1", swarm.url));
    let key = claimed["openai_api_key"].as_str().unwrap();
    assert!(key.starts_with("sk-ajet-") && key.len() > 50);
    let uuid = claimed["episode_uuid"].as_str().unwrap();

    let (_, buffer) = swarm.post("/get_episode_buffer", json!({})).await;
    let listed = &buffer["buffer"][0];
    for (field, value) in [
        ("episode_uuid", json!(uuid)),
        ("episode_status", json!("claimed")),
        ("episode_type", json!("train")),
        ("openai_api_key", json!("")),
        ("client_uuid", json!("a")),
        ("zmq_listen_result_addr", json!("")),
        ("discard_episode_timeout", json!(240.0)),
        ("llm_call_count", json!(0)),
        ("debug_log", json!([])),
        ("optional_task_id", json!("t7")),
    ] {
        assert_eq!(listed[field], value, "{field}");
    }
    let running = &swarm.pool().await["running_episode_details"][uuid];
    assert_eq!(running["optional_task_id"], "t7");
    assert!(running.as_object().unwrap().values().all(Value::is_string), "{running}");
    for (id, claimed) in [(uuid, true), ("never", false)] {
        let (_, answer) = swarm.post("/is_episode_claimed", json!({"episode_uuid": id})).await;
        assert_eq!(answer["success"], claimed);
    }
    for (client, id, can) in [("a", uuid, true), ("b", uuid, false), ("a", "never", false)] {
        let body = json!({"client_uuid": client, "episode_uuid": id});
        let (_, answer) = swarm.post("/can_continue_episode", body).await;
        assert_eq!(answer, json!({ "can_continue": can }));
    }
}

#[tokio::test]
async fn slots_are_bounded_by_the_workers_too() {
    let swarm = Swarm::start().await;
    swarm
        .rolling_with(json!({"data": {"train_batch_size": 8}, "rollout": {"num_repeat": 8, "max_env_worker": 3}}))
        .await;
    for _ in 0..3 {
        swarm.claim("a").await;
    }
    let refused = swarm.try_claim("b", "train", 240.0).await.1;
    assert!(
        refused["fail_cause"]
            .as_str()
            .unwrap()
            .contains("No available episodes to claim.")
    );
}

// ---- ends and aborts ----

#[tokio::test]
async fn an_end_that_is_wrong_is_refused_and_the_episode_stays_claimed() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    for (reward, said) in [
        (json!(null), "null"),
        (json!([1.0]), "a list of 1"),
        (json!("NaN"), "NaN"),
    ] {
        let refused = swarm.end(&episode, "t", reward).await;
        assert_eq!(refused.0, 400);
        assert!(detail(&refused).contains(said), "{refused:?}");
    }
    for literal in ["NaN", "Infinity", "-Infinity"] {
        let body = end_body(&episode, "t", "REWARD")
            .to_string()
            .replace("\"REWARD\"", literal);
        let refused = answer(swarm.request(Method::POST, "/end_episode").body(body)).await;
        assert_eq!(refused.0, 400);
        assert!(
            detail(&refused).contains(&format!("one finite number, got {literal}")),
            "{refused:?}"
        );
    }
    let mut other_task = end_body(&episode, "t", 1.0);
    other_task["task_id"] = "u".into();
    assert_eq!(swarm.post("/end_episode", other_task).await.0, 400);
    assert_eq!(swarm.end(&episode, "", 1.0).await.0, 400);

    let mut foreign = episode.clone();
    foreign.client = "b".into();
    assert_eq!(swarm.end(&foreign, "t", 1.0).await.0, 404);
    let mut unknown = episode.clone();
    unknown.uuid = "never".into();
    let refused = swarm.end(&unknown, "t", 1.0).await;
    assert_eq!(refused, (400, json!({"detail": "Episode never not found."})));
    assert_eq!(swarm.post("/end_episode", json!({"client_uuid": 1})).await.0, 400);
    assert!(swarm.engines.record().ends.is_empty());

    assert_eq!(swarm.chat(&episode.key).await.0, 200);
    assert_eq!(swarm.end(&episode, "t", 1).await, success());
}

#[tokio::test]
async fn an_end_is_idempotent_in_every_state_and_reaches_the_engine_once() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
    let episode = swarm.claim("a").await;
    swarm.chat(&episode.key).await;
    swarm.engines.behave(|engine| {
        engine.hold_ends = true;
        engine.hold_updates = true;
    });
    // Both are under way before the engine answers the first.
    let both = async { tokio::join!(swarm.end(&episode, "t", 1.0), swarm.end(&episode, "t", 1.0)) };
    let released = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        swarm.engines.behave(|engine| engine.hold_ends = false);
    };
    let ((first, second), ()) = tokio::join!(both, released);
    assert_eq!((first, second), (success(), success()));
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success(), "while syncing");
    let other = crate::support::swarm::Claimed {
        uuid: "other".into(),
        ..episode.clone()
    };
    let refused = swarm.end(&other, "t", 1.0).await;
    assert_eq!(refused.0, 400);
    assert!(detail(&refused).contains("WEIGHT_SYNCING"), "{refused:?}");
    swarm.engines.behave(|engine| engine.hold_updates = false);
    swarm.until_step(2).await;
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success(), "in the next batch");
    assert_eq!(swarm.engines.record().ends.len(), 1);
    swarm.post("/stop_engine", json!({})).await;
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success(), "offline");
}

#[tokio::test]
async fn an_end_that_takes_the_engine_long_is_not_lost() {
    let swarm = Swarm::with(Options {
        end_timeout: Duration::from_millis(50),
        ..quick()
    })
    .await;
    swarm.rolling(EPISODES, 1, 1).await;
    let episode = swarm.claim("a").await;
    swarm.chat(&episode.key).await;
    swarm.engines.behave(|engine| engine.hold_ends = true);
    assert_eq!(swarm.end(&episode, "t", 1.0).await.0, 503);
    swarm.engines.behave(|engine| engine.hold_ends = false);
    swarm.until_step(2).await;
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success());
    assert_eq!(swarm.engines.record().ends.len(), 1);
}

#[tokio::test]
async fn what_ends_is_told_to_the_engine_and_listed_in_the_pool() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm.chat(&episode.key).await;
    let mut body = end_body(&episode, "t", 0.5);
    body["workflow_output"]["log_metrics"] = json!({"steps": 3});
    body["workflow_output"]["metadata"]["note"] = "x".into();
    body["workflow_output"]["is_success"] = true.into();
    assert_eq!(swarm.post("/end_episode", body).await, success());
    let (id, end) = swarm.engines.record().ends[0].clone();
    assert_eq!(id, episode.uuid);
    assert_eq!((end.reward, end.is_success, end.claimed_at_step), (0.5, Some(true), 1));
    assert_eq!(
        (end.metadata["note"].clone(), end.log_metrics["steps"].clone()),
        (json!("x"), json!(3))
    );
    let pool = swarm.pool().await;
    for (field, value) in [
        ("sample_collection_method", json!(TASKS)),
        ("completed_episodes", json!(1)),
        ("completed_episode_target", json!(4)),
        ("completed_tasks", json!(0)),
        ("completed_task_target", json!(2)),
        ("completed_non_dummy_tasks", json!(0)),
        ("completed_non_dummy_task_target", json!(2)),
        ("task_expected_num_repeat", json!(2)),
        ("completed_tasks_details", json!({"t": [episode.uuid]})),
        ("completed_tasks_rewards", json!({"t": [0.5]})),
        ("completed_tasks_client_uuids", json!({"t": ["a"]})),
        ("running_episode_details", Value::Null),
        ("training_model_path", json!("builtin:tiny")),
    ] {
        assert_eq!(pool[field], value, "{field}");
    }
    let active = &pool["swarm_client_instruction"]["active_clients"];
    assert_eq!(
        (&active[0]["client_uuid"], &active[0]["allowed_sync_weight"]),
        (&json!("a"), &json!(false))
    );
}

#[tokio::test]
async fn an_episode_without_a_call_enters_nothing_and_is_counted() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    let dropped = json!({"success": true, "dropped": "no_llm_call"});
    assert_eq!(swarm.end(&episode, "t", 1.0).await, (200, dropped));
    let pool = swarm.pool().await;
    assert_eq!(
        (&pool["completed_episodes"], &pool["dropped_episodes"]),
        (&json!(0), &json!({"no_llm_call": 1}))
    );
}

#[tokio::test]
async fn an_eval_episode_leaves_pool_and_active_clients_alone() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim_kind("a", "eval", 240.0).await;
    let (_, answer) = swarm.chat(&episode.key).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "hi (eval)");
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success());
    let pool = swarm.pool().await;
    assert_eq!(pool["completed_episodes"], 0);
    assert_eq!(pool["swarm_client_instruction"]["active_clients"], json!([]));
    assert_eq!(swarm.engines.record().ends[0].1.claimed_at_step, 1);
}

#[tokio::test]
async fn an_abort_frees_the_slot_and_forgets_the_episode() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
    let episode = swarm.claim("a").await;
    swarm.chat(&episode.key).await;
    assert_eq!(swarm.abort(&episode).await, success());
    assert_eq!(swarm.abort(&episode).await, success(), "unknown by now");
    let refused = swarm.end(&episode, "t", 1.0).await;
    assert_eq!(refused.0, 400);
    assert!(detail(&refused).contains("not found."));
    assert_eq!(swarm.chat(&episode.key).await.0, 404);
    swarm.claim("b").await;
    let pool = swarm.pool().await;
    assert_eq!(
        (&pool["completed_episodes"], &pool["dropped_episodes"]),
        (&json!(0), &json!({"aborted": 1}))
    );
    assert_eq!(
        pool["swarm_client_instruction"]["active_clients"][0]["client_uuid"], "a",
        "an abort activates"
    );
    let forgotten = (episode.uuid.clone(), DropReason::Aborted);
    swarm
        .until_true("the engine to forget", async |swarm| {
            (swarm.engines.record().forgotten == [forgotten.clone()]).then_some(())
        })
        .await;
    swarm.post("/stop_engine", json!({})).await;
    assert_eq!(swarm.abort(&episode).await, success(), "offline");
}

#[tokio::test]
async fn any_client_may_abort_an_episode_and_the_slot_is_free_for_all() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
    let episode = swarm.claim("a").await;
    let mut by_another = episode.clone();
    by_another.client = "b".into();
    assert_eq!(swarm.abort(&by_another).await, success());
    assert_eq!(swarm.chat(&episode.key).await.0, 404);
    swarm.claim("c").await;
}

#[tokio::test]
async fn an_abort_of_the_last_episode_lets_a_full_batch_go_on() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 2, 1).await;
    swarm.episode("a", "t", 1.0).await;
    let (one, two) = (swarm.claim("a").await, swarm.claim("b").await);
    swarm.chat(&one.key).await;
    swarm.end(&one, "u", 1.0).await;
    assert_eq!(swarm.status().await["engine_status"], "ENGINE.ROLLING_POST");
    assert_eq!(swarm.abort(&two).await, success());
    swarm.until_step(2).await;
}

#[tokio::test]
async fn idle_episodes_are_discarded_but_not_those_with_a_request_in_flight() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let busy = swarm.claim_kind("a", "train", 0.1).await;
    let idle = swarm.claim_kind("a", "train", 0.1).await;
    let waited = async {
        let gone = swarm
            .until_true("the discard", async |swarm| {
                (swarm.pool().await["dropped_episodes"] == json!({"idle": 1})).then_some(())
            })
            .await;
        assert_eq!(swarm.chat(&idle.key).await.0, 404);
        assert!(detail(&swarm.end(&idle, "t", 1.0).await).contains("not found."));
        swarm.engines.behave(|engine| engine.hold_chats = false);
        gone
    };
    let (chatted, ()) = tokio::join!(swarm.chat(&busy.key), waited);
    assert_eq!(chatted.0, 200);
}

/// Seen with AgentJet's client, whose users were told no more than that the episode was not found.
#[tokio::test]
async fn an_end_after_the_episode_was_lost_says_how() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 4, 4).await;
    for timeout in [0.02, 0.05, 0.1] {
        let idle = swarm.claim_kind("a", "train", timeout).await;
        swarm
            .until_true("the discard", async |swarm| {
                let claimed = swarm
                    .post("/is_episode_claimed", json!({"episode_uuid": idle.uuid}))
                    .await;
                (claimed.1["success"] == false).then_some(())
            })
            .await;
        let refused = swarm.end(&idle, "t", 1.0).await;
        assert_eq!(refused.0, 400);
        let told = format!(
            "Episode {} not found. It was discarded after {timeout} s without an LLM call; hint: claim with a larger \
             discard_episode_timeout",
            idle.uuid
        );
        assert_eq!(detail(&refused), told);
    }
    let aborted = swarm.claim("a").await;
    swarm.abort(&aborted).await;
    let refused = swarm.end(&aborted, "t", 1.0).await;
    assert!(detail(&refused).ends_with("not found. It was aborted"), "{refused:?}");
    let lost = swarm.claim("a").await;
    swarm.engines.die("the engine was killed (signal 9)");
    swarm.until_step(1).await;
    let refused = swarm.end(&lost, "t", 1.0).await;
    assert!(detail(&refused).contains("lost with the engine"), "{refused:?}");
}

#[tokio::test]
async fn what_still_runs_when_post_rolling_times_out_is_late() {
    let swarm = Swarm::start().await;
    swarm
        .rolling_with(json!({
            "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 1},
            "swarm_mode_sample_collection_method": EPISODES, "swarm_mode_rolling_post_timeout": 0.05,
        }))
        .await;
    swarm.episode("a", "t", 1.0).await;
    let (one, late) = (swarm.claim("a").await, swarm.claim("b").await);
    swarm.chat(&one.key).await;
    swarm.end(&one, "u", 1.0).await;
    swarm.until_step(2).await;
    assert_eq!(swarm.chat(&late.key).await.0, 404);
    assert_eq!(swarm.pool().await["dropped_episodes"], json!({"late": 1}));
    assert_eq!(swarm.engines.record().dropped, [dropped([(DropReason::Late, 1)])]);
}

// ---- stop rules and agreement ----

#[tokio::test]
async fn batches_end_by_tasks_and_by_tasks_that_differ() {
    for (method, episodes) in [
        (TASKS, vec![("t", 1.0), ("u", 0.0), ("t", 1.0), ("u", 0.0)]),
        (
            NON_DUMMY,
            vec![("t", 1.0), ("u", 0.0), ("t", 1.0), ("u", 1.0), ("v", 0.0), ("v", 1.0)],
        ),
    ] {
        let swarm = Swarm::start().await;
        swarm.rolling(method, 2, 2).await;
        for (task, reward) in episodes {
            assert_eq!(swarm.status().await["global_step"], 1, "{method}: not before the last");
            swarm.episode("a", task, reward).await;
        }
        swarm.until_step(2).await;
    }
}

#[tokio::test]
async fn clients_agree_to_end_a_batch() {
    for (method, both_needed) in [(ANY, false), (ALL, true)] {
        let swarm = Swarm::start().await;
        swarm.rolling(method, 2, 2).await;
        let agree = async |client: &str| swarm.post("/agree_sync_weight", json!({"client_uuid": client})).await.1;
        assert_eq!(agree("a").await["success"], false, "not active yet");
        swarm.episode("a", "t", 1.0).await;
        swarm.episode("b", "u", 0.0).await;
        assert_eq!(agree("a").await, json!({"success": true, "failure_reason": ""}));
        if both_needed {
            assert_eq!(swarm.status().await["global_step"], 1);
            let clients = &swarm.pool().await["swarm_client_instruction"]["active_clients"];
            assert_eq!(
                (&clients[0]["allowed_sync_weight"], &clients[1]["allowed_sync_weight"]),
                (&json!(true), &json!(false))
            );
            assert_eq!(agree("b").await["success"], true);
        }
        swarm.until_step(2).await;
        assert_eq!(
            swarm.pool().await["swarm_client_instruction"]["active_clients"],
            json!([])
        );
    }
}

#[tokio::test]
async fn an_agreement_under_another_method_gives_the_reason() {
    let swarm = Swarm::start().await;
    let body = json!({"client_uuid": "a"});
    let offline = swarm.post("/agree_sync_weight", body.clone()).await.1;
    assert!(offline["failure_reason"].as_str().unwrap().contains("ENGINE.OFFLINE"));
    swarm.rolling(TASKS, 2, 2).await;
    swarm.episode("a", "t", 1.0).await;
    let refused = swarm.post("/agree_sync_weight", body).await.1;
    assert!(refused["failure_reason"].as_str().unwrap().contains(TASKS), "{refused}");
}

#[tokio::test]
async fn slow_pollers_see_the_update_they_agreed_to_and_our_own_clients_do_not_wait() {
    let slow_poll = Duration::from_millis(400);
    for (header, waits) in [(None, true), (Some("0.1.0"), false)] {
        let swarm = Swarm::with(Options { slow_poll, ..quick() }).await;
        swarm.rolling(ANY, 1, 1).await;
        swarm.episode("a", "t", 1.0).await;
        let started = std::time::Instant::now();
        let mut request = swarm
            .request(Method::POST, "/agree_sync_weight")
            .json(&json!({"client_uuid": "a"}));
        if let Some(version) = header {
            request = request.header("x-ajet-client", version);
        }
        assert_eq!(answer(request).await.1["success"], true);
        swarm.until_step(2).await;
        if waits {
            assert!(started.elapsed() >= slow_poll);
        }
    }
}

// ---- model API ----

#[tokio::test]
async fn a_chat_call_reaches_the_engine_and_can_be_replayed() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    for stream in [false, true] {
        let body = json!({"model": "my-model", "messages": [{"role": "user", "content": "hi"}], "stream": stream});
        let response = swarm.chat_request(&episode.key, &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let text = response.text().await.unwrap();
        if stream {
            assert_eq!(kind, "text/event-stream");
            assert!(
                text.ends_with("data: [DONE]\n\n") && text.matches("data: {").count() == 3,
                "{text}"
            );
        } else {
            assert_eq!(kind, "application/json");
        }
        let expected = if stream {
            "hi (train)".repeat(3)
        } else {
            "hi (train)".into()
        };
        let (_, replay) = swarm.post("/replay_latest_llm_call", json!({})).await;
        assert_eq!(replay["input"], body);
        assert_eq!(replay["output"]["choices"][0]["message"]["content"], expected);
        assert_eq!(replay["output"]["model"], "my-model");
    }
    let running = &swarm.pool().await["running_episode_details"][&episode.uuid];
    assert_eq!(running["llm_call_count"], "2");
    let models = answer(swarm.request(Method::GET, "/v1/models").bearer_auth(&episode.key)).await;
    assert_eq!((models.0, &models.1["data"][0]["id"]), (200, &json!("builtin:tiny")));
    for name in ["builtin:tiny", "gpt-4o", "Qwen/Qwen3-0.6B", "a%2Fb"] {
        let path = format!("/v1/models/{name}");
        let (status, model) = answer(swarm.request(Method::GET, &path).bearer_auth(&episode.key)).await;
        assert_eq!((status, &model["id"]), (200, &json!(name.replace("%2F", "/"))));
    }
    let for_anthropic = |path: &str, key: &str| {
        let request = swarm.request(Method::GET, path).header("x-api-key", key);
        request.header("anthropic-version", "2023-06-01")
    };
    let (_, list) = answer(for_anthropic("/v1/models", &episode.key)).await;
    assert_eq!(
        (&list["data"][0]["type"], &list["has_more"]),
        (&json!("model"), &json!(false))
    );
    assert_eq!(
        (&list["data"][0]["display_name"], &list["last_id"]),
        (&json!("builtin:tiny"), &json!("builtin:tiny"))
    );
    let (_, one) = answer(for_anthropic("/v1/models/claude", &episode.key)).await;
    assert_eq!(
        (&one["id"], &one["created_at"]),
        (&json!("claude"), &json!("1970-01-01T00:00:00Z"))
    );
    let (status, refused) = answer(for_anthropic("/v1/models", "sk-unknown")).await;
    assert_eq!((status, &refused["type"]), (401, &json!("error")));
}

/// The key is the right to it: neither another episode's key nor an ended one shows what was said.
#[tokio::test]
async fn an_episodes_conversations_are_for_its_key_while_it_runs() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let (mine, other) = (swarm.claim("a").await, swarm.claim("b").await);
    let told = async |key: &str| {
        let request = swarm.request(Method::GET, "/v1/episode/conversations");
        answer(request.bearer_auth(key)).await
    };
    let (status, before) = told(&mine.key).await;
    assert_eq!(
        (status, &before["main"], &before["conversations"]),
        (200, &Value::Null, &json!([]))
    );
    swarm.chat(&mine.key).await;
    let (status, after) = told(&mine.key).await;
    assert_eq!(
        (status, &after["episode_uuid"], &after["main"]),
        (200, &json!(mine.uuid), &json!(0))
    );
    assert_eq!(after["conversations"][0]["messages"][1]["content"], "hi (train)");
    let (status, others) = told(&other.key).await;
    assert_eq!((status, &others["llm_calls"]), (200, &json!(0)));
    let running = &swarm.pool().await["running_episode_details"][&mine.uuid];
    assert_eq!(running["llm_call_count"], "1", "a look is no LLM call");
    swarm.end(&mine, "t", 1.0).await;
    for (key, wanted) in [(mine.key.as_str(), 404), ("sk-ajet-0123", 401)] {
        let (status, refused) = told(key).await;
        assert_eq!(status, wanted, "{refused}");
        assert!(refused["error"]["message"].is_string(), "{refused}");
    }
}

/// An episode that is held until others of its task have ended must not be discarded as idle meanwhile.
#[tokio::test]
async fn a_look_at_the_conversations_keeps_an_episode() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let claim = json!({"client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 0.4});
    let (_, claimed) = swarm.post("/claim_episode", claim).await;
    let key = claimed["openai_api_key"].as_str().unwrap();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let request = swarm.request(Method::GET, "/v1/episode/conversations");
        assert_eq!(answer(request.bearer_auth(key)).await.0, 200);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    let request = swarm.request(Method::GET, "/v1/episode/conversations");
    assert_eq!(answer(request.bearer_auth(key)).await.0, 404);
}

#[tokio::test]
async fn errors_of_the_model_api_are_openais() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let ended = swarm.claim("a").await;
    swarm.chat(&ended.key).await;
    swarm.end(&ended, "t", 1.0).await;
    let live = swarm.claim("a").await;
    let ok = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (key, body, status, code) in [
        (None, ok.clone(), 401, json!("invalid_api_key")),
        (Some("sk-ajet-0123"), ok.clone(), 401, json!("invalid_api_key")),
        (Some(ended.key.as_str()), ok.clone(), 404, json!("episode_not_found")),
        (Some(live.key.as_str()), json!([]), 400, Value::Null),
        (Some(live.key.as_str()), json!({"messages": []}), 400, Value::Null),
    ] {
        let mut request = swarm.request(Method::POST, "/v1/chat/completions").json(&body);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let (got, answer) = answer(request).await;
        assert_eq!(got, status, "{answer}");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(
            answer["error"]["message"].is_string() && answer["error"]["type"].is_string(),
            "{answer}"
        );
    }
    let large = "x".repeat(17 * 1024 * 1024);
    let request = swarm.chat_request(&live.key, &json!({"messages": [{"role": "user", "content": large}]}));
    // A server that has said no need not read on, so the client may be cut off before it reads the answer.
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), 413);
    }
    let (status, answer) = swarm.get("/v1/nothing").await;
    assert_eq!(
        (status, answer["error"]["type"].as_str()),
        (404, Some("invalid_request_error"))
    );
}

/// The data of server-sent events that have names.
fn events(text: &str) -> Vec<Value> {
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

#[tokio::test]
async fn an_agent_may_speak_anthropics_api() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    let post = |path: &str, body: &Value| {
        swarm
            .request(Method::POST, path)
            .header("x-api-key", &episode.key)
            .json(body)
    };
    let mut body = json!({"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});

    let (status, message) = answer(post("/v1/messages?beta=true", &body)).await;
    assert_eq!(status, 200, "{message}");
    assert_eq!(message["content"], json!([{"type": "text", "text": "hi (train)"}]));
    assert_eq!(
        (&message["type"], &message["model"], &message["stop_reason"]),
        (&json!("message"), &json!("claude"), &json!("end_turn"))
    );
    assert_eq!(message["usage"]["output_tokens"], 1);
    let replay = swarm.post("/replay_latest_llm_call", json!({})).await.1;
    assert_eq!(replay["output"]["object"], "chat.completion", "replays are chats");

    body["stream"] = json!(true);
    let streamed = post("/v1/messages", &body).send().await.unwrap();
    assert_eq!(streamed.headers()["content-type"], "text/event-stream");
    let events = events(&streamed.text().await.unwrap());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let deltas = ["content_block_delta"; 3];
    let expected = [
        &["message_start", "content_block_start"][..],
        &deltas,
        &["content_block_stop", "message_delta", "message_stop"],
    ];
    assert_eq!(kinds, expected.concat());

    let (status, count) = answer(post(
        "/v1/messages/count_tokens",
        &json!({"messages": body["messages"]}),
    ))
    .await;
    assert_eq!((status, count), (200, json!({"input_tokens": 2})));
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success());
}

#[tokio::test]
async fn errors_on_messages_are_anthropics() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let ended = swarm.claim("a").await;
    swarm.chat(&ended.key).await;
    swarm.end(&ended, "t", 1.0).await;
    let live = swarm.claim("a").await;
    let ok = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    let image = json!({"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image"}]}]});
    for (path, key, body, status, kind, said) in [
        ("", None, &ok, 401, "authentication_error", "API key"),
        ("", Some("sk-ajet-0123"), &ok, 401, "authentication_error", "unknown"),
        ("", Some(&*ended.key), &ok, 404, "not_found_error", "ended"),
        (
            "",
            Some(&*live.key),
            &json!([]),
            400,
            "invalid_request_error",
            "not valid",
        ),
        (
            "",
            Some(&*live.key),
            &json!({"messages": []}),
            400,
            "invalid_request_error",
            "`max_tokens`",
        ),
        ("", Some(&*live.key), &image, 400, "invalid_request_error", "`image`"),
        // The engine's own sentence.
        (
            "",
            Some(&*live.key),
            &json!({"max_tokens": 9, "messages": []}),
            400,
            "invalid_request_error",
            "messages[0]",
        ),
        ("/count_tokens", None, &ok, 401, "authentication_error", "API key"),
        (
            "/batches",
            Some(&*live.key),
            &ok,
            404,
            "not_found_error",
            "/v1/messages/batches",
        ),
    ] {
        let mut request = swarm.request(Method::POST, &format!("/v1/messages{path}")).json(body);
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let (got, answer) = answer(request).await;
        assert_eq!((got, &answer["type"]), (status, &json!("error")), "{answer}");
        assert_eq!(answer["error"]["type"], kind, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(said), "{answer}");
    }
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let killed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        swarm.engines.die("the engine was killed (signal 9)");
    };
    let request = swarm
        .request(Method::POST, "/v1/messages")
        .header("x-api-key", &live.key);
    let (response, ()) = tokio::join!(request.json(&ok).send(), killed);
    let response = response.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["type"], "overloaded_error");
}

#[tokio::test]
async fn an_agent_may_speak_the_responses_api() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    let post = |body: &Value| {
        swarm
            .request(Method::POST, "/v1/responses")
            .bearer_auth(&episode.key)
            .json(body)
    };

    let (status, first) = answer(post(&json!({"model": "m", "input": "hi"}))).await;
    assert_eq!(status, 200, "{first}");
    assert_eq!(
        (&first["object"], &first["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(first["output"][0]["content"][0]["text"], "hi (train)");
    assert_eq!(first["usage"]["total_tokens"], 2);

    // The engine is given the whole conversation.
    let body = json!({"model": "m", "input": "and?", "previous_response_id": first["id"], "stream": true});
    let streamed = post(&body).send().await.unwrap();
    let events = events(&streamed.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["previous_response_id"], first["id"]);
    let input = swarm.post("/replay_latest_llm_call", json!({})).await.1["input"].clone();
    let said: Vec<&Value> = input["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["content"])
        .collect();
    assert_eq!(said, ["hi", "hi (train)", "and?"]);
    let third = answer(post(
        &json!({"model": "m", "input": "so?", "previous_response_id": last["response"]["id"]}),
    ))
    .await;
    assert_eq!(third.0, 200, "{}", third.1);

    let other = swarm.claim("a").await;
    let body = json!({"input": "x", "previous_response_id": first["id"]});
    let foreign = swarm
        .request(Method::POST, "/v1/responses")
        .bearer_auth(&other.key)
        .json(&body);
    let (status, refused) = answer(foreign).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    assert_eq!(refused["error"]["param"], "previous_response_id");
    let (status, refused) = answer(post(&json!({"input": [{"type": "item_reference", "id": "x"}]}))).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input[0]")));

    // Items of the latest answer (this engine's ids are all the same) can be referred to, and an answer can be had again.
    let reference = json!({"type": "item_reference", "id": third.1["output"][0]["id"]});
    let input = json!([{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "more"}]);
    let (status, fourth) = answer(post(&json!({"model": "m", "input": input}))).await;
    assert_eq!(status, 200, "{fourth}");
    let get = |id: &str, key: &str| {
        let path = format!("/v1/responses/{id}");
        swarm.request(Method::GET, &path).bearer_auth(key)
    };
    let id = fourth["id"].as_str().unwrap();
    let (status, again) = answer(get(id, &episode.key)).await;
    assert_eq!((status, &again["output"]), (200, &fourth["output"]));
    assert_eq!(answer(get(id, &other.key)).await.0, 404);
    assert_eq!(answer(get("resp_none", &episode.key)).await.0, 404);
}

#[tokio::test]
async fn a_live_episode_is_told_to_come_again_while_the_engine_cannot_serve_it() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let episode = swarm.claim("a").await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let killed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        swarm.engines.die("the engine was killed (signal 9)");
    };
    let (response, ()) = tokio::join!(swarm.chat_request(&episode.key, &body).send(), killed);
    let response = response.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn an_engine_that_dies_in_the_middle_of_a_stream_is_told_in_each_apis_words() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let hello = json!([{"role": "user", "content": "hi"}]);
    for (path, body, said) in [
        ("/v1/chat/completions", json!({"messages": hello}), "data: {\"error\":{"),
        (
            "/v1/messages",
            json!({"messages": hello, "max_tokens": 9}),
            "event: error\ndata: {",
        ),
        (
            "/v1/responses",
            json!({"input": "hi"}),
            "event: response.failed\ndata: {",
        ),
    ] {
        swarm
            .engines
            .behave(|engine| engine.stream = (1000, Duration::from_millis(5)));
        let episode = swarm.claim("a").await;
        let mut body = body;
        body["stream"] = json!(true);
        body["model"] = json!("m");
        let request = swarm.request(Method::POST, path).bearer_auth(&episode.key).json(&body);
        let mut pieces = request.send().await.unwrap().bytes_stream();
        let mut told = pieces.next().await.unwrap().unwrap().to_vec();
        swarm.engines.die("the engine was killed (signal 9)");
        while let Some(piece) = pieces.next().await {
            told.extend_from_slice(&piece.expect("the stream ends in good order"));
        }
        let told = String::from_utf8(told).unwrap();
        let last = told.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with(said) && last.contains("answer ended early"), "{last}");
        swarm
            .until_true("another engine", async |swarm| {
                let status = swarm.get("/get_engine_status").await.1;
                (status["engine_status"] == "ENGINE.ROLLING").then_some(())
            })
            .await;
    }
    let (status, _) = swarm.post("/replay_latest_llm_call", json!({})).await;
    assert_eq!(status, 404, "none was answered");
}

#[tokio::test]
async fn an_agent_that_hangs_up_cancels_its_generation() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm
        .engines
        .behave(|engine| engine.stream = (1000, Duration::from_millis(5)));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut pieces = swarm
        .chat_request(&episode.key, &body)
        .send()
        .await
        .unwrap()
        .bytes_stream();
    let first = pieces.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"), "pieces come as they are made");
    drop(pieces);
    swarm
        .until_true("the cut", async |swarm| {
            (swarm.engines.record().chats_cut == 1).then_some(())
        })
        .await;

    swarm.engines.behave(|engine| engine.hold_chats = true);
    let request = swarm.chat_request(&episode.key, &json!({"messages": [{"role": "user", "content": "hi"}]}));
    let waited = tokio::time::timeout(Duration::from_millis(100), request.send()).await;
    assert!(waited.is_err(), "held");
    swarm
        .until_true("the cut", async |swarm| {
            (swarm.engines.record().chats_cut == 2).then_some(())
        })
        .await;
    assert_eq!(
        swarm.post("/replay_latest_llm_call", json!({})).await.0,
        404,
        "neither was answered"
    );
}

// ---- the rest ----

#[tokio::test]
async fn verbose_logs_are_kept_in_order() {
    let swarm = Swarm::start().await;
    for message in ["one", "two"] {
        let pushed = swarm
            .post("/push_verbose_log", json!({"tag": "t", "message": message}))
            .await;
        assert_eq!(pushed, (200, json!({"success": true, "failure_reason": ""})));
    }
    let (_, logs) = swarm.get("/get_verbose_logs").await;
    assert_eq!(
        (&logs["entries"][0]["message"], &logs["entries"][1]["message"]),
        (&json!("one"), &json!("two"))
    );
    assert!(logs["entries"][0]["timestamp"].as_f64().unwrap() > 1.7e9);
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_told() {
    let swarm = Swarm::start().await;
    assert_eq!(swarm.get("//health").await.0, 200);
    let missing = swarm.get("/nothing").await;
    assert_eq!(
        missing,
        (
            404,
            json!({"detail": "no such endpoint: /nothing; hint: /openapi.json lists the endpoints"})
        )
    );
    let wrong = swarm.get("/claim_episode").await;
    assert_eq!(
        wrong,
        (
            405,
            json!({"detail": "method not allowed: GET /claim_episode; hint: /openapi.json lists the methods"})
        )
    );
}

#[tokio::test]
async fn without_the_token_there_is_nothing_but_health() {
    let swarm = Swarm::with(Options {
        token: Some(Token::new("correct-horse").unwrap()),
        ..quick()
    })
    .await;
    assert_eq!(swarm.get("/health").await.0, 200);
    for path in [
        "/get_engine_status",
        "/nothing",
        "/t/wrong-horse/get_engine_status",
        "/v1/models",
        "/t/wrong-horse/v1/models",
    ] {
        assert_eq!(swarm.get(path).await.0, 401, "{path}");
        let wrong = answer(swarm.request(Method::GET, path).bearer_auth("wrong-horse")).await;
        assert_eq!(wrong.0, 401, "{path}");
    }
    assert_eq!(
        answer(
            swarm
                .request(Method::GET, "/get_engine_status")
                .bearer_auth("correct-horse")
        )
        .await
        .0,
        200
    );
    for path in [
        "/t/correct-horse/get_engine_status",
        "/t/correct-horse//get_engine_status",
    ] {
        assert_eq!(swarm.get(path).await.0, 200, "{path}");
    }

    let yaml = swarm.yaml(json!({}));
    let post = async |path: &str, body: Value| swarm.post(&format!("/t/correct-horse{path}"), body).await;
    post("/sync_train_config", json!({"yaml_as_string": yaml})).await;
    assert_eq!(post("/start_engine", json!({})).await.0, 200);
    let claimed = swarm
        .until_true("a claim", async |_| {
            let body = json!({"client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 240});
            let claimed = post("/claim_episode", body).await.1;
            (claimed["success"] == true).then_some(claimed)
        })
        .await;
    let key = claimed["openai_api_key"].as_str().unwrap();
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(answer(swarm.chat_request(key, &body)).await.0, 200, "the key alone");
    let behind_prefix = swarm
        .request(Method::POST, "/t/correct-horse/v1/chat/completions")
        .bearer_auth(key)
        .json(&body);
    assert_eq!(answer(behind_prefix).await.0, 200);
    assert_eq!(
        swarm
            .chat_request("sk-ajet-made-up", &body)
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
}

#[tokio::test]
async fn what_did_not_train_is_told_to_the_update_of_its_batch_through_crashes_too() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 3).await;
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
    let of_batch = dropped([
        (DropReason::Aborted, 1),
        (DropReason::EngineLost, 1),
        (DropReason::NoLlmCall, 1),
    ]);
    assert_eq!(swarm.engines.record().dropped, [of_batch, dropped([])]);
    let all = json!({"aborted": 1, "engine_lost": 1, "no_llm_call": 1});
    assert_eq!(swarm.pool().await["dropped_episodes"], all);
}

#[tokio::test]
async fn web_pages_of_other_sites_are_refused_where_there_is_no_token() {
    let from = |swarm: &Swarm, path: &str, origin: &str| {
        answer(
            swarm
                .request(Method::POST, path)
                .header("origin", origin.to_owned())
                .json(&json!({})),
        )
    };
    let swarm = Swarm::start().await;
    assert_eq!(from(&swarm, "/stop_engine", "https://evil.example.com").await.0, 403);
    assert_eq!(from(&swarm, "/stop_engine", "http://localhost:3000").await.0, 200);
    let guarded = Swarm::with(Options {
        token: Some(Token::new("correct-horse").unwrap()),
        ..quick()
    })
    .await;
    let path = "/t/correct-horse/stop_engine";
    assert_eq!(
        from(&guarded, path, "https://my.example.com").await.0,
        200,
        "who has the token may"
    );
}

#[tokio::test]
async fn drops_that_the_engine_decides_are_counted() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    for (reason, count) in [
        (DropReason::Dummy, 2),
        (DropReason::OverCache, 1),
        (DropReason::Aborted, 5),
    ] {
        swarm.engines.send(&EngineEvent::Dropped { reason, count });
    }
    swarm
        .until_true("the counts", async |swarm| {
            (swarm.pool().await["dropped_episodes"] == json!({"dummy": 2, "over_cache": 1})).then_some(())
        })
        .await;
}

// ---- what the server tells of itself ----

/// The schema that a document's reference leads to.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    }
}

/// Every `$ref` in a document.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_openapi_document_is_true() {
    let swarm = Swarm::start().await;
    let (status, document) = swarm.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let mut found = vec![];
    references(&document, &mut found);
    assert!(found.contains(&"#/components/schemas/PoolInformation"), "{found:?}");
    for reference in found {
        let path = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(path).is_some(), "{reference} leads nowhere");
    }
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/openapi.json") && paths.contains_key("/v1/chat/completions"));
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let called = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (status, answer) = answer(swarm.request(called, path).json(&json!({}))).await;
            assert_ne!(status, 405, "{method} {path}");
            assert!(
                !answer["detail"].as_str().unwrap_or("").starts_with("there is no /"),
                "{path}: {answer}"
            );
            let wanted = match status {
                200 => &operation["responses"]["200"],
                _ => &operation["responses"]["default"],
            };
            let schema = resolved(&document, &wanted["content"]["application/json"]["schema"]);
            for field in schema["required"].as_array().into_iter().flatten() {
                assert!(
                    answer.get(field.as_str().unwrap()).is_some(),
                    "{path}: {field} in {answer}"
                );
            }
            let known = schema["properties"].as_object();
            for (field, _) in answer.as_object().into_iter().flatten().filter(|_| known.is_some()) {
                assert!(known.unwrap().contains_key(field), "{path}: {field} is not described");
            }
        }
    }
}

#[tokio::test]
async fn prometheus_reads_the_figures() {
    let swarm = Swarm::start().await;
    swarm.rolling(EPISODES, 1, 1).await;
    let given_up = swarm.claim("a").await;
    swarm.abort(&given_up).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.until_step(2).await;
    swarm.claim("a").await;
    let response = swarm.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = response.text().await.unwrap();
    for line in [
        "ajet_swarm_engine_status{status=\"ENGINE.ROLLING\"} 1",
        "ajet_swarm_global_step 2",
        "ajet_swarm_running_episodes 1",
        "ajet_swarm_episode_slots 1",
        "ajet_swarm_completed_episodes_target 1",
        "ajet_swarm_dropped_episodes_total{reason=\"aborted\"} 1",
        "ajet_swarm_llm_calls_in_flight 0",
        "ajet_actor{of=\"loss\"} 0.25",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && name.starts_with("ajet_"), "{line}");
    }
}

// ---- code ----

fn zipped(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::write::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in entries {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(*name, options).unwrap();
        std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[tokio::test]
async fn a_snapshot_of_code_is_stored_offline_and_not_run() {
    let root = tempfile::tempdir().unwrap();
    let swarm = Swarm::with(Options {
        code_root: root.path().join("code"),
        ..quick()
    })
    .await;
    let send = async |bytes: Vec<u8>| {
        let request = swarm.request(Method::POST, "/sync_train_code");
        answer(request.header("content-type", "application/zip").body(bytes)).await
    };
    let (status, stored) = send(zipped(&[("ajet/trainer.py", "print(1)")])).await;
    assert_eq!((status, &stored["success"]), (200, &json!(true)), "{stored}");
    let path = std::path::PathBuf::from(stored["temp_ajet_code_path"].as_str().unwrap());
    assert!(path.is_absolute() && path.ends_with("ajet"), "{path:?}");
    assert_eq!(std::fs::read_to_string(path.join("trainer.py")).unwrap(), "print(1)");
    assert!(
        stored["message"]
            .as_str()
            .unwrap()
            .contains("nothing there is built or run"),
        "{stored}"
    );

    for (bytes, said) in [
        (b"no zip".to_vec(), "as a zip archive"),
        (zipped(&[("../../evil", "")]), "plain relative path"),
        (zipped(&[]), "no files"),
    ] {
        let refused = send(bytes).await;
        assert_eq!(refused.0, 400);
        assert!(detail(&refused).contains(said), "{refused:?}");
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "nothing leads out");
    assert_eq!(std::fs::read_dir(root.path().join("code")).unwrap().count(), 1);

    swarm.rolling(TASKS, 2, 2).await;
    let refused = send(zipped(&[("ajet/trainer.py", "")])).await;
    assert_eq!(refused.0, 400);
    assert!(detail(&refused).contains("must be offline"), "{refused:?}");
}
