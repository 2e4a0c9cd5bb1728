//! The status feed over HTTP.

use std::time::Duration;

use ajet_swarm::protocol::engine::{EngineEvent, EngineLoad, LogLevel};
use ajet_swarm::protocol::run_files::{EPISODES_FILE, METRICS_FILE};
use ajet_swarm::protocol::status::{EpisodeDetail, EpisodeSummary, Status, TokenRow};
use ajet_swarm::protocol::swarm::EngineStatus;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::json;

use crate::support::swarm::Swarm;

const TASKS: &str = "rollout_until_finish_enough_tasks";

async fn status(swarm: &Swarm) -> Status {
    let response = swarm.request(Method::GET, "/status").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn one_answer_has_all_that_a_dashboard_shows() {
    let swarm = Swarm::start().await;
    let offline = status(&swarm).await;
    assert_eq!(
        (offline.engine.status, offline.experiment),
        (EngineStatus::Offline, None)
    );
    assert!(offline.sampling.is_none() && offline.engine.phases.len() == 1);

    swarm.rolling(TASKS, 2, 2).await;
    swarm.episode("a", "t", 0.0).await;
    swarm.episode("a", "t", 1.0).await;
    let running = swarm.claim("b").await;
    swarm.chat(&running.key).await;
    let load = EngineLoad {
        running_requests: 3,
        sampled_tokens: 70,
        time_to_first_token: vec![0.25],
        new_tokens: [(running.uuid.clone(), 7)].into_iter().collect(),
        ..EngineLoad::default()
    };
    swarm.engines.send(&EngineEvent::Load { load });
    swarm.engines.send(&EngineEvent::Log {
        level: LogLevel::Warn,
        message: "slow disk".into(),
    });
    let line = json!({"tag": "client", "message": "hello"});
    swarm.post("/push_verbose_log", line).await;
    let full = swarm
        .until_true("the engine's events arrive", async |swarm| {
            let status = status(swarm).await;
            (status.log.len() == 2 && status.running[0].completion_tokens == 7).then_some(status)
        })
        .await;

    let (engine, batch) = (full.engine, full.batch);
    assert_eq!((engine.status, engine.global_step), (EngineStatus::Rolling, 1));
    let phases: Vec<_> = engine.phases.iter().map(|phase| phase.status).collect();
    assert_eq!(
        phases,
        [EngineStatus::Offline, EngineStatus::Booting, EngineStatus::Rolling]
    );
    let experiment = full.experiment.unwrap();
    assert_eq!(
        (experiment.name.as_str(), experiment.model.as_str()),
        ("test", "builtin:tiny")
    );
    assert_eq!((batch.unit.as_str(), batch.done, batch.target), ("tasks", 1, 2));
    assert_eq!((batch.episodes, batch.episodes_target, batch.repeats), (2, 4, 2));
    assert_eq!(batch.reward.unwrap().mean, 0.5);
    let sampling = full.sampling.unwrap();
    // A mean of ten seconds, in which the engine has just begun.
    assert!((1..=3).contains(&sampling.running_requests), "{sampling:?}");
    assert_eq!(sampling.time_to_first_token.unwrap().p50, 0.25);
    assert_eq!((full.running_total, full.running[0].llm_calls), (1, 1));
    assert_eq!(full.running[0].client_uuid, "b");
    let group = &full.groups[0];
    assert_eq!(
        (group.task_id.as_str(), group.episodes.len(), group.has_signal),
        ("t", 2, true)
    );
    let clients: Vec<_> = full
        .clients
        .iter()
        .map(|c| (c.client_uuid.as_str(), c.running, c.finished))
        .collect();
    assert_eq!(clients, [("a", 0, 2), ("b", 1, 0)]);
}

#[tokio::test]
async fn the_batch_stays_in_sight_while_the_update_trains_on_it() {
    let swarm = Swarm::start().await;
    swarm.engines.behave(|engine| engine.hold_updates = true);
    swarm.rolling(TASKS, 1, 2).await;
    for reward in [0.0, 1.0] {
        swarm.episode("a", "t", reward).await;
    }
    swarm.until("ENGINE.WEIGHT_SYNCING").await;
    let updating = status(&swarm).await;
    assert_eq!((updating.batch.episodes, updating.groups[0].episodes.len()), (2, 2));
    assert_eq!((updating.clients[0].finished, updating.batch.seconds_left), (2, None));
    swarm.engines.behave(|engine| engine.hold_updates = false);
    swarm.until_step(2).await;
    let next = status(&swarm).await;
    assert_eq!((next.batch.episodes, next.groups.len()), (0, 0));
    assert_eq!(
        next.latest_metrics.get("actor/loss"),
        Some(&0.25),
        "{:?}",
        next.latest_metrics
    );
}

/// Reads events until `enough`.
async fn read(stream: reqwest::Response, enough: impl Fn(&Status) -> bool) -> Status {
    let mut chunks = stream.bytes_stream();
    let mut text = String::new();
    loop {
        let chunk = tokio::time::timeout(Duration::from_secs(10), chunks.next()).await;
        text.push_str(std::str::from_utf8(&chunk.expect("an event").unwrap().unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let found: Option<Status> = event
                .strip_prefix("data: ")
                .map(|json| serde_json::from_str(json).unwrap());
            if let Some(found) = found.filter(&enough) {
                return found;
            }
            text = rest.to_owned();
        }
    }
}

#[tokio::test]
async fn every_stream_begins_with_the_present_and_hears_of_changes() {
    let swarm = Swarm::start().await;
    let open = async || {
        let stream = swarm.request(Method::GET, "/status/stream").send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        stream
    };
    read(open().await, |status| status.engine.status == EngineStatus::Offline).await;
    let (first, second) = (open().await, open().await);
    swarm.rolling(TASKS, 1, 2).await;
    let rolling = |status: &Status| status.engine.status == EngineStatus::Rolling;
    read(first, rolling).await;
    read(second, rolling).await;
    swarm.episode("a", "t", 1.0).await;
    read(open().await, |status| status.batch.episodes == 1).await;
}

#[tokio::test]
async fn the_files_of_experiments_are_read_with_an_engine_and_without() {
    let swarm = Swarm::start().await;
    assert_eq!(swarm.get("/history").await.0, 404, "nothing was started yet");
    swarm.rolling(TASKS, 2, 2).await;
    let dir = swarm.experiments().join("test");
    let metrics: String = (1..=3)
        .map(|step| format!("{{\"global_step\":{step},\"loss\":0.5,\"lr\":1e-6}}\n"))
        .collect();
    std::fs::write(dir.join(METRICS_FILE), metrics).unwrap();
    let ended = EpisodeSummary {
        episode_uuid: "e-1".into(),
        global_step: 2,
        task_id: "a task/with ümlauts".into(),
        reward: 0.75,
        ended: 5.0,
        has_transcript: true,
        ..EpisodeSummary::default()
    };
    std::fs::write(
        dir.join(EPISODES_FILE),
        format!("{}\n", serde_json::to_string(&ended).unwrap()),
    )
    .unwrap();
    let detail = EpisodeDetail {
        summary: ended,
        rows: vec![TokenRow::default()],
        ..EpisodeDetail::default()
    };
    let step = dir.join("trajectories/train/step_2");
    std::fs::create_dir_all(&step).unwrap();
    std::fs::write(step.join("e-1.json"), serde_json::to_string(&detail).unwrap()).unwrap();
    let running = swarm.claim("a").await;
    swarm.chat(&running.key).await;

    let (status, told) = swarm.get(&format!("/episodes/{}", running.uuid)).await;
    assert_eq!((status, &told["running"]), (200, &json!(true)), "{told}");
    assert_eq!(
        told["conversations"][0]["messages"].as_array().unwrap().len(),
        2,
        "{told}"
    );
    for engine_runs in [true, false] {
        let (_, history) = swarm.get("/history?since=2&keys=loss&limit=1").await;
        let step = json!({"global_step": 2, "metrics": {"loss": 0.5}});
        assert_eq!(history, json!({"run": "test", "steps": [step], "next": 3}));
        let (_, runs) = swarm.get("/runs").await;
        assert_eq!(
            (&runs["runs"][0]["name"], &runs["runs"][0]["last_step"]),
            (&json!("test"), &json!(3)),
            "{runs}"
        );
        assert_eq!(runs["runs"][0]["current"], engine_runs);
        assert_eq!(runs["runs"][0]["model"], "builtin:tiny");
        let (_, found) = swarm
            .get("/episodes?task=a%20task/with%20%C3%BCmlauts&type=train&sort=-reward")
            .await;
        assert_eq!(
            (&found["total"], &found["episodes"][0]["reward"]),
            (&json!(1), &json!(0.75)),
            "{found}"
        );
        for (query, rows) in [("", 0), ("?tokens=true", 1), ("?run=test", 0)] {
            let (status, told) = swarm.get(&format!("/episodes/e-1{query}")).await;
            assert_eq!(
                (status, told["rows"].as_array().map(Vec::len)),
                (200, Some(rows)),
                "{told}"
            );
        }
        for (path, status) in [
            ("/episodes/unknown", 404),
            ("/history?run=other", 404),
            ("/history?run=..%2Ftest", 404),
            ("/history?run=..", 404),
            ("/history?since=soon", 400),
            ("/episodes?sort=name", 400),
            ("/episodes?type=neither", 400),
        ] {
            let (found, told) = swarm.get(path).await;
            assert_eq!(found, status, "{path}: {told}");
            assert!(told["detail"].is_string(), "{path}: {told}");
        }
        swarm.post("/stop_engine", json!({})).await;
        swarm.until("ENGINE.OFFLINE").await;
    }
}
