//! Every path, its handler and its description in one table.

use std::any::Any;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::Value;
use tower::Layer;
use tower::util::MapRequestLayer;
use tower_http::catch_panic::CatchPanicLayer;

use super::connections::App;
use super::error::{Error, ModelApiError, shape_for_anthropic};
use super::route::{Kind, Route, get, json, order, post};
use super::{auth, openapi};
use crate::protocol::swarm::*;
use crate::server::handlers::{code, engine, episodes, logs, metrics, model_api, models};
use crate::server::prometheus;
use crate::server::shared::Shared;

/// Every route.
#[rustfmt::skip]
fn routes() -> Vec<Route> {
    vec![
        get("/health", engine::health, json::<Health>(), "whether the server is up; asks for no token"),
        get("/metrics", metrics::metrics, Kind::Raw(prometheus::CONTENT_TYPE), "figures for Prometheus"),
        get("/get_engine_status", engine::status, json::<EngineStatusAnswer>(), "where the engine is"),
        post("/sync_train_config", engine::sync_train_config, json::<SyncTrainConfigRequest>(), json::<SuccessAnswer>(),
            "the training configuration of the next start; only while the engine is offline"),
        post("/sync_train_code", code::sync_train_code, Kind::Raw("application/zip"), json::<SyncTrainCodeAnswer>(),
            "stores a snapshot of training code, which is not run; only while the engine is offline"),
        order("/start_engine", engine::start, json::<StartEngineAnswer>(),
            "starts an engine with the synced configuration; it goes on from the experiment's last checkpoint"),
        order("/stop_engine", engine::stop, json::<SuccessOrReason>(),
            "stops the engine after it has saved what it has"),
        get("/get_server_experiment_dir", engine::experiment_dir, json::<ExperimentDirAnswer>(),
            "where checkpoints and metrics are on the server's machine"),
        post("/claim_episode", episodes::claim, json::<ClaimEpisodeRequest>(), json::<ClaimEpisodeAnswer>(),
            "claims an episode; a refusal is an answer with `success: false` and its cause"),
        post("/end_episode", episodes::end, json::<EndEpisodeRequest>(), json::<SuccessAnswer>(),
            "ends an episode with its reward; it is on disk when this is answered, and may be repeated"),
        post("/abort_episode", episodes::abort, json::<EndEpisodeRequest>(), json::<SuccessAnswer>(),
            "gives an episode up and forgets what it recorded"),
        post("/can_continue_episode", episodes::can_continue, json::<CanContinueEpisodeRequest>(),
            json::<CanContinueEpisodeAnswer>(), "whether an episode still runs and is this client's"),
        post("/is_episode_claimed", episodes::is_claimed, json::<IsEpisodeClaimedRequest>(), json::<SuccessOrReason>(),
            "whether an episode runs, whosever it is"),
        order("/get_episode_buffer", episodes::buffer, json::<EpisodeBufferAnswer>(), "every episode that runs"),
        post("/agree_sync_weight", episodes::agree, json::<AgreeSyncWeightRequest>(), json::<SuccessOrReason>(),
            "agrees to end the batch, under the two collection methods that ask clients"),
        get("/get_current_batch_rollout_pool_information", episodes::pool_information, json::<PoolInformation>(),
            "the batch: what has finished, what runs, who takes part, what was dropped"),
        post("/push_verbose_log", logs::push, json::<PushVerboseLogRequest>(), json::<SuccessOrReason>(),
            "a line for the dashboards"),
        get("/get_verbose_logs", logs::recent, json::<VerboseLogsAnswer>(), "the lines of the last 30 s, 50 at most"),
        order("/replay_latest_llm_call", logs::replay, json::<ReplayLatestLlmCallAnswer>(),
            "the last chat request and its answer"),
        post("/v1/chat/completions", model_api::chat, json::<Value>(), json::<Value>(),
            "OpenAI's chat completions, with an episode's key; server-sent events where `stream` is true"),
        post("/v1/responses", model_api::responses, json::<Value>(), json::<Value>(),
            "OpenAI's responses, with an episode's key; server-sent events where `stream` is true"),
        post("/v1/messages", model_api::messages, json::<Value>(), json::<Value>(),
            "Anthropic's messages, with an episode's key; server-sent events where `stream` is true"),
        post("/v1/messages/count_tokens", model_api::count_tokens, json::<Value>(), json::<Value>(),
            "the tokens of the prompt that such a request leads to"),
        get("/v1/responses/{id}", model_api::kept_response, json::<Value>(),
            "an answer of the key's episode that was given with `store`"),
        get("/v1/episode/conversations", model_api::conversations, json::<EpisodeConversations>(),
            "what the agents of the key's episode and the model said to each other so far, while the episode runs"),
        get("/v1/models", models::list, json::<Value>(),
            "the model in training, as OpenAI lists models, or Anthropic where the request says its version"),
        get("/v1/models/{*id}", models::one, json::<Value>(), "the same by any name"),
        get("/openapi.json", async || Json(openapi::document(&routes())), json::<Value>(), "this document"),
    ]
}

/// The whole HTTP interface.
pub fn app(shared: Arc<Shared>) -> App {
    let router = routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&shared), auth::guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(shape_for_anthropic))
        .with_state(shared);
    // Outside the router, since it changes the path that is routed.
    MapRequestLayer::new(auth::normalise_path as fn(Request) -> Request).layer(router)
}

async fn no_such_path(uri: Uri) -> Response {
    shaped(&uri, Error::NoSuchPath(uri.path().to_owned()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    shaped(&uri, Error::MethodNotAllowed(format!("{method} {}", uri.path())))
}

fn shaped(uri: &Uri, error: Error) -> Response {
    match uri.path().starts_with("/v1/") {
        true => ModelApiError(error).into_response(),
        false => error.into_response(),
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic");
    tracing::error!("a request handler panicked: {text}");
    Error::Internal(text.to_owned()).into_response()
}
