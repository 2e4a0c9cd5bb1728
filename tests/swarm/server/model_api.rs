//! The model API of agents: OpenAI's chat, Anthropic's messages and the Responses API.

use std::time::Duration;

use crate::support::swarm::{ENOUGH_TASKS, Swarm, answer, success};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn a_chat_call_reaches_the_engine_and_can_be_replayed() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    for stream in [false, true] {
        let body = json!({"model": "my-model", "messages": [{"role": "user", "content": "hi"}], "stream": stream});
        let response = swarm.chat_request(&episode.key, &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let text = response.text().await.unwrap();
        if stream {
            assert_eq!(kind, "text/event-stream");
            assert!(
                text.ends_with("data: [DONE]\n\n") && text.matches("data: {").count() == 3,
                "{text}"
            );
        } else {
            assert_eq!(kind, "application/json");
        }
        let expected = if stream {
            "hi (train)".repeat(3)
        } else {
            "hi (train)".into()
        };
        let (_, replay) = swarm.post("/replay_latest_llm_call", json!({})).await;
        assert_eq!(replay["input"], body);
        assert_eq!(replay["output"]["choices"][0]["message"]["content"], expected);
        assert_eq!(replay["output"]["model"], "my-model");
    }
    let running = &swarm.pool().await["running_episode_details"][&episode.uuid];
    assert_eq!(running["llm_call_count"], "2");
    let models = answer(swarm.request(Method::GET, "/v1/models").bearer_auth(&episode.key)).await;
    assert_eq!((models.0, &models.1["data"][0]["id"]), (200, &json!("builtin:tiny")));
    for name in ["builtin:tiny", "gpt-4o", "Qwen/Qwen3-0.6B", "a%2Fb"] {
        let path = format!("/v1/models/{name}");
        let (status, model) = answer(swarm.request(Method::GET, &path).bearer_auth(&episode.key)).await;
        assert_eq!((status, &model["id"]), (200, &json!(name.replace("%2F", "/"))));
    }
    let for_anthropic = |path: &str, key: &str| {
        let request = swarm.request(Method::GET, path).header("x-api-key", key);
        request.header("anthropic-version", "2023-06-01")
    };
    let (_, list) = answer(for_anthropic("/v1/models", &episode.key)).await;
    assert_eq!(
        (&list["data"][0]["type"], &list["has_more"]),
        (&json!("model"), &json!(false))
    );
    assert_eq!(
        (&list["data"][0]["display_name"], &list["last_id"]),
        (&json!("builtin:tiny"), &json!("builtin:tiny"))
    );
    let (_, one) = answer(for_anthropic("/v1/models/claude", &episode.key)).await;
    assert_eq!(
        (&one["id"], &one["created_at"]),
        (&json!("claude"), &json!("1970-01-01T00:00:00Z"))
    );
    let (status, refused) = answer(for_anthropic("/v1/models", "sk-unknown")).await;
    assert_eq!((status, &refused["type"]), (401, &json!("error")));
}

/// The key is the right to it: neither another episode's key nor an ended one shows what was said.
#[tokio::test]
async fn conversations_are_readable_with_the_episodes_key_while_it_runs() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let (mine, other) = (swarm.claim("a").await, swarm.claim("b").await);
    let told = async |key: &str| {
        let request = swarm.request(Method::GET, "/v1/episode/conversations");
        answer(request.bearer_auth(key)).await
    };
    let (status, before) = told(&mine.key).await;
    assert_eq!(
        (status, &before["main"], &before["conversations"]),
        (200, &Value::Null, &json!([]))
    );
    swarm.chat(&mine.key).await;
    let (status, after) = told(&mine.key).await;
    assert_eq!(
        (status, &after["episode_uuid"], &after["main"]),
        (200, &json!(mine.uuid), &json!(0))
    );
    assert_eq!(after["conversations"][0]["messages"][1]["content"], "hi (train)");
    let (status, others) = told(&other.key).await;
    assert_eq!((status, &others["llm_calls"]), (200, &json!(0)));
    let running = &swarm.pool().await["running_episode_details"][&mine.uuid];
    assert_eq!(running["llm_call_count"], "1", "a look is no LLM call");
    swarm.end(&mine, "t", 1.0).await;
    for (key, wanted) in [(mine.key.as_str(), 404), ("sk-ajet-0123", 401)] {
        let (status, refused) = told(key).await;
        assert_eq!(status, wanted, "{refused}");
        assert!(refused["error"]["message"].is_string(), "{refused}");
    }
}

