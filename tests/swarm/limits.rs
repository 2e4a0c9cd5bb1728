//! What one client may take, so that others are not stopped: connections, bodies, calls, time.

#[allow(dead_code, reason = "each test file uses a part of what they share")]
use std::time::Duration;

use crate::support::swarm::{ENOUGH_TASKS, Swarm, answer, end_body, quick};
use ajet_swarm::server::{Limits, Options};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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

/// Until the server has `count` LLM calls in hand.
async fn calls_in_flight(swarm: &Swarm, count: usize) {
    swarm
        .until_true("the calls", async |swarm| {
            let figures = swarm.request(Method::GET, "/metrics").send().await.ok()?;
            let text = figures.text().await.ok()?;
            text.contains(&format!("ajet_swarm_llm_calls_in_flight {count}\n"))
                .then_some(())
        })
        .await;
}

fn chat_head(key: &str, rest: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{rest}\r\n\r\n")
}

#[tokio::test]
async fn connections_over_the_limit_are_told_to_come_again_and_do_when_there_is_room() {
    let swarm = limited(Limits {
        connections: 4,
        ..Limits::default()
    })
    .await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&swarm).await;
        let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
        let head = chat_head(&episode.key, &format!("content-length: {}", body.len()));
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        open.push(stream);
    }
    calls_in_flight(&swarm, 3).await;
    // The fourth makes room for each of these in turn, the three that are being answered do not.
    for _ in 0..3 {
        let mut stream = connect(&swarm).await;
        stream
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        open.push(stream);
    }
    let mut stream = connect(&swarm).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    let head = chat_head(&episode.key, &format!("content-length: {}", body.len()));
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    open.push(stream);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let refused = until_closed(&mut connect(&swarm).await).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.contains("retry-after: 3\r\n") && refused.contains("limit of 4 connections"),
        "{refused}"
    );
    swarm.engines.behave(|engine| engine.hold_chats = false);
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

