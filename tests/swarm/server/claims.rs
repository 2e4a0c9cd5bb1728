//! Claims of episodes: refusals, waiting, limits.

use std::time::Duration;

use crate::support::swarm::{ENOUGH_EPISODES, ENOUGH_TASKS, Swarm, answer, quick};
use ajet_swarm::server::Options;
use reqwest::Method;
use serde_json::{Value, json};

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
async fn a_claim_during_an_update_waits_for_rolling() {
    for (method, meets) in [
        (ENOUGH_EPISODES, "ENGINE.WEIGHT_SYNCING"),
        (ENOUGH_EPISODES, "ENGINE.ROLLING_POST"),
        (ENOUGH_TASKS, "ENGINE.WEIGHT_SYNCING"),
        (ENOUGH_TASKS, "ENGINE.ROLLING_POST"),
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
async fn a_waiting_claim_ends_with_its_timeout_its_client_its_server_or_its_engine() {
    let patient = |claim_timeout| Options {
        claim_timeout,
        ..quick()
    };
    let syncing = async |swarm: &Swarm| {
        swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
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

#[tokio::test]
async fn a_claim_returns_the_episode_its_key_and_the_models_url() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
async fn claims_are_limited_by_max_env_worker_too() {
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

#[tokio::test]
async fn a_discard_timeout_beyond_the_clocks_range_is_refused() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 10, 1).await;
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
