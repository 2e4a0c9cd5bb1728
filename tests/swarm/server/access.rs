//! Access tokens, web pages of other sites, unknown paths.

use crate::support::swarm::{Swarm, answer, quick};
use ajet_swarm::server::{Options, Token};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn unknown_paths_and_methods_are_named() {
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
async fn without_the_token_only_health_answers() {
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
async fn cross_origin_requests_are_refused_when_there_is_no_token() {
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