// Seen with 8,192 connections that said nothing: new clients were shut out for 100 s.
#[tokio::test]
async fn a_connection_without_a_whole_request_is_closed_after_its_time_whatever_it_has_sent() {
    let swarm = limited(Limits {
        first_request: Duration::from_millis(200),
        ..Limits::default()
    })
    .await;
    for sent in [
        "",
        "G",
        "GET /health HTTP/1.1\r\n",
        "\r\n\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
    ] {
        let mut silent = connect(&swarm).await;
        silent.write_all(sent.as_bytes()).await.unwrap();
        assert_eq!(until_closed(&mut silent).await, "", "{sent:?}");
    }
    let mut asked = connect(&swarm).await;
    for _ in 0..2 {
        asked
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    asked.shutdown().await.unwrap();
    let answers = until_closed(&mut asked).await;
    assert_eq!(
        answers.matches("200 OK").count(),
        2,
        "it may pause between requests: {answers}"
    );
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_one_that_says_nothing_or_sends_slowly() {
    let swarm = limited(Limits {
        connections: 3,
        ..Limits::default()
    })
    .await;
    let heads = [
        String::new(),
        "GET /hea".to_owned(),
        "POST /claim_episode HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{".to_owned(),
        "POST /claim_episode HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n".to_owned(),
    ];
    for head in heads {
        let mut crowd = Vec::new();
        for _ in 0..6 {
            let mut stream = connect(&swarm).await;
            stream.write_all(head.as_bytes()).await.unwrap();
            crowd.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut newcomer = connect(&swarm).await;
        newcomer
            .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let answer = until_closed(&mut newcomer).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{head:?}: {answer}");
        assert_eq!(until_closed(&mut crowd[0]).await, "", "the oldest made room");
    }
}

// Seen with 16 uploads of one byte now and then, and with 16 chunked calls of 87 bytes.
#[tokio::test]
async fn slow_uploads_end_by_their_rate() {
    let swarm = limited(Limits {
        stall: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    let mut stream = connect(&swarm).await;
    stream
        .write_all(b"POST /end_episode HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
        .await
        .unwrap();
    // It never pauses for as long as it may.
    for _ in 0..20 {
        if stream.write_all(b" ").await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let slow = until_closed(&mut stream).await;
    assert!(
        slow.starts_with("HTTP/1.1 408 ") && slow.contains("less than 65536 bytes per second"),
        "{slow}"
    );
    assert!(slow.contains("connection: close"), "{slow}");
}

// Seen with calls whose length was not given: each took the room of the largest call.
#[tokio::test]
async fn chunked_bodies_take_the_room_of_what_has_come() {
    let swarm = limited(Limits::default()).await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    // As many as 16 MiB each would take all room.
    let mut open = Vec::new();
    for _ in 0..80 {
        let mut stream = connect(&swarm).await;
        let head = chat_head(&episode.key, "transfer-encoding: chunked");
        stream.write_all((head + "1\r\n{\r\n").as_bytes()).await.unwrap();
        open.push(stream);
    }
    calls_in_flight(&swarm, 80).await;
    assert_eq!(swarm.chat(&episode.key).await.0, 200);
}

// Seen with bodies of 100 MB: the connection was reset before the client had read the answer.
#[tokio::test]
async fn a_refusal_of_a_large_body_is_seen_by_those_who_send_it_all_first() {
    let swarm = Swarm::start().await;
    let over = (1 << 20) + 1;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    for (head, body) in [
        (format!("content-length: {over}"), "x".repeat(over)),
        ("content-length: 100000000".to_owned(), "x".repeat(100_000_000)),
        ("transfer-encoding: chunked".to_owned(), chunk.repeat(512) + "0\r\n\r\n"),
    ] {
        let mut stream = connect(&swarm).await;
        let head = format!("POST /claim_episode HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let answer = String::from_utf8(bytes).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_stops_halfway_is_answered_and_its_episode_may_go() {
    let swarm = limited(Limits {
        stall: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
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
    assert_eq!(request.send().await.unwrap().status(), 413);
    assert_eq!(
        swarm.pool().await["running_episode_details"].as_object().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn more_calls_at_once_than_there_are_places_are_told_to_come_again() {
    let swarm = limited(Limits {
        calls: 4,
        ..Limits::default()
    })
    .await;
    swarm.rolling(ENOUGH_TASKS, 2, 3).await;
    let [greedy, second, third] = [swarm.claim("a").await, swarm.claim("a").await, swarm.claim("b").await];
    let late = swarm.claim("c").await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let held = async { tokio::join!(swarm.chat(&greedy.key), swarm.chat(&greedy.key)) };
    let others = async {
        calls_in_flight(&swarm, 2).await;
        tokio::join!(swarm.chat(&second.key), async {
            calls_in_flight(&swarm, 3).await;
            swarm.chat(&third.key).await
        })
    };
    let refused = async |key: &str, why: &str| {
        let response = swarm.chat_request(key, &body).send().await.unwrap();
        assert_eq!(response.status(), 429);
        assert!(response.headers().contains_key("retry-after"));
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["type"], "rate_limit_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(why), "{error}");
    };
    let further = async {
        calls_in_flight(&swarm, 2).await;
        // There is room, but not for the episode that has half of it.
        refused(&greedy.key, "the episode has 2 concurrent LLM calls").await;
        calls_in_flight(&swarm, 4).await;
        refused(&late.key, "limit of 4 concurrent LLM calls").await;
        swarm.engines.behave(|engine| engine.hold_chats = false);
    };
    let (of_greedy, of_others, ()) = tokio::join!(held, others, further);
    for answer in [of_greedy.0, of_greedy.1, of_others.0, of_others.1] {
        assert_eq!(answer.0, 200);
    }
    assert_eq!(swarm.chat(&greedy.key).await.0, 200, "there is room again");
}

#[tokio::test]
async fn ids_of_any_length_are_not_taken() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let long = "x".repeat(1025);
    let (status, refused) = swarm.try_claim(&long, "train", 240.0).await;
    assert_eq!(status, 400);
    assert_eq!(refused["detail"], "client_uuid must have at most 1024 bytes, got 1025");
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
