//! Answers through HTTP endpoints: scripted ones, whose "model" counts up from the last token of the prompt.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::config::schema::Ajet;
use crate::engine::events::EventHub;
use crate::engine::model_thread::tests::{Parrot, request};
use crate::engine::model_thread::{SamplingLoad, UpdateOutcome, Worker};
use crate::inference::{FinishReason, SampleEvent, SampleRequest, StopCheck};
use crate::protocol::completions::{CompletionRequest, LoadAdapter, UnloadAdapter};
use crate::train::TrainEpisode;

/// What an endpoint does, and what it was asked.
#[derive(Default)]
struct Script {
    models: BTreeSet<String>,
    /// Breaks answers off after this many tokens.
    breaks_after: Option<usize>,
    /// Ends answers after this many tokens.
    ends_after: Option<usize>,
    /// Says nothing more after the first token.
    stalls: bool,
    /// Refuses completions with this status.
    refuses: Option<u16>,
    loads: Vec<String>,
    completions: Vec<CompletionRequest>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Script>>);

impl Fake {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    /// Starts serving; returns the URL.
    async fn start(&self) -> String {
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/load_lora_adapter", post(load))
            .route("/v1/unload_lora_adapter", post(unload))
            .route("/v1/completions", post(complete))
            .with_state(self.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    /// Returns the completions beside the trials.
    fn asked(&self) -> Vec<CompletionRequest> {
        let asked = self.script().completions.clone();
        asked.into_iter().filter(|request| request.prompt != [1]).collect()
    }
}

async fn models(State(fake): State<Fake>) -> Json<Value> {
    let data: Vec<Value> = fake.script().models.iter().map(|name| json!({"id": name})).collect();
    Json(json!({"data": data}))
}

async fn load(State(fake): State<Fake>, Json(load): Json<LoadAdapter>) -> &'static str {
    assert!(
        load.lora_path.join("adapter").is_file(),
        "it is written before it is loaded"
    );
    fake.script().models.insert(load.lora_name.clone());
    fake.script().loads.push(load.lora_name);
    "loaded"
}

async fn unload(State(fake): State<Fake>, Json(unload): Json<UnloadAdapter>) -> &'static str {
    assert!(fake.script().models.remove(&unload.lora_name));
    "unloaded"
}

async fn complete(State(fake): State<Fake>, Json(request): Json<CompletionRequest>) -> Response {
    let mut script = fake.script();
    script.completions.push(request.clone());
    if !script.models.contains(&request.model) {
        return (StatusCode::NOT_FOUND, "no such model").into_response();
    }
    let is_trial = request.prompt == [1];
    if let Some(status) = script.refuses.filter(|_| !is_trial) {
        return (StatusCode::from_u16(status).unwrap(), "refused").into_response();
    }
    let last = *request.prompt.last().unwrap();
    let logprob = if request.temperature > 1.0 { -1.5 } else { -1.0 };
    let token = |n: usize| {
        let (name, top) = (
            format!("token_id:{}", last + n as u32),
            json!([{"token_id:9": logprob}]),
        );
        let logprobs = json!({"tokens": [name], "token_logprobs": [logprob], "top_logprobs": top});
        json!({"choices": [{"index": 0, "text": "", "logprobs": logprobs, "finish_reason": null}]})
    };
    let (breaks, ends) = match is_trial {
        true => (None, None),
        false => (script.breaks_after, script.ends_after),
    };
    let count = request
        .max_tokens
        .min(breaks.unwrap_or(usize::MAX))
        .min(ends.unwrap_or(usize::MAX));
    if script.stalls && !is_trial {
        let first = stream::iter([Ok::<_, std::io::Error>(format!("data: {}\n\n", token(1)))]);
        return Body::from_stream(first.chain(stream::pending())).into_response();
    }
    let mut pieces: Vec<Result<String, std::io::Error>> =
        (1..=count).map(|n| Ok(format!("data: {}\n\n", token(n)))).collect();
    if breaks.is_none() {
        let last = json!({"choices": [{"index": 0, "finish_reason": "stop"}]});
        pieces.push(Ok(format!("data: {last}\n\ndata: [DONE]\n\n")));
        return Body::from_stream(stream::iter(pieces)).into_response();
    }
    let killed = stream::once(async {
        // Pending for a moment, so that what was said before is sent.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Err(std::io::Error::other("killed"))
    });
    Body::from_stream(stream::iter(pieces).chain(killed)).into_response()
}

