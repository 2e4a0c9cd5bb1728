//! When a batch is full: the collection methods and agreements.

use crate::support::swarm::{ALL_AGREE, ANY_AGREES, ENOUGH_NON_DUMMY_TASKS, ENOUGH_TASKS, Swarm};
use serde_json::json;

#[tokio::test]
async fn batches_end_by_tasks_and_by_tasks_with_different_rewards() {
    for (method, episodes) in [
        (ENOUGH_TASKS, vec![("t", 1.0), ("u", 0.0), ("t", 1.0), ("u", 0.0)]),
        (
            ENOUGH_NON_DUMMY_TASKS,
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
    for (method, both_needed) in [(ANY_AGREES, false), (ALL_AGREE, true)] {
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
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    swarm.episode("a", "t", 1.0).await;
    let refused = swarm.post("/agree_sync_weight", body).await.1;
    assert!(
        refused["failure_reason"].as_str().unwrap().contains(ENOUGH_TASKS),
        "{refused}"
    );
}
