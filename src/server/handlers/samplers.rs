//! A served model as the sampler of another server's engine: it loads that engine's LoRA adapters, and completes prompts of
//! token ids.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::response::Response;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::protocol::completions::{CompletionRequest, LoadAdapter, UnloadAdapter};
use crate::server::engine::client::EngineClient;
use crate::server::http::body::{CHAT_BYTES, JsonBody};
use crate::server::http::error::{Error, ModelApiError};
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// Handles `POST /v1/completions`. A client that disconnects cancels the answer.
pub async fn complete(
    State(shared): Server,
    JsonBody(request): JsonBody<CompletionRequest, CHAT_BYTES>,
) -> Result<Response, ModelApiError> {
    let permit = Arc::clone(&shared.calls).try_acquire_owned();
    let limit = shared.options.limits.calls;
    let permit = permit.map_err(|_| Error::TooManyCalls { limit })?;
    let answer = engine(&shared)?.complete(&request).await.map_err(Error::from)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.head.status;
    for name in [CONTENT_TYPE, CACHE_CONTROL, RETRY_AFTER] {
        if let Some(value) = answer.head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let bytes = answer.into_bytes_stream().inspect(move |_| {
        // Owned by the stream, so that the call counts until the answer is complete.
        let _ = &permit;
    });
    *response.body_mut() = Body::from_stream(bytes);
    Ok(response)
}

/// Handles `POST /v1/load_lora_adapter`.
pub async fn load_adapter(
    State(shared): Server,
    JsonBody(load): JsonBody<LoadAdapter>,
) -> Result<Json<Value>, ModelApiError> {
    let allowed = shared.options.adapters.clone().unwrap_or_default();
    let checked = tokio::task::spawn_blocking(move || below(&allowed, load)).await;
    let load = checked.map_err(|error| Error::Internal(error.to_string()))??;
    engine(&shared)?.load_adapter(&load).await.map_err(Error::from)?;
    tracing::info!("loaded the adapter {}", load.lora_name);
    Ok(Json(json!({})))
}

/// Handles `POST /v1/unload_lora_adapter`.
pub async fn unload_adapter(
    State(shared): Server,
    JsonBody(unload): JsonBody<UnloadAdapter>,
) -> Result<Json<Value>, ModelApiError> {
    engine(&shared)?.unload_adapter(&unload).await.map_err(Error::from)?;
    Ok(Json(json!({})))
}

/// Returns the name of the adapter that completions are sampled with; `None` without one or without an engine.
pub async fn adapter(shared: &Shared) -> Option<String> {
    shared.options.adapters.as_ref()?;
    engine(shared).ok()?.adapter().await.ok()?.lora_name
}

fn engine(shared: &Shared) -> Result<EngineClient, Error> {
    let link = shared.link();
    link.map(|link| link.client)
        .ok_or_else(|| Error::ModelNotReady("the engine is not running".into()))
}

/// Resolves an adapter's directory, which must be below the `allowed` one, also through symbolic links.
fn below(allowed: &Path, load: LoadAdapter) -> Result<LoadAdapter, Error> {
    let resolved = |path: &Path| -> Result<PathBuf, Error> {
        let error = |error| Error::Invalid(format!("cannot read the adapter {}: {error}", path.display()));
        path.canonicalize().map_err(error)
    };
    let (directory, lora_path) = (resolved(allowed)?, resolved(&load.lora_path)?);
    match lora_path.starts_with(&directory) {
        true => Ok(LoadAdapter { lora_path, ..load }),
        false => Err(Error::Invalid(format!(
            "{} is not below {}; hint: the server's --adapters names the directory of adapters",
            load.lora_path.display(),
            allowed.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_adapters_below_the_directory_are_loaded() {
        let scratch = tempfile::tempdir().unwrap();
        let (inside, outside) = (scratch.path().join("adapters/a"), scratch.path().join("secret"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let allowed = scratch.path().join("adapters");
        std::os::unix::fs::symlink(&outside, allowed.join("link")).unwrap();
        let load = |path: PathBuf| {
            let lora_name = "a".into();
            below(
                &allowed,
                LoadAdapter {
                    lora_name,
                    lora_path: path,
                },
            )
        };
        let found = load(allowed.join("link/../a")).map_err(|error| error.to_string());
        assert!(found.is_err(), "`..` of a link is beside its target: {found:?}");
        assert_eq!(load(inside.clone()).unwrap().lora_path, inside.canonicalize().unwrap());
        for path in [outside, allowed.join("link"), allowed.join("../secret")] {
            let error = load(path).unwrap_err().to_string();
            assert!(error.contains("is not below"), "{error}");
        }
        assert!(
            load(allowed.join("missing"))
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
    }
}
