//! An engine without a model: it speaks the engine contract over a Unix socket, in this process, and its model echoes.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ajet_swarm::config::from_json;
use ajet_swarm::engine::batch::pool::{Pool, StopRule};
use ajet_swarm::protocol::engine::*;
use ajet_swarm::protocol::openai::{ErrorBody, ErrorObject};
use ajet_swarm::protocol::swarm::{EpisodeType, RecordedConversation};
use ajet_swarm::server::{EngineHandle, EngineLauncher, Kill, Launch};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

/// The last words of an engine that ends at a call.
pub const HANGS_UP: &str = "the engine was terminated by signal 6: the weights are torn";

/// What the engines of a launcher do; tests change it before a start or while one runs.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub contract_version: u32,
    /// The boot fails with this.
    pub boot_error: Option<String>,
    /// The boot waits until this is false.
    pub hold_boot: bool,
    /// A call of this path is the engine's end: it hangs up, and is known to have ended a moment later.
    pub dies_at: Option<&'static str>,
    /// Updates wait until this is false.
    pub hold_updates: bool,
    /// An update is refused.
    pub refuse_updates: bool,
    /// The batch's record cannot be written before this is false.
    pub disk_full: bool,
    /// Chats wait until this is false.
    pub hold_chats: bool,
    /// Ends wait until this is false.
    pub hold_ends: bool,
    /// So many of the next ends drop their episode.
    pub drop_ends: u32,
    /// An engine that is asked to shut down waits until this is false.
    pub hold_shutdown: bool,
    /// Pieces of a streamed answer, and the pause between them.
    pub stream: (usize, Duration),
    /// Shortest and longest time of a chat; each episode's lies between them, log-uniformly.
    pub chat_takes: (Duration, Duration),
    /// Time of an update for each episode that it trains on.
    pub update_takes: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            contract_version: CONTRACT_VERSION,
            boot_error: None,
            hold_boot: false,
            dies_at: None,
            hold_updates: false,
            refuse_updates: false,
            disk_full: false,
            hold_chats: false,
            hold_ends: false,
            drop_ends: 0,
            hold_shutdown: false,
            stream: (3, Duration::ZERO),
            chat_takes: (Duration::ZERO, Duration::ZERO),
            update_takes: Duration::ZERO,
        }
    }
}

/// What the engines of a launcher were asked to do.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub launches: u32,
    pub ends: Vec<(String, EndEpisode)>,
    pub forgotten: Vec<(String, DropReason)>,
    /// Chats that were cut off before their answer was out.
    pub chats_cut: u32,
    pub updates: u32,
    /// What each update trained on.
    pub batches: Vec<Vec<PooledEpisode>>,
    /// Updates that a full disk refused.
    pub updates_put_off: u32,
    /// What each update was told of the episodes that did not get there.
    pub dropped: Vec<IndexMap<DropReason, u64>>,
    pub shutdowns: u32,
    pub configs: Vec<String>,
    /// The program that each engine was to be run from.
    pub programs: Vec<Option<PathBuf>>,
    /// Of each engine.
    pub sockets: Vec<PathBuf>,
}

/// Starts fake engines.
#[derive(Clone, Default)]
pub struct FakeLauncher {
    behaviour: Arc<Mutex<Behaviour>>,
    record: Arc<Mutex<Record>>,
    present: Arc<Mutex<Option<Engine>>>,
}

impl FakeLauncher {
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    pub fn record(&self) -> Record {
        self.record.lock().unwrap().clone()
    }

    /// How many ends the engines took.
    pub fn ends(&self) -> usize {
        self.record.lock().unwrap().ends.len()
    }

    /// The ends since the last call of this.
    #[allow(dead_code, reason = "the load benchmark uses it")]
    pub fn take_ends(&self) -> Vec<(String, EndEpisode)> {
        std::mem::take(&mut self.record.lock().unwrap().ends)
    }

    /// The engine that runs dies, with these last words.
    pub fn die(&self, words: &str) {
        let engine = self.present.lock().unwrap().clone().expect("an engine was started");
        engine.end(words);
    }

    /// The engine that runs sends an event.
    pub fn send(&self, event: &EngineEvent) {
        let engine = self.present.lock().unwrap().clone().expect("an engine was started");
        engine.tell(event);
    }
}

