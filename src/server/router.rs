//! Which path leads where.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower::Layer;
use tower::util::MapRequestLayer;
use tower_http::catch_panic::CatchPanicLayer;

use super::auth;
use super::connections::App;
use super::error::{Error, ModelApiError};
use super::handlers::{engine, episodes, logs, model_api};
use super::shared::Shared;

/// The whole HTTP interface.
pub fn app(shared: Arc<Shared>) -> App {
    let router = Router::new()
        .route("/health", get(engine::health))
        .route("/get_engine_status", get(engine::status))
        .route("/sync_train_config", post(engine::sync_train_config))
        .route("/start_engine", post(engine::start))
        .route("/stop_engine", post(engine::stop))
        .route("/get_server_experiment_dir", get(engine::experiment_dir))
        .route("/claim_episode", post(episodes::claim))
        .route("/end_episode", post(episodes::end))
        .route("/abort_episode", post(episodes::abort))
        .route("/can_continue_episode", post(episodes::can_continue))
        .route("/is_episode_claimed", post(episodes::is_claimed))
        .route("/get_episode_buffer", post(episodes::buffer))
        .route("/agree_sync_weight", post(episodes::agree))
        .route(
            "/get_current_batch_rollout_pool_information",
            get(episodes::pool_information),
        )
        .route("/push_verbose_log", post(logs::push))
        .route("/get_verbose_logs", get(logs::recent))
        .route("/replay_latest_llm_call", post(logs::replay))
        .route("/v1/chat/completions", post(model_api::chat))
        .route("/v1/models", get(model_api::models))
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&shared), auth::guard))
        .layer(CatchPanicLayer::custom(panicked))
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
