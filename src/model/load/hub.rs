//! A model on the Hugging Face hub, or in its cache on this machine.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ADDITIONAL_CHAT_TEMPLATES;
use crate::config::small_file::{TABLE_BYTES, read_text};
use crate::hub::{Hub, HubError, Kind, Reason, Repository};
use crate::model::error::ModelError;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// In this order, so that a snapshot with weights has the rest.
const BESIDE_WEIGHTS: [&str; 5] = [
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "tokenizer.json",
    CONFIG,
];

/// Reads `org/name` or `org/name@revision`; `None` for anything that cannot be a model's hub id.
pub(super) fn id(path: &str) -> Option<Repository> {
    Repository::parse(path, Kind::Model).filter(|repository| !repository.name.ends_with(".gguf"))
}

/// Returns the directory with the model's files, downloading those that are not in the cache. A complete snapshot in
/// the cache is used without contacting the hub.
pub(super) fn snapshot(repository: &Repository, progress: &mut dyn FnMut(f32, &str)) -> Result<PathBuf, ModelError> {
    let hub = Hub::from_env();
    if let Some(directory) = hub.cached(repository).filter(|directory| is_complete(directory)) {
        return Ok(directory);
    }
    let fail = |error: HubError| ModelError::Hub {
        repo: repository.name.clone(),
        file: error.file,
        reason: error.reason.to_string(),
    };
    let remote = hub.open(repository).map_err(fail)?;
    let mut fetch = |file: &str| remote.fetch(file, progress).map_err(fail);

    let is_template = |file: &&String| file.starts_with(ADDITIONAL_CHAT_TEMPLATES) && file.ends_with(".jinja");
    for file in remote.files().iter().filter(is_template) {
        fetch(file)?;
    }
    for file in BESIDE_WEIGHTS.into_iter().filter(|file| remote.has(file)) {
        fetch(file)?;
    }
    if remote.has(SINGLE) {
        fetch(SINGLE)?;
    } else if remote.has(INDEX) {
        let index = fetch(INDEX)?;
        for shard in shards_of(&index)? {
            fetch(&shard)?;
        }
    }
    match remote.has(CONFIG) {
        true => Ok(remote.snapshot().to_path_buf()),
        false => Err(fail(HubError {
            file: CONFIG.into(),
            reason: Reason::Missing,
        })),
    }
}

/// Whether every file that a model needs is in a directory.
fn is_complete(directory: &Path) -> bool {
    let has = |file: &str| directory.join(file).exists();
    let has_shards = || {
        let index = directory.join(INDEX);
        has(INDEX) && shards_of(&index).is_ok_and(|shards| shards.iter().all(|shard| has(shard)))
    };
    has(CONFIG) && has("tokenizer.json") && (has(SINGLE) || has_shards())
}

/// File names in an index of shards.
fn shards_of(index: &Path) -> Result<Vec<String>, ModelError> {
    let text = read_text(index, TABLE_BYTES).map_err(ModelError::io(index))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| ModelError::file(index.display().to_string(), e))?;
    let names = json["weight_map"]
        .as_object()
        .into_iter()
        .flat_map(|map| map.values().filter_map(Value::as_str));
    let mut names: Vec<String> = names.map(String::from).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gguf_file_is_no_hub_id() {
        assert!(id("Qwen/Qwen2.5-0.5B-Instruct").is_some());
        for path in ["a/b.gguf", "model", "builtin:x"] {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