impl EngineLauncher for FakeLauncher {
    fn launch(&self, launch: &Launch) -> io::Result<EngineHandle> {
        static PIDS: AtomicU32 = AtomicU32::new(1_000_000);
        let ajet = from_json(&launch.config).map_err(io::Error::other)?;
        {
            let mut record = self.record.lock().unwrap();
            record.launches += 1;
            record.configs.push(launch.config.clone());
            record.programs.push(launch.program.clone());
        }
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("engine.sock");
        self.record.lock().unwrap().sockets.push(socket.clone());
        let (ended_sender, ended) = watch::channel(None);
        let (kill, mut kills) = mpsc::channel(4);
        let (ending, ending_receiver) = watch::channel(None);
        let engine = Engine {
            model: ajet.model.path.clone(),
            pool: Arc::new(Mutex::new(Pool::new(StopRule::new(&ajet), 1))),
            calls: Arc::default(),
            said: Arc::default(),
            phase: Arc::new(Mutex::new(EnginePhase::Booting)),
            events: broadcast::channel(1024).0,
            ending: Arc::new(ending),
            behaviour: Arc::clone(&self.behaviour),
            record: Arc::clone(&self.record),
        };
        *self.present.lock().unwrap() = Some(engine.clone());
        let listening = socket.clone();
        tokio::spawn(async move {
            let _directory = directory;
            let mut ending_receiver = ending_receiver;
            let words = tokio::select! {
                words = engine.serve(listening) => words,
                Some(how) = kills.recv() => match how {
                    Kill::Terminate => "the engine was terminated by signal 15".to_owned(),
                    Kill::Kill => "the engine was killed (signal 9)".to_owned(),
                },
                words = ending_receiver.wait_for(Option::is_some) => words.unwrap().clone().unwrap(),
            };
            if words == HANGS_UP {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            ended_sender.send_replace(Some(words));
        });
        Ok(EngineHandle {
            socket,
            pid: PIDS.fetch_add(1, Ordering::Relaxed),
            ended,
            kill,
        })
    }
}

#[derive(Clone)]
struct Engine {
    model: String,
    pool: Arc<Mutex<Pool>>,
    /// Finished chats by episode.
    calls: Arc<Mutex<HashMap<String, u64>>>,
    /// Finished chats' messages by episode, each with its answer.
    said: Arc<Mutex<HashMap<String, Vec<Vec<Value>>>>>,
    phase: Arc<Mutex<EnginePhase>>,
    events: broadcast::Sender<String>,
    ending: Arc<watch::Sender<Option<String>>>,
    behaviour: Arc<Mutex<Behaviour>>,
    record: Arc<Mutex<Record>>,
}

impl Engine {
    async fn serve(&self, socket: PathBuf) -> String {
        let listener = UnixListener::bind(socket).unwrap();
        let router = Router::new()
            .route("/hello", get(hello))
            .route("/episodes/{id}/chat", post(chat))
            .route("/episodes/{id}/count_tokens", post(count_tokens))
            .route("/episodes/{id}/conversations", get(conversations))
            .route("/episodes/{id}/end", post(end))
            .route("/episodes/{id}/forget", post(forget))
            .route("/agree", post(agree))
            .route("/update", post(update))
            .route("/events", get(events))
            .route("/shutdown", post(shutdown))
            .layer(from_fn_with_state(self.clone(), die_at))
            .with_state(self.clone());
        let boot = async {
            self.while_held(|behaviour| behaviour.hold_boot).await;
            if let Some(error) = self.behaviour().boot_error.clone() {
                self.tell(&EngineEvent::Fatal { message: error.clone() });
                return format!("the engine ended with exit code 1: {error}");
            }
            self.set_phase(EnginePhase::Rolling, None);
            std::future::pending().await
        };
        tokio::select! {
            words = boot => words,
            never = accept(listener, router) => match never {},
        }
    }

    fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap()
    }

