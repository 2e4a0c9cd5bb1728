//! Table of all endpoints.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{Request, State};
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
use super::route::{Kind, Route, delete, get, json, post, post_without_body};
use super::{auth, openapi, request_id};
use crate::protocol::checkpoint::CheckpointsAnswer;
use crate::protocol::completions::{CompletionRequest, LoadAdapter, UnloadAdapter};
use crate::protocol::status::{EpisodeDetail, Episodes, History, Runs, Status};
use crate::protocol::swarm::*;
use crate::server::handlers::{
    checkpoints, code, engine, episodes, logs, metrics, model_api, models, runs, samplers, status, ui,
};
use crate::server::prometheus;
use crate::server::shared::Shared;

/// Query parameter that names an experiment.
const RUN: (&str, &str) = ("run", "name of an experiment (default: the current or last one)");

/// Routes of a sampler of other engines' episodes.
const OF_SAMPLERS: [&str; 3] = ["/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Returns all routes.
#[rustfmt::skip]
fn routes() -> Vec<Route> {
    vec![
        get("/health", engine::health, json::<Health>(), "Report that the server is up; needs no token"),
        get("/metrics", metrics::metrics, Kind::Raw(prometheus::CONTENT_TYPE), "Return the metrics in Prometheus' text format"),
        get("/status", status::now, json::<Status>(), "Return all that a dashboard shows"),
        get("/status/stream", status::stream, Kind::Raw("text/event-stream"),
            "Send the same as server-sent events, on every change and at most five times a second"),
        get("/history", runs::history, json::<History>(), "Return the metrics of an experiment by step, from its files")
            .with_query(&[RUN, ("since", "first step"), ("keys", "names separated by commas; a trailing * matches any ending"),
                ("limit", "maximum number of steps, at most 5000 (default 1000)")]),
        get("/runs", runs::list, json::<Runs>(), "List the experiments beside the current one"),
        get("/episodes", runs::episodes, json::<Episodes>(), "List the finished episodes of an experiment")
            .with_query(&[RUN, ("type", "train or eval"), ("step", "step"), ("task", "task"), ("client", "id of the client"),
                ("sort", "ended, reward, tokens or calls, with a leading - for descending order (default -ended)"),
                ("offset", "number of episodes to skip"), ("limit", "maximum number of episodes, at most 500 (default 100)")]),
        get("/episodes/{id}", runs::episode, json::<EpisodeDetail>(), "Return a running or finished episode with all that was said")
            .with_query(&[RUN, ("tokens", "true for token ids, mask, log-probabilities and advantages")]),
        get("/get_engine_status", engine::status, json::<EngineStatusAnswer>(), "Return the engine's state"),
        post("/sync_train_config", engine::sync_train_config, json::<SyncTrainConfigRequest>(), json::<SuccessAnswer>(),
            "Set the training configuration of the next start; only while the engine is offline"),
        post("/compare_train_config", engine::compare_train_config, json::<SyncTrainConfigRequest>(),
            json::<CompareTrainConfigAnswer>(),
            "Compare a configuration with the engine's, or with the last start of the experiment that it continues"),
        post("/sync_train_code", code::sync_train_code, Kind::Raw("application/zip"), json::<SyncTrainCodeAnswer>(),
            "Store training code, which the next start builds and runs; only while the engine is offline"),
        get("/sync_train_code", code::list, json::<SyncedCodeAnswer>(),
            "List the stored training code, with the output of its last build"),
        delete("/sync_train_code", code::deselect, json::<SyncTrainCodeAnswer>(),
            "Run the built-in engine again from the next start; only while the engine is offline"),
        post_without_body("/start_engine", engine::start, json::<StartEngineAnswer>(),
            "Start an engine with the synced configuration; it resumes from the experiment's last checkpoint"),
        post_without_body("/stop_engine", engine::stop, json::<SuccessOrReason>(),
            "Save the batch and stop the engine"),
        get("/get_server_experiment_dir", engine::experiment_dir, json::<ExperimentDirAnswer>(),
            "Return the server's directory of checkpoints and metrics"),
        get("/checkpoints", checkpoints::list, json::<CheckpointsAnswer>(),
            "List the complete checkpoints of an experiment with the sizes and checksums of their files").with_query(&[RUN]),
        get("/checkpoints/{step}/{*file}", checkpoints::file, Kind::Raw("application/octet-stream"),
            "Return a file of the checkpoint of a step, or the part that `Range` names").with_query(&[RUN]),
        post("/claim_episode", episodes::claim, json::<ClaimEpisodeRequest>(), json::<ClaimEpisodeAnswer>(),
            "Claim an episode; a refusal is an answer with `success: false` and the reason"),
        post("/end_episode", episodes::end, json::<EndEpisodeRequest>(), json::<EndEpisodeAnswer>(),
            "End an episode with its reward; answers when it is on disk, and may be repeated"),
        post("/abort_episode", episodes::abort, json::<EndEpisodeRequest>(), json::<SuccessAnswer>(),
            "Abort an episode and delete its calls"),
        post("/can_continue_episode", episodes::can_continue, json::<CanContinueEpisodeRequest>(),
            json::<CanContinueEpisodeAnswer>(), "Return whether an episode still runs and belongs to this client"),
        post("/is_episode_claimed", episodes::is_claimed, json::<IsEpisodeClaimedRequest>(), json::<SuccessOrReason>(),
            "Return whether an episode runs, regardless of which client owns it"),
        post_without_body("/get_episode_buffer", episodes::buffer, json::<EpisodeBufferAnswer>(), "List the running episodes"),
        post("/agree_sync_weight", episodes::agree, json::<AgreeSyncWeightRequest>(), json::<SuccessOrReason>(),
            "Agree to end the batch, under the two collection methods that ask clients"),
        get("/get_current_batch_rollout_pool_information", episodes::pool_information, json::<PoolInformation>(),
            "Return the batch: finished, running and dropped episodes, and active clients"),
        post("/push_verbose_log", logs::push, json::<PushVerboseLogRequest>(), json::<SuccessOrReason>(),
            "Send a log line to the dashboards"),
        get("/get_verbose_logs", logs::recent, json::<VerboseLogsAnswer>(), "Return the log lines of the last 30 s, at most 50"),
        post_without_body("/replay_latest_llm_call", logs::replay, json::<ReplayLatestLlmCallAnswer>(),
            "Return the latest chat request and its answer"),
        post("/v1/chat/completions", model_api::chat, json::<Value>(), json::<Value>(),
            "OpenAI's chat completions, with an episode's key; server-sent events if `stream` is true"),
        post("/v1/responses", model_api::responses, json::<Value>(), json::<Value>(),
            "OpenAI's Responses API, with an episode's key; server-sent events if `stream` is true"),
        post("/v1/messages", model_api::messages, json::<Value>(), json::<Value>(),
            "Anthropic's Messages API, with an episode's key; server-sent events if `stream` is true"),
        post("/v1/messages/count_tokens", model_api::count_tokens, json::<Value>(), json::<Value>(),
            "Return the number of prompt tokens this request would use"),
        get("/v1/responses/{id}", model_api::kept_response, json::<Value>(),
            "Return a stored answer of the key's episode"),
        post("/v1/completions", samplers::complete, json::<CompletionRequest>(), Kind::Raw("text/event-stream"),
            "Complete a prompt of token ids with a loaded adapter, in vLLM's format; only of `serve --adapters`"),
        post("/v1/load_lora_adapter", samplers::load_adapter, json::<LoadAdapter>(), json::<Value>(),
            "Load a LoRA adapter in the place of the one before; only of `serve --adapters`"),
        post("/v1/unload_lora_adapter", samplers::unload_adapter, json::<UnloadAdapter>(), json::<Value>(),
            "Sample no completions with an adapter any more; only of `serve --adapters`"),
        get("/v1/episode/conversations", model_api::conversations, json::<EpisodeConversations>(),
            "Return the conversations of the key's running episode so far"),
        get("/v1/models", models::list, json::<Value>(),
            "List the model in training in OpenAI's format, or in Anthropic's for requests with `anthropic-version`"),
        get("/v1/models/{*id}", models::one, json::<Value>(), "Return the model in training, whatever the id"),
        get("/openapi.json", openapi_document, json::<Value>(), "Return this document"),
    ]
}

/// Returns the routes of a server: all, or without those of the swarm API if it only serves a model.
fn routes_of(shared: &Shared) -> impl Iterator<Item = Route> {
    let only_serves = shared.options.serving.is_some();
    let loads_adapters = shared.options.adapters.is_some();
    routes()
        .into_iter()
        .filter(move |route| !only_serves || is_of_serving(route.path))
        .filter(move |route| loads_adapters || !OF_SAMPLERS.contains(&route.path))
}

fn is_of_serving(path: &str) -> bool {
    let of_model_api = path.starts_with("/v1/") && path != "/v1/episode/conversations";
    of_model_api || ["/health", "/metrics", "/get_engine_status", "/openapi.json"].contains(&path)
}

async fn openapi_document(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(openapi::document(&routes_of(&shared).collect::<Vec<_>>()))
}

/// Builds the complete HTTP interface.
pub fn app(shared: Arc<Shared>) -> App {
    let pages = match shared.options.serving {
        Some(_) => Router::new(),
        None => ui::router(),
    };
    let router = routes_of(&shared)
        .fold(pages, |router, route| router.route(route.path, route.handler))
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&shared), auth::guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(shape_for_anthropic))
        .layer(from_fn(request_id::in_span))
        .with_state(shared);
    // Outside of the router, since it changes the path that is routed.
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
        .unwrap_or("unknown panic");
    tracing::error!("a request handler panicked: {text}");
    Error::Internal(text.to_owned()).into_response()
}