/// An episode that is held until others of its task have ended must not be discarded as idle meanwhile.
#[tokio::test]
async fn reading_the_conversations_counts_as_activity() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let claim = json!({"client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 0.4});
    let (_, claimed) = swarm.post("/claim_episode", claim).await;
    let key = claimed["openai_api_key"].as_str().unwrap();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let request = swarm.request(Method::GET, "/v1/episode/conversations");
        assert_eq!(answer(request.bearer_auth(key)).await.0, 200);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    let request = swarm.request(Method::GET, "/v1/episode/conversations");
    assert_eq!(answer(request.bearer_auth(key)).await.0, 404);
}

#[tokio::test]
async fn errors_have_openais_shape() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let ended = swarm.claim("a").await;
    swarm.chat(&ended.key).await;
    swarm.end(&ended, "t", 1.0).await;
    let live = swarm.claim("a").await;
    let ok = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (key, body, status, code) in [
        (None, ok.clone(), 401, json!("invalid_api_key")),
        (Some("sk-ajet-0123"), ok.clone(), 401, json!("invalid_api_key")),
        (Some(ended.key.as_str()), ok.clone(), 404, json!("episode_not_found")),
        (Some(live.key.as_str()), json!([]), 400, Value::Null),
        (Some(live.key.as_str()), json!({"messages": []}), 400, Value::Null),
    ] {
        let mut request = swarm.request(Method::POST, "/v1/chat/completions").json(&body);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let (got, answer) = answer(request).await;
        assert_eq!(got, status, "{answer}");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(
            answer["error"]["message"].is_string() && answer["error"]["type"].is_string(),
            "{answer}"
        );
    }
    let large = "x".repeat(17 * 1024 * 1024);
    let request = swarm.chat_request(&live.key, &json!({"messages": [{"role": "user", "content": large}]}));
    // A server that has said no need not read on, so the client may be cut off before it reads the answer.
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), 413);
    }
    let (status, answer) = swarm.get("/v1/nothing").await;
    assert_eq!(
        (status, answer["error"]["type"].as_str()),
        (404, Some("invalid_request_error"))
    );
}