    async fn while_held(&self, held: impl Fn(&Behaviour) -> bool) {
        while held(&self.behaviour()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn end(&self, words: &str) {
        self.ending.send_replace(Some(words.to_owned()));
    }

    fn tell(&self, event: &EngineEvent) {
        let _ = self.events.send(serde_json::to_string(event).unwrap() + "\n");
    }

    fn status(&self, detail: Option<String>) -> EngineEvent {
        EngineEvent::Status {
            phase: *self.phase.lock().unwrap(),
            detail,
            global_step: self.pool.lock().unwrap().global_step(),
        }
    }

    fn set_phase(&self, phase: EnginePhase, detail: Option<String>) {
        *self.phase.lock().unwrap() = phase;
        self.tell(&self.status(detail));
    }
}

/// Serves until it is dropped; open connections are then closed, as those of a dead process are.
async fn accept(listener: UnixListener, router: Router) -> std::convert::Infallible {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

async fn die_at(State(engine): State<Engine>, request: Request, next: Next) -> Response {
    if engine.behaviour().dies_at == Some(request.uri().path()) {
        engine.end(HANGS_UP);
        return std::future::pending().await;
    }
    next.run(request).await
}

async fn hello(State(engine): State<Engine>) -> Json<Hello> {
    let pool = engine.pool.lock().unwrap().snapshot();
    Json(Hello {
        contract_version: engine.behaviour().contract_version,
        ready: *engine.phase.lock().unwrap() != EnginePhase::Booting,
        model: engine.model.clone(),
        device: "none".into(),
        global_step: pool.global_step,
        pool,
        ..Hello::default()
    })
}

/// Counts a chat as cut off unless it is told otherwise.
struct Cut(Engine, bool);

impl Drop for Cut {
    fn drop(&mut self) {
        if self.1 {
            self.0.record.lock().unwrap().chats_cut += 1;
        }
    }
}

async fn chat(State(engine): State<Engine>, Path(id): Path<String>, Json(call): Json<ChatCall>) -> Response {
    let mut cut = Cut(engine.clone(), true);
    engine.while_held(|behaviour| behaviour.hold_chats).await;
    let takes = chat_time(&id, engine.behaviour().chat_takes);
    tokio::time::sleep(takes).await;
    let request: Value = serde_json::from_str(call.request.get()).unwrap();
    let Some(text) = request["messages"][0]["content"].as_str() else {
        cut.1 = false;
        return refuse(StatusCode::BAD_REQUEST, "messages[0].content must be text");
    };
    let model = request["model"].clone();
    let echo = format!(
        "{text} ({})",
        if call.episode_type == EpisodeType::Eval {
            "eval"
        } else {
            "train"
        }
    );
    let mut said = request["messages"].as_array().cloned().unwrap_or_default();
    said.push(json!({"role": "assistant", "content": echo}));
    let counted = move |cut: &mut Cut| {
        cut.1 = false;
        cut.0
            .said
            .lock()
            .unwrap()
            .entry(id.clone())
            .or_default()
            .push(said.clone());
        *cut.0.calls.lock().unwrap().entry(id.clone()).or_default() += 1;
    };
    if request["stream"] != true {
        counted(&mut cut);
        return Json(json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": echo}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }))
        .into_response();
    }
    let (pieces, pause) = engine.behaviour().stream;
    let chunks = futures_util::stream::unfold((0, cut), move |(sent, mut cut)| {
        let (model, echo, counted) = (model.clone(), echo.clone(), counted.clone());
        async move {
            if sent > pieces {
                return None;
            }
            if sent == pieces {
                counted(&mut cut);
                return Some(("data: [DONE]\n\n".to_owned(), (sent + 1, cut)));
            }
            tokio::time::sleep(pause).await;
            let chunk = json!({
                "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model,
                "choices": [{"index": 0, "delta": {"content": echo}, "finish_reason": null}],
            });
            Some((format!("data: {chunk}\n\n"), (sent + 1, cut)))
        }
    });
    let body = Body::from_stream(chunks.map(Ok::<_, io::Error>));
    ([("content-type", "text/event-stream")], body).into_response()
}

/// Every chat is a conversation of its own.
async fn conversations(State(engine): State<Engine>, Path(id): Path<String>) -> Json<EpisodeConversations> {
    let said = engine.said.lock().unwrap().get(&id).cloned().unwrap_or_default();
    Json(EpisodeConversations {
        episode_uuid: id,
        llm_calls: said.len() as u64,
        main: said.len().checked_sub(1),
        conversations: said
            .into_iter()
            .map(|messages| RecordedConversation {
                messages,
                ..RecordedConversation::default()
            })
            .collect(),
        left_out: 0,
    })
}

/// Differs from episode to episode.
fn chat_time(episode: &str, (shortest, longest): (Duration, Duration)) -> Duration {
    if longest.is_zero() {
        return longest;
    }
    let hash = episode.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let share = (hash >> 11) as f64 / (1_u64 << 53) as f64;
    shortest.mul_f64((longest.as_secs_f64() / shortest.as_secs_f64()).powf(share))
}

/// A token a character of the first message.
async fn count_tokens(Json(call): Json<ChatCall>) -> Json<TokenCount> {
    let request: Value = serde_json::from_str(call.request.get()).unwrap();
    let text = request["messages"][0]["content"].as_str().unwrap_or_default();
    Json(TokenCount {
        input_tokens: text.len() as u64,
    })
}

async fn end(State(engine): State<Engine>, Path(id): Path<String>, Json(end): Json<EndEpisode>) -> Json<EndOutcome> {
    engine.while_held(|behaviour| behaviour.hold_ends).await;
    engine.record.lock().unwrap().ends.push((id.clone(), end.clone()));
    let llm_calls = engine.calls.lock().unwrap().remove(&id).unwrap_or(0);
    let mut pool = engine.pool.lock().unwrap();
    let drops = {
        let mut behaviour = engine.behaviour();
        let drops = behaviour.drop_ends > 0;
        behaviour.drop_ends = behaviour.drop_ends.saturating_sub(1);
        drops
    };
    let dropped = (llm_calls == 0 || drops).then_some(DropReason::NoLlmCall);
    let mut gone = Vec::new();
    if dropped.is_none() && end.episode_type == EpisodeType::Train {
        let episode = PooledEpisode {
            episode_uuid: id.clone(),
            task_id: end.task_id,
            client_uuid: end.client_uuid,
            reward: end.reward,
            ..PooledEpisode::default()
        };
        gone = pool.push(episode, ());
    }
    Json(EndOutcome {
        dropped,
        rows: 1,
        llm_calls,
        change: pool.change(&id, &gone),
    })
}

async fn forget(
    State(engine): State<Engine>,
    Path(id): Path<String>,
    Json(forget): Json<ForgetEpisode>,
) -> Json<Value> {
    engine.calls.lock().unwrap().remove(&id);
    engine.record.lock().unwrap().forgotten.push((id, forget.reason));
    Json(json!({}))
}

async fn agree(State(engine): State<Engine>) -> Json<BatchState> {
    let mut pool = engine.pool.lock().unwrap();
    pool.close();
    Json(BatchState { pool: pool.snapshot() })
}

async fn update(State(engine): State<Engine>, Json(update): Json<Update>) -> Response {
    if !engine.pool.lock().unwrap().is_full() {
        return refuse(StatusCode::CONFLICT, "the batch is not full");
    }
    if engine.behaviour().refuse_updates {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "out of threads");
    }
    if engine.behaviour().disk_full {
        engine.record.lock().unwrap().updates_put_off += 1;
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the disk is full");
    }
    {
        let mut record = engine.record.lock().unwrap();
        record.updates += 1;
        record.dropped.push(update.dropped);
        record.batches.push(engine.pool.lock().unwrap().snapshot().episodes);
    }
    tokio::spawn(async move {
        engine.set_phase(EnginePhase::WeightSyncing, Some("exporting step 1".into()));
        engine.while_held(|behaviour| behaviour.hold_updates).await;
        let episodes = engine.pool.lock().unwrap().snapshot().episodes.len() as u32;
        let takes = engine.behaviour().update_takes * episodes;
        tokio::time::sleep(takes).await;
        let step = engine.pool.lock().unwrap().global_step();
        let metrics = [("actor/loss".to_owned(), 0.25)].into_iter().collect();
        engine.tell(&EngineEvent::Metrics {
            global_step: step,
            metrics,
        });
        engine.pool.lock().unwrap().advance(step + 1);
        let pool = engine.pool.lock().unwrap().snapshot();
        engine.tell(&EngineEvent::Pool { pool });
        engine.set_phase(EnginePhase::Rolling, None);
    });
    Json(json!({})).into_response()
}

async fn events(State(engine): State<Engine>) -> Body {
    let events = tokio_stream::wrappers::BroadcastStream::new(engine.events.subscribe());
    let first = serde_json::to_string(&engine.status(None)).unwrap() + "\n";
    let first = futures_util::stream::once(async { Ok::<_, io::Error>(first) });
    Body::from_stream(first.chain(events.map(|event| event.map_err(io::Error::other))))
}

async fn shutdown(State(engine): State<Engine>) -> Json<Value> {
    engine.record.lock().unwrap().shutdowns += 1;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        engine.while_held(|behaviour| behaviour.hold_shutdown).await;
        engine.end("the engine ended");
    });
    Json(json!({}))
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let error = ErrorObject {
        message: message.into(),
        kind: "invalid_request_error".into(),
        ..ErrorObject::default()
    };
    (status, Json(ErrorBody { error })).into_response()
}
