//! What one client may take, so that others are not stopped: connections, bodies, calls, time.

#[allow(dead_code, reason = "each test file uses a part of what they share")]
mod support;

use std::time::Duration;

use ajet_swarm::server::{Limits, Options};
use reqwest::Method;
use serde_json::{Value, json};
use support::swarm::{Swarm, answer, end_body, quick};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TASKS: &str = "rollout_until_finish_enough_tasks";

async fn limited(limits: Limits) -> Swarm {
    Swarm::with(Options { limits, ..quick() }).await
}

async fn connect(swarm: &Swarm) -> TcpStream {
    TcpStream::connect(swarm.url.strip_prefix("http://").unwrap())
        .await
        .unwrap()
}

/// Everything that comes until the other side closes the connection; a reset closes it too.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the connection is closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_thousand_idle_connections_stop_nobody() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let mut idle = Vec::new();
    for number in 0..1000 {
        let mut stream = connect(&swarm).await;
        if number % 2 == 0 {
            stream
                .write_all(b"GET /get_engine_status HTTP/1.1\r\nhost: ")
                .await
                .unwrap();
        }
        idle.push(stream);
    }
    swarm.episode("a", "t", 1.0).await;
    assert_eq!(swarm.pool().await["completed_episodes"], 1);
}

#[tokio::test]
async fn connections_over_the_limit_are_told_to_come_again_and_do_when_there_is_room() {
    let swarm = limited(Limits {
        connections: 3,
        ..Limits::default()
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(connect(&swarm).await);
    }
    // The server takes connections in their order, so the three are in.
    let refused = until_closed(&mut connect(&swarm).await).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.contains("retry-after: 3\r\n") && refused.contains("3 connections open"),
        "{refused}"
    );
    open.pop();
    swarm
        .until_true("room", async |swarm| {
            let answer = swarm.request(Method::GET, "/health").send().await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
}

#[tokio::test]
async fn connections_on_which_nothing_is_asked_are_closed() {
    let swarm = limited(Limits {
        idle: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    let mut half = connect(&swarm).await;
    half.write_all(b"GET /health HTTP/1.1\r\nhost: ").await.unwrap();
    let mut kept_alive = connect(&swarm).await;
    kept_alive
        .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let (half, kept_alive) = tokio::join!(until_closed(&mut half), until_closed(&mut kept_alive));
    assert!(!half.contains("200 OK"), "{half}");
    assert!(kept_alive.contains("200 OK"), "{kept_alive}");
}

#[tokio::test]
async fn a_body_that_stops_halfway_is_answered_and_its_episode_may_go() {
    let swarm = limited(Limits {
        stall: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim_kind("a", "train", 0.3).await;
    let mut half = connect(&swarm).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\n{{",
        episode.key
    );
    half.write_all(head.as_bytes()).await.unwrap();
    let answer = until_closed(&mut half).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    swarm
        .until_true("the discard", async |swarm| {
            (swarm.pool().await["dropped_episodes"] == json!({"idle": 1})).then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_of_a_stream_loses_it() {
    let swarm = limited(Limits {
        stall: Duration::from_millis(200),
        ..Limits::default()
    })
    .await;
    swarm.rolling(TASKS, 2, 2).await;
    swarm
        .engines
        .behave(|engine| engine.stream = (1_000_000, Duration::ZERO));
    let episode = swarm.claim("a").await;
    let content = "x".repeat(64 * 1024);
    let body = json!({"messages": [{"role": "user", "content": content}], "stream": true}).to_string();
    let mut lazy = connect(&swarm).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        episode.key,
        body.len()
    );
    lazy.write_all(head.as_bytes()).await.unwrap();
    swarm
        .until_true("the cut", async |swarm| {
            (swarm.engines.record().chats_cut == 1).then_some(())
        })
        .await;
}

#[tokio::test]
async fn bodies_over_their_limit_are_refused_by_their_length_before_they_are_sent() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    for (path, bytes) in [
        ("/v1/chat/completions", 16 << 20),
        ("/claim_episode", 1 << 20),
        ("/end_episode", 64 << 20),
        ("/abort_episode", 64 << 20),
        ("/sync_train_config", 1 << 20),
    ] {
        let mut stream = connect(&swarm).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            episode.key,
            bytes + 1
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = until_closed(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
        assert!(answer.contains(&format!("limit of {bytes} bytes")), "{path}: {answer}");
    }
    // One that does not tell its length is cut off where it becomes too long.
    let pieces = futures_util::stream::iter((0..4).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 19])));
    let request = swarm
        .request(Method::POST, "/claim_episode")
        .body(reqwest::Body::wrap_stream(pieces));
    // A server that has said no need not read on, so the client may be cut off before it reads the answer.
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), 413);
    }
    assert_eq!(
        swarm.pool().await["running_episode_details"].as_object().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn more_calls_at_once_than_there_are_places_are_told_to_come_again() {
    let swarm = limited(Limits {
        calls: 2,
        ..Limits::default()
    })
    .await;
    swarm.rolling(TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let held = async { tokio::join!(swarm.chat(&episode.key), swarm.chat(&episode.key)) };
    let third = async {
        swarm
            .until_true("both calls", async |swarm| {
                let figures = swarm.request(Method::GET, "/metrics").send().await.ok()?;
                let text = figures.text().await.ok()?;
                text.contains("ajet_swarm_llm_calls_in_flight 2\n").then_some(())
            })
            .await;
        let response = swarm.chat_request(&episode.key, &body).send().await.unwrap();
        assert_eq!(response.status(), 429);
        assert!(response.headers().contains_key("retry-after"));
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["type"], "rate_limit_error");
        swarm.engines.behave(|engine| engine.hold_chats = false);
    };
    let ((first, second), ()) = tokio::join!(held, third);
    assert_eq!((first.0, second.0), (200, 200));
    assert_eq!(swarm.chat(&episode.key).await.0, 200, "there is room again");
}

#[tokio::test]
async fn ids_of_any_length_are_not_taken() {
    let swarm = Swarm::start().await;
    swarm.rolling(TASKS, 2, 2).await;
    let long = "x".repeat(1025);
    let (status, refused) = swarm.try_claim(&long, "train", 240.0).await;
    assert_eq!(status, 400);
    assert_eq!(refused["detail"], "client_uuid has 1025 bytes, 1024 are allowed");
    let episode = swarm.claim("a").await;
    swarm.chat(&episode.key).await;
    let refused = swarm.end(&episode, &long, 1.0).await;
    assert_eq!(refused.0, 400);
    let tag = json!({"tag": "t".repeat(100_000), "message": "m"});
    swarm.post("/push_verbose_log", tag).await;
    let (_, logs) = swarm.get("/get_verbose_logs").await;
    assert_eq!(logs["entries"][0]["tag"].as_str().unwrap().len(), 256);
    assert_eq!(
        answer(
            swarm
                .request(Method::POST, "/end_episode")
                .json(&end_body(&episode, "t", 1.0))
        )
        .await
        .0,
        200
    );
}