/// A parrot that has an adapter.
struct Adapted(Parrot);

impl Worker for Adapted {
    fn submit(&mut self, request: SampleRequest) {
        self.0.submit(request);
    }
    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
    fn step(&mut self) -> Result<usize, String> {
        self.0.step()
    }
    fn update(&mut self, global_step: u64, episodes: &[TrainEpisode]) -> Result<UpdateOutcome, String> {
        self.0.update(global_step, episodes)
    }
    fn save(&mut self, dir: &Path) -> Result<(), String> {
        self.0.save(dir)
    }
    fn write_adapter(&self, dir: &Path) -> Result<(), String> {
        std::fs::write(dir.join("adapter"), self.0.version.to_string()).map_err(|error| error.to_string())
    }
    fn weight_version(&self) -> u64 {
        self.0.version
    }
    fn load(&self) -> SamplingLoad {
        self.0.load()
    }
}

/// Runs `work` on a worker whose answers are sampled at these endpoints.
async fn with_endpoints<T: Send + 'static>(
    fakes: &[Fake],
    work: impl FnOnce(&mut EndpointSampling, &Endpoints) -> T + Send + 'static,
) -> T {
    let mut config = Ajet {
        experiment_name: "e".into(),
        ..Ajet::default()
    };
    for fake in fakes {
        config.rollout.endpoints.push(fake.start().await);
    }
    let scratch = tempfile::tempdir().unwrap();
    let endpoints = Endpoints::of(&config, scratch.path(), &Arc::new(EventHub::default()))
        .unwrap()
        .unwrap();
    let worked = tokio::task::spawn_blocking(move || {
        let mut worker = EndpointSampling::new(Box::new(Adapted(Parrot::default())), endpoints.clone());
        let result = work(&mut worker, &endpoints);
        drop(scratch);
        result
    });
    worked.await.unwrap()
}

fn ask(prompt: &[u32], max_tokens: usize) -> (SampleRequest, UnboundedReceiver<SampleEvent>) {
    let (mut asked, events) = request(prompt);
    asked.params.max_tokens = max_tokens;
    (asked, events)
}

/// Runs until nothing is left to do; returns the tokens of an answer and its last event.
fn answer(worker: &mut EndpointSampling, mut events: UnboundedReceiver<SampleEvent>) -> (Vec<u32>, SampleEvent) {
    while !worker.is_idle() {
        worker.step().unwrap();
    }
    let (mut tokens, mut started) = (vec![], 0);
    loop {
        match events.try_recv().expect("a last event") {
            SampleEvent::Started { .. } => started += 1,
            SampleEvent::Token(token) => tokens.push(token.id),
            last => {
                assert!(started <= 1, "an answer starts once");
                return (tokens, last);
            }
        }
    }
}