/// The data of server-sent events that have names.
fn named_events(text: &str) -> Vec<Value> {
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

#[tokio::test]
async fn an_agent_may_use_anthropics_api() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    let post = |path: &str, body: &Value| {
        swarm
            .request(Method::POST, path)
            .header("x-api-key", &episode.key)
            .json(body)
    };
    let mut body = json!({"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});

    let (status, message) = answer(post("/v1/messages?beta=true", &body)).await;
    assert_eq!(status, 200, "{message}");
    assert_eq!(message["content"], json!([{"type": "text", "text": "hi (train)"}]));
    assert_eq!(
        (&message["type"], &message["model"], &message["stop_reason"]),
        (&json!("message"), &json!("claude"), &json!("end_turn"))
    );
    assert_eq!(message["usage"]["output_tokens"], 1);
    let replay = swarm.post("/replay_latest_llm_call", json!({})).await.1;
    assert_eq!(replay["output"]["object"], "chat.completion", "replays are chats");

    body["stream"] = json!(true);
    let streamed = post("/v1/messages", &body).send().await.unwrap();
    assert_eq!(streamed.headers()["content-type"], "text/event-stream");
    let events = named_events(&streamed.text().await.unwrap());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let deltas = ["content_block_delta"; 3];
    let expected = [
        &["message_start", "content_block_start"][..],
        &deltas,
        &["content_block_stop", "message_delta", "message_stop"],
    ];
    assert_eq!(kinds, expected.concat());

    let (status, count) = answer(post(
        "/v1/messages/count_tokens",
        &json!({"messages": body["messages"]}),
    ))
    .await;
    assert_eq!((status, count), (200, json!({"input_tokens": 2})));
    assert_eq!(swarm.end(&episode, "t", 1.0).await, success());
}

#[tokio::test]
async fn errors_of_messages_have_anthropics_shape() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let ended = swarm.claim("a").await;
    swarm.chat(&ended.key).await;
    swarm.end(&ended, "t", 1.0).await;
    let live = swarm.claim("a").await;
    let ok = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    let image = json!({"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image"}]}]});
    for (path, key, body, status, kind, said) in [
        ("", None, &ok, 401, "authentication_error", "API key"),
        ("", Some("sk-ajet-0123"), &ok, 401, "authentication_error", "unknown"),
        ("", Some(&*ended.key), &ok, 404, "not_found_error", "ended"),
        (
            "",
            Some(&*live.key),
            &json!([]),
            400,
            "invalid_request_error",
            "not valid",
        ),
        (
            "",
            Some(&*live.key),
            &json!({"messages": []}),
            400,
            "invalid_request_error",
            "`max_tokens`",
        ),
        ("", Some(&*live.key), &image, 400, "invalid_request_error", "`image`"),
        // The engine's own sentence.
        (
            "",
            Some(&*live.key),
            &json!({"max_tokens": 9, "messages": []}),
            400,
            "invalid_request_error",
            "messages[0]",
        ),
        ("/count_tokens", None, &ok, 401, "authentication_error", "API key"),
        (
            "/batches",
            Some(&*live.key),
            &ok,
            404,
            "not_found_error",
            "/v1/messages/batches",
        ),
    ] {
        let mut request = swarm.request(Method::POST, &format!("/v1/messages{path}")).json(body);
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let (got, answer) = answer(request).await;
        assert_eq!((got, &answer["type"]), (status, &json!("error")), "{answer}");
        assert_eq!(answer["error"]["type"], kind, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(said), "{answer}");
    }
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let killed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        swarm.engines.die("the engine was killed (signal 9)");
    };
    let request = swarm
        .request(Method::POST, "/v1/messages")
        .header("x-api-key", &live.key);
    let (response, ()) = tokio::join!(request.json(&ok).send(), killed);
    let response = response.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["type"], "overloaded_error");
}

