//! Handlers of `GET /v1/models`: the model in training or served, in OpenAI's or Anthropic's format.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::server::handlers::{episode_key, samplers};
use crate::server::http::error::{Error, ModelApiError};
use crate::server::shared::Shared;

type Server = State<Arc<Shared>>;

/// Handles `GET /v1/models`.
pub async fn list(State(shared): Server, headers: HeaderMap) -> Result<Json<Value>, ModelApiError> {
    let name = model(&shared, &headers)?;
    let for_anthropic = is_anthropic(&headers);
    let adapter = samplers::adapter(&shared).await;
    let names = name.iter().chain(&adapter);
    let models: Vec<Value> = names.map(|name| described(name, for_anthropic)).collect();
    Ok(Json(match for_anthropic {
        true => json!({"data": models, "has_more": false, "first_id": name, "last_id": name}),
        false => json!({"object": "list", "data": models}),
    }))
}

/// Handles `GET /v1/models/{id}`: every id means the model in training, as in requests.
pub async fn one(
    State(shared): Server,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ModelApiError> {
    match model(&shared, &headers)? {
        Some(_) => Ok(Json(described(&id, is_anthropic(&headers)))),
        None => Err(Error::NoSuchPath(format!("model `{id}`")).into()),
    }
}

/// Returns the name of the model in training, if the caller may see it.
fn model(shared: &Shared, headers: &HeaderMap) -> Result<Option<String>, Error> {
    if let Some(served) = &shared.options.serving {
        return Ok(Some(public_name(served)));
    }
    if shared.options.token.is_none() {
        let key = episode_key(shared, headers)?;
        shared.with(|core, _| core.check_key(&key))?;
    }
    Ok(shared.with(|core, _| core.model()).map(|path| public_name(&path)))
}

fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

fn described(name: &str, for_anthropic: bool) -> Value {
    match for_anthropic {
        true => json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}),
        false => json!({"id": name, "object": "model", "created": 0, "owned_by": "ajet-swarm"}),
    }
}

/// Returns a model's name without the server's directories: a hub id unchanged, the last component of a path.
fn public_name(path: &str) -> String {
    if path.starts_with("builtin:") {
        return path.split(':').take(2).collect::<Vec<_>>().join(":");
    }
    let is_path = path.starts_with(['/', '.', '~']) || path.contains('\\') || path.matches('/').count() > 1;
    let last = path.rsplit(['/', '\\']).find(|part| !part.is_empty());
    last.filter(|_| is_path).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::public_name;

    #[test]
    fn names_show_no_directory() {
        for (path, name) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
            ("/home/ann/models/Qwen3-0.6B/", "Qwen3-0.6B"),
            ("../secret/model.gguf", "model.gguf"),
            ("~/m/a", "a"),
            ("data/models/a", "a"),
            ("C:\\models\\a", "a"),
            ("builtin:tiny", "builtin:tiny"),
            ("builtin:scripted:/home/ann/answers.jsonl", "builtin:scripted"),
        ] {
            assert_eq!(public_name(path), name, "{path}");
        }
    }
}
