//! What the server reports about itself: OpenAPI, Prometheus and verbose logs.

use crate::support::swarm::{ENOUGH_EPISODES, Swarm, answer};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn verbose_logs_are_kept_in_order() {
    let swarm = Swarm::start().await;
    for message in ["one", "two"] {
        let pushed = swarm
            .post("/push_verbose_log", json!({"tag": "t", "message": message}))
            .await;
        assert_eq!(pushed, (200, json!({"success": true, "failure_reason": ""})));
    }
    let (_, logs) = swarm.get("/get_verbose_logs").await;
    assert_eq!(
        (&logs["entries"][0]["message"], &logs["entries"][1]["message"]),
        (&json!("one"), &json!("two"))
    );
    assert!(logs["entries"][0]["timestamp"].as_f64().unwrap() > 1.7e9);
}

/// The schema that a document's reference leads to.
fn resolve_schema<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    }
}

/// Every `$ref` in a document.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_openapi_document_matches_the_answers() {
    let swarm = Swarm::start().await;
    let (status, document) = swarm.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let mut found = vec![];
    references(&document, &mut found);
    assert!(found.contains(&"#/components/schemas/PoolInformation"), "{found:?}");
    for reference in found {
        let path = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(path).is_some(), "{reference} leads nowhere");
    }
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/openapi.json") && paths.contains_key("/v1/chat/completions"));
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["responses"]["200"]["content"]
                .get("text/event-stream")
                .is_some()
            {
                continue; // it has no end
            }
            let called = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (status, answer) = answer(swarm.request(called, path).json(&json!({}))).await;
            assert_ne!(status, 405, "{method} {path}");
            assert!(
                !answer["detail"].as_str().unwrap_or("").starts_with("there is no /"),
                "{path}: {answer}"
            );
            let wanted = match status {
                200 => &operation["responses"]["200"],
                _ => &operation["responses"]["default"],
            };
            let schema = resolve_schema(&document, &wanted["content"]["application/json"]["schema"]);
            for field in schema["required"].as_array().into_iter().flatten() {
                assert!(
                    answer.get(field.as_str().unwrap()).is_some(),
                    "{path}: {field} in {answer}"
                );
            }
            let known = schema["properties"].as_object();
            for (field, _) in answer.as_object().into_iter().flatten().filter(|_| known.is_some()) {
                assert!(known.unwrap().contains_key(field), "{path}: {field} is not described");
            }
        }
    }
}

#[tokio::test]
async fn prometheus_metrics_have_the_servers_values() {
    let swarm = Swarm::start().await;
    swarm.rolling(ENOUGH_EPISODES, 1, 1).await;
    let given_up = swarm.claim("a").await;
    swarm.abort(&given_up).await;
    swarm.episode("a", "t", 1.0).await;
    swarm.until_step(2).await;
    swarm.claim("a").await;
    let response = swarm.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = response.text().await.unwrap();
    for line in [
        "ajet_swarm_engine_status{status=\"ENGINE.ROLLING\"} 1",
        "ajet_swarm_global_step 2",
        "ajet_swarm_running_episodes 1",
        "ajet_swarm_episode_slots 1",
        "ajet_swarm_completed_episodes_target 1",
        "ajet_swarm_dropped_episodes_total{reason=\"aborted\"} 1",
        "ajet_swarm_llm_calls_in_flight 0",
        "ajet_actor{of=\"loss\"} 0.25",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && name.starts_with("ajet_"), "{line}");
    }
}
