//! Clients that look at the status only every few seconds: each state lasts until they have seen it.

use std::time::Duration;

use crate::support::swarm::{ANY_AGREES, ENOUGH_EPISODES, Swarm, answer, detail, quick};
use ajet_swarm::server::Options;
use reqwest::Method;
use serde_json::json;

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
async fn rolling_with_slow_pollers(min_poll_interval: Duration, method: &str) -> Swarm {
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
async fn slow_pollers_see_the_end_of_a_batch_once_it_has_lasted() {
    let ten_minutes = Duration::from_secs(600);
    for meets in ["ENGINE.WEIGHT_SYNCING", "ENGINE.ROLLING_POST"] {
        let swarm = rolling_with_slow_pollers(ten_minutes, ENOUGH_EPISODES).await;
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
    let swarm = rolling_with_slow_pollers(Duration::from_millis(40), ENOUGH_EPISODES).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.episode("a", "u", 1.0).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;

    // Who agreed waits for that very status.
    let swarm = rolling_with_slow_pollers(ten_minutes, ANY_AGREES).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.post("/agree_sync_weight", json!({"client_uuid": "a"})).await;
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
}

/// Seen with AgentJet's client: what it looked at last was BOOTING, whereupon it waited, or gave up a second start.
#[tokio::test]
async fn start_engine_returns_once_slow_pollers_have_seen_the_outcome() {
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
async fn slow_pollers_see_the_update_they_agreed_to_and_our_own_clients_do_not_wait() {
    let slow_poll = Duration::from_millis(400);
    for (header, waits) in [(None, true), (Some("0.1.0"), false)] {
        let swarm = Swarm::with(Options { slow_poll, ..quick() }).await;
        swarm.rolling(ANY_AGREES, 1, 1).await;
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