const LENGTH: SampleEvent = SampleEvent::Finished(FinishReason::Length);

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_goes_on_elsewhere_with_the_same_weights() {
    let fakes = [Fake::default(), Fake::default()];
    fakes[0].script().breaks_after = Some(3);
    let asked = fakes.clone();
    let (tokens, report) = with_endpoints(&fakes, |worker, endpoints| {
        let (asked, events) = ask(&[4, 5], 8);
        worker.submit(asked);
        (answer(worker, events), endpoints.report())
    })
    .await;
    assert_eq!(tokens, ((6..14).collect(), LENGTH));
    assert!(
        report[0].problem.as_deref().unwrap().contains("cannot be reached"),
        "{report:?}"
    );
    assert_eq!((report[0].weight_version, report[1].weight_version), (None, Some(0)));
    assert_eq!((report[0].sampled_tokens, report[1].sampled_tokens), (3, 5));
    assert_eq!((report[1].running_requests, &report[1].problem), (0, &None));
    let [first, second] = asked.map(|fake| fake.asked().remove(0));
    assert_eq!(second.prompt, [4, 5, 6, 7, 8]);
    assert_eq!((first.max_tokens, second.max_tokens), (8, 5));
    assert_eq!(first.model.split_once(".e.").unwrap().0, "ajet");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_samples_what_no_endpoint_can() {
    let fake = Fake::default();
    let asked = fake.clone();
    with_endpoints(std::slice::from_ref(&asked), move |worker, endpoints| {
        let stop = SampleEvent::Finished(FinishReason::Stop);
        let (mut biased, events) = ask(&[4, 5], 8);
        biased.params.bias.presence_penalty = 1.0;
        worker.submit(biased);
        assert_eq!(
            answer(worker, events),
            (vec![4, 5], stop.clone()),
            "the parrot repeats the prompt"
        );
        assert!(fake.asked().is_empty());

        // It ends the answer by itself, which only the engine may.
        fake.script().ends_after = Some(2);
        let (asked, events) = ask(&[4, 5], 8);
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![6, 7, 4, 5, 6, 7], stop.clone()));
        assert_eq!(endpoints.report()[0].problem, None);

        fake.script().refuses = Some(400);
        let (asked, events) = ask(&[4, 5], 8);
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![4, 5], stop.clone()));
        assert_eq!(endpoints.report()[0].problem, None, "only this request was refused");

        fake.script().refuses = Some(500);
        let (asked, events) = ask(&[4, 5], 8);
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![4, 5], stop));
        assert!(
            endpoints.report()[0]
                .problem
                .as_deref()
                .unwrap()
                .contains("HTTP status 500: refused")
        );
    })
    .await;
    assert_eq!(asked.asked().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_decides_when_an_answer_ends() {
    struct At(u32);
    impl StopCheck for At {
        fn push(&mut self, token: u32) -> bool {
            token == self.0
        }
    }
    let fake = Fake::default();
    with_endpoints(&[fake], |worker, _| {
        let stop = SampleEvent::Finished(FinishReason::Stop);
        let (mut asked, events) = ask(&[4, 5], 8);
        asked.params.stop_token_ids = vec![8];
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![6, 7, 8], stop.clone()));
        let (mut asked, events) = ask(&[4, 5], 8);
        asked.stop = Some(Box::new(At(7)));
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![6, 7], stop));
        let (asked, events) = ask(&[4, 5], 8);
        drop(events);
        worker.submit(asked);
        while !worker.is_idle() {
            worker.step().unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_update_gives_new_weights_to_those_that_are_there() {
    let fakes = [Fake::default(), Fake::default()];
    let seen = fakes.clone();
    with_endpoints(&fakes, move |worker, endpoints| {
        let outcome = worker.update(1, &[]).unwrap();
        assert_eq!(outcome.metrics["endpoints/ready"], 2.0);
        for fake in &seen {
            let script = fake.script();
            assert_eq!(script.loads.len(), 2);
            assert!(
                script.loads[0].ends_with(".0") && script.loads[1].ends_with(".1"),
                "{:?}",
                script.loads
            );
            assert_eq!(
                script.models,
                BTreeSet::from([script.loads[1].clone()]),
                "the old one is unloaded"
            );
        }
        // Restarted, it has lost the adapter.
        seen[0].script().models.clear();
        let (asked, events) = ask(&[4, 5], 2);
        worker.submit(asked);
        assert_eq!(answer(worker, events), (vec![6, 7], LENGTH));
        assert_eq!(endpoints.report()[0].weight_version, None);
        assert_eq!(endpoints.report()[1].weight_version, Some(1));
        endpoints.runtime().block_on(endpoints.join(0));
        assert_eq!(endpoints.report()[0].weight_version, Some(1));
        assert_eq!(seen[0].script().models.len(), 1);
        let outcome = worker.update(2, &[]).unwrap();
        assert_eq!(outcome.metrics["endpoints/token_share"], 1.0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_cancels_what_is_being_sampled() {
    let fake = Fake::default();
    fake.script().stalls = true;
    with_endpoints(&[fake], |worker, endpoints| {
        let (asked, events) = ask(&[4, 5], 8);
        worker.submit(asked);
        while endpoints.report()[0].sampled_tokens == 0 {
            worker.step().unwrap();
        }
        worker.update(1, &[]).unwrap();
        let cancelled = SampleEvent::Finished(FinishReason::Cancelled);
        assert_eq!(answer(worker, events), (vec![6], cancelled));
        assert_eq!(endpoints.report()[0].running_requests, 0);
    })
    .await;
}