#[tokio::test]
async fn an_agent_may_use_the_responses_api() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    let post = |body: &Value| {
        swarm
            .request(Method::POST, "/v1/responses")
            .bearer_auth(&episode.key)
            .json(body)
    };

    let (status, first) = answer(post(&json!({"model": "m", "input": "hi"}))).await;
    assert_eq!(status, 200, "{first}");
    assert_eq!(
        (&first["object"], &first["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(first["output"][0]["content"][0]["text"], "hi (train)");
    assert_eq!(first["usage"]["total_tokens"], 2);

    // The engine is given the whole conversation.
    let body = json!({"model": "m", "input": "and?", "previous_response_id": first["id"], "stream": true});
    let streamed = post(&body).send().await.unwrap();
    let events = named_events(&streamed.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["previous_response_id"], first["id"]);
    let input = swarm.post("/replay_latest_llm_call", json!({})).await.1["input"].clone();
    let said: Vec<&Value> = input["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["content"])
        .collect();
    assert_eq!(said, ["hi", "hi (train)", "and?"]);
    let third = answer(post(
        &json!({"model": "m", "input": "so?", "previous_response_id": last["response"]["id"]}),
    ))
    .await;
    assert_eq!(third.0, 200, "{}", third.1);

    let other = swarm.claim("a").await;
    let body = json!({"input": "x", "previous_response_id": first["id"]});
    let foreign = swarm
        .request(Method::POST, "/v1/responses")
        .bearer_auth(&other.key)
        .json(&body);
    let (status, refused) = answer(foreign).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    assert_eq!(refused["error"]["param"], "previous_response_id");
    let (status, refused) = answer(post(&json!({"input": [{"type": "item_reference", "id": "x"}]}))).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input[0]")));

    // Items of the latest answer (this engine's ids are all the same) can be referred to, and an answer can be had again.
    let reference = json!({"type": "item_reference", "id": third.1["output"][0]["id"]});
    let input = json!([{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "more"}]);
    let (status, fourth) = answer(post(&json!({"model": "m", "input": input}))).await;
    assert_eq!(status, 200, "{fourth}");
    let get = |id: &str, key: &str| {
        let path = format!("/v1/responses/{id}");
        swarm.request(Method::GET, &path).bearer_auth(key)
    };
    let id = fourth["id"].as_str().unwrap();
    let (status, again) = answer(get(id, &episode.key)).await;
    assert_eq!((status, &again["output"]), (200, &fourth["output"]));
    assert_eq!(answer(get(id, &other.key)).await.0, 404);
    assert_eq!(answer(get("resp_none", &episode.key)).await.0, 404);
}

#[tokio::test]
async fn calls_get_503_while_the_engine_cannot_serve_them() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    swarm.engines.behave(|engine| engine.hold_chats = true);
    let episode = swarm.claim("a").await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let killed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        swarm.engines.die("the engine was killed (signal 9)");
    };
    let (response, ()) = tokio::join!(swarm.chat_request(&episode.key, &body).send(), killed);
    let response = response.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_crash_during_a_stream_is_reported_in_each_apis_shape() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let hello = json!([{"role": "user", "content": "hi"}]);
    for (path, body, said) in [
        ("/v1/chat/completions", json!({"messages": hello}), "data: {\"error\":{"),
        (
            "/v1/messages",
            json!({"messages": hello, "max_tokens": 9}),
            "event: error\ndata: {",
        ),
        (
            "/v1/responses",
            json!({"input": "hi"}),
            "event: response.failed\ndata: {",
        ),
    ] {
        swarm
            .engines
            .behave(|engine| engine.stream = (1000, Duration::from_millis(5)));
        let episode = swarm.claim("a").await;
        let mut body = body;
        body["stream"] = json!(true);
        body["model"] = json!("m");
        let request = swarm.request(Method::POST, path).bearer_auth(&episode.key).json(&body);
        let mut pieces = request.send().await.unwrap().bytes_stream();
        let mut told = pieces.next().await.unwrap().unwrap().to_vec();
        swarm.engines.die("the engine was killed (signal 9)");
        while let Some(piece) = pieces.next().await {
            told.extend_from_slice(&piece.expect("the stream ends in good order"));
        }
        let told = String::from_utf8(told).unwrap();
        let last = told.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with(said) && last.contains("answer ended early"), "{last}");
        swarm
            .until_true("another engine", async |swarm| {
                let status = swarm.get("/get_engine_status").await.1;
                (status["engine_status"] == "ENGINE.ROLLING").then_some(())
            })
            .await;
    }
    let (status, _) = swarm.post("/replay_latest_llm_call", json!({})).await;
    assert_eq!(status, 404, "none was answered");
}

#[tokio::test]
async fn an_agent_that_disconnects_cancels_its_generation() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_TASKS, 2, 2).await;
    let episode = swarm.claim("a").await;
    swarm
        .engines
        .behave(|engine| engine.stream = (1000, Duration::from_millis(5)));
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut pieces = swarm
        .chat_request(&episode.key, &body)
        .send()
        .await
        .unwrap()
        .bytes_stream();
    let first = pieces.next().await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {"), "pieces come as they are made");
    drop(pieces);
    swarm
        .until_true("the cut", async |swarm| {
            (swarm.engines.record().chats_cut == 1).then_some(())
        })
        .await;

    swarm.engines.behave(|engine| engine.hold_chats = true);
    let request = swarm.chat_request(&episode.key, &json!({"messages": [{"role": "user", "content": "hi"}]}));
    let waited = tokio::time::timeout(Duration::from_millis(100), request.send()).await;
    assert!(waited.is_err(), "held");
    swarm
        .until_true("the cut", async |swarm| {
            (swarm.engines.record().chats_cut == 2).then_some(())
        })
        .await;
    assert_eq!(
        swarm.post("/replay_latest_llm_call", json!({})).await.0,
        404,
        "neither was answered"
    );
}
