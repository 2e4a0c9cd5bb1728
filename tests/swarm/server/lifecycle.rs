//! Configuration, boot, the five states and the end of the engine.

use std::time::Duration;

use crate::support::swarm::{ENOUGH_EPISODES, ENOUGH_TASKS, Swarm, answer, detail, quick, success};
use ajet_swarm::protocol::engine::{CONTRACT_VERSION, EngineEvent, EnginePhase};
use ajet_swarm::server::Options;
use ajet_swarm::server::engine::resume;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn an_offline_server_answers_every_query() {
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
async fn the_server_passes_all_five_states_and_the_step_advances() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 2).await;
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
async fn configuration_and_start_are_accepted_only_offline() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
async fn an_invalid_configuration_is_refused_and_the_previous_one_is_dropped() {
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
async fn a_start_that_must_fail_is_refused_at_once() {
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
async fn a_failed_boot_stays_visible_with_its_reason() {
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
async fn start_engine_returns_the_outcome_of_the_boot_to_a_slow_poller() {
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
async fn start_engine_returns_before_a_long_boot_ends_and_at_once_to_our_clients() {
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

#[tokio::test]
async fn a_hanging_boot_times_out_but_a_slow_one_does_not() {
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
async fn an_engine_with_another_contract_version_is_refused() {
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
async fn shutdown_of_the_server_stops_the_engine() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let engines = swarm.shut_down().await;
    assert_eq!(engines.record().shutdowns, 1);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_slow_stop() {
    let swarm = Swarm::with(Options {
        stop_timeout: Duration::from_secs(600),
        exit_timeout: Duration::from_millis(50),
        ..quick()
    })
    .await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    swarm.engines.behave(|engine| engine.hold_shutdown = true);
    let stopping = swarm.request(Method::POST, "/stop_engine").json(&json!({})).send();
    let stopping = tokio::spawn(stopping);
    swarm.until("ENGINE.OFFLINE").await;
    swarm.shut_down().await;
    stopping.abort();
}
