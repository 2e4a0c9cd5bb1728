//! Ends, aborts and discards of episodes.

use std::time::Duration;

use crate::support::swarm::{ENOUGH_EPISODES, ENOUGH_TASKS, Swarm, answer, detail, end_body, quick, success};
use ajet_swarm::protocol::engine::{DropReason, EngineEvent};
use ajet_swarm::server::Options;
use indexmap::IndexMap;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn an_invalid_end_is_refused_and_the_episode_stays_claimed() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
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
async fn an_end_that_the_engine_answers_slowly_is_not_lost() {
    let swarm = Swarm::with(Options {
        end_timeout: Duration::from_millis(50),
        ..quick()
    })
    .await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
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
async fn an_ended_episode_reaches_the_engine_and_the_pool() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
        ("sample_collection_method", json!(ENOUGH_TASKS)),
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
async fn an_episode_without_a_call_adds_nothing_and_is_counted() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
async fn an_eval_episode_changes_neither_pool_nor_active_clients() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
async fn an_abort_frees_the_slot_and_removes_the_episode() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
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
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    let episode = swarm.claim("a").await;
    let mut by_another = episode.clone();
    by_another.client = "b".into();
    assert_eq!(swarm.abort(&by_another).await, success());
    assert_eq!(swarm.chat(&episode.key).await.0, 404);
    swarm.claim("c").await;
}

#[tokio::test]
async fn an_abort_of_the_last_episode_lets_a_full_batch_train() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 2, 1).await;
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
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
async fn an_end_of_a_lost_episode_says_how_it_was_lost() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 4, 4).await;
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
async fn episodes_still_running_at_the_post_rolling_timeout_are_dropped_as_late() {
    let swarm = Swarm::start().await;
    swarm
        .rolling_with(json!({
            "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 1},
            "swarm_mode_sample_collection_method": ENOUGH_EPISODES, "swarm_mode_rolling_post_timeout": 0.05,
        }))
        .await;
    swarm.episode("a", "t", 1.0).await;
    let (one, late) = (swarm.claim("a").await, swarm.claim("b").await);
    swarm.chat(&one.key).await;
    swarm.end(&one, "u", 1.0).await;
    swarm.until_step(2).await;
    assert_eq!(swarm.chat(&late.key).await.0, 404);
    assert_eq!(swarm.pool().await["dropped_episodes"], json!({"late": 1}));
    assert_eq!(
        swarm.engines.record().dropped,
        [IndexMap::from([(DropReason::Late, 1)])]
    );
}

#[tokio::test]
async fn drops_that_the_engine_decides_are_counted() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
