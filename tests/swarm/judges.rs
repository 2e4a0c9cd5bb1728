//! Runs whose answers another model judges, one by one and against each other.

use std::sync::{Arc, Mutex};

use crate::support::roll_job::{ajet, job, run_to_end};
use crate::support::swarm::{ENOUGH_TASKS, Swarm};
use ajet_swarm::protocol::swarm::EpisodeType;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

/// A judge that gives every agent of a prompt, or the one answer of it, 0.75, and keeps the prompts.
async fn judge() -> (String, Arc<Mutex<Vec<String>>>) {
    let prompts = Arc::new(Mutex::new(vec![]));
    let kept = prompts.clone();
    let answer = move |Json(request): Json<Value>| {
        let prompt = request["messages"][0]["content"].as_str().unwrap().to_owned();
        let ids = prompt.split("<agent id=\"").skip(1).map(|agent| &agent[..6]);
        let scores: Vec<_> = ids.map(|id| json!({"id": id, "score": 0.75})).collect();
        let text = match scores.is_empty() {
            true => "Score: 7.5".to_owned(),
            false => json!({"scores": scores}).to_string(),
        };
        kept.lock().unwrap().push(prompt);
        let choice = json!({"message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
        std::future::ready(Json(json!({"choices": [choice]})))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, prompts)
}

/// Two agents at once are fewer than a group, whose answers wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_judged_in_one_call_though_fewer_agents_run_at_once() {
    let swarm = Swarm::start().await;
    let (url, prompts) = judge().await;
    let reward = json!({"type": "group_judge", "judge": {"model": "j", "base_url": url}, "scale": "score"});
    let roll = json!({"steps": 1, "max_parallel": 2, "reward": reward});
    let end = run_to_end(job(&swarm, ajet(2, 4, ENOUGH_TASKS), roll)).await.unwrap();
    assert_eq!((end.steps, end.dropped.len()), (1, 0), "{:?}", end.dropped);
    let record = swarm.engines.record();
    assert!(record.ends.len() >= 8, "{}", record.ends.len());
    assert!(record.ends.iter().all(|(_, end)| end.reward == 0.75));
    let prompts = prompts.lock().unwrap().clone();
    assert_eq!(prompts.len(), record.ends.len() / 4, "one call for each group of four");
    // The server's record of the conversation.
    assert!(prompts[0].contains("(train)"), "{}", prompts[0]);
    swarm.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_is_judged_with_the_conversation_as_the_server_recorded_it() {
    let swarm = Swarm::start().await;
    let (url, prompts) = judge().await;
    let reward = json!({"type": "weighted", "parts": {
        "judged": {"weight": 2, "reward": {
            "type": "llm_judge", "judge": {"model": "j", "base_url": url}, "prompt": "{{ messages | tojson }}"}},
        "own": {"reward": {"type": "expression", "expression": "messages | length"}},
    }});
    let roll = json!({"steps": 1, "max_parallel": 4, "eval": {}, "reward": reward});
    let end = run_to_end(job(&swarm, ajet(2, 2, ENOUGH_TASKS), roll)).await.unwrap();
    assert_eq!(end.eval_before.unwrap().reward_mean, Some(3.5));
    let record = swarm.engines.record();
    let trained = record
        .ends
        .iter()
        .filter(|(_, end)| end.episode_type == EpisodeType::Train);
    for (_, end) in trained {
        assert_eq!(end.reward, 2.0 * 0.75 + 2.0);
        assert_eq!(
            (&end.log_metrics["reward/judged"], &end.log_metrics["reward/own"]),
            (&json!(0.75), &json!(2.0))
        );
    }
    let prompts = prompts.lock().unwrap().clone();
    assert!(
        prompts.iter().all(|prompt| prompt.contains("\"role\": \"assistant\"")),
        "{prompts:?}"
    );
    swarm.shut_down().await;
}
