//! The built-in model is trained by a judge's scores, through the whole program.

use std::path::Path;
use std::process::Command;

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

/// A judge by a fixed rule: the shorter an answer, the better. A prompt has a line `ID LENGTH` for each answer.
async fn judge() -> String {
    let judge = |Json(request): Json<Value>| {
        let prompt = request["messages"][0]["content"].as_str().unwrap().to_owned();
        let answers = prompt.lines().filter_map(|line| line.split_once(' '));
        let scores: Vec<_> = answers
            .map(|(id, length)| json!({"id": id, "score": 1.0 / (1.0 + length.parse::<f64>().unwrap())}))
            .collect();
        let text = match scores.as_slice() {
            [only] if only["id"] == "answer" => format!("It is as it is.\n**Score: {}**", only["score"]),
            _ => format!("Here you are:\n```json\n{}\n```", json!({"scores": scores})),
        };
        let choice = json!({"message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
        std::future::ready(Json(json!({"choices": [choice]})))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(judge));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Runs a job with this reward and returns its last event.
fn train(dir: &Path, reward: &Value) -> Value {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let job = json!({
        "ajet": {
            "experiment_name": "judged", "model": {"path": "builtin:tiny"},
            "data": {"train_batch_size": 4, "max_prompt_length": 64, "max_response_length": 16},
            // Answers must differ in length from the first batch on: at 1, a run in twenty met no such group early enough.
            "rollout": {"num_repeat": 8, "temperature": 2.0},
            "trainer_common": {"optim": {"lr": 2e-3}, "use_kl_loss": false},
            "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 200, "validation_tasks": 16}},
            "engine": {"device": "cpu", "threads": 1},
        },
        "roll": {
            "swarm_url": format!("http://127.0.0.1:{port}"), "steps": 12, "max_parallel": 16, "eval": {},
            "agent": {"type": "chat", "user": "{{ main_query }}"}, "reward": reward,
        },
    });
    std::fs::write(dir.join("job.yaml"), job.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
        .args(["roll", "job.yaml", "--json"])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(events.lines().last().unwrap()).unwrap()
}

async fn learns(reward: Value) {
    let dir = tempfile::tempdir().unwrap();
    let trained = tokio::task::spawn_blocking(move || {
        let end = train(dir.path(), &reward);
        let best = std::fs::read_to_string(dir.path().join("saved_experiments/judged/checkpoints/best")).unwrap();
        (end, serde_json::from_str::<Value>(&best).unwrap())
    });
    let (end, best) = trained.await.unwrap();
    let mean = |when: &str, what: &str| end[when][what].as_f64().unwrap();
    assert!(
        mean("eval_after", "reward_mean") > mean("eval_before", "reward_mean") + 0.05,
        "{end}"
    );
    assert!(
        mean("eval_after", "response_length_mean") < mean("eval_before", "response_length_mean"),
        "{end}"
    );
    assert_eq!((&best["step"], &best["episodes"]), (&json!(12), &json!(16)));
    assert_eq!(end["best"], best);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_of_single_answers_teaches_what_it_likes() {
    let url = judge().await;
    learns(json!({
        "type": "llm_judge", "judge": {"model": "j", "base_url": url}, "score_max": 1,
        "prompt": "answer {{ output | length }}",
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_of_groups_teaches_what_it_ranks_high() {
    let url = judge().await;
    let prompt = "{% for answer in answers %}{{ answer.id }} {{ answer.output | length }}\n{% endfor %}";
    learns(json!({"type": "group_judge", "judge": {"model": "j", "base_url": url}, "prompt": prompt})).await;
}
