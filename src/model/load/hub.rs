//! The Hugging Face hub and its cache on this machine.

use std::path::PathBuf;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde_json::Value;

use super::ADDITIONAL_CHAT_TEMPLATES;
use crate::config::small_file::{DOCUMENT_BYTES, TABLE_BYTES, read_text};
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

/// Takes `org/name` or `org/name@revision` apart; `None` for anything that cannot be a hub id.
pub(super) fn id(path: &str) -> Option<(&str, &str)> {
    let (repository, revision) = path.split_once('@').unwrap_or((path, "main"));
    let (organisation, name) = repository.split_once('/')?;
    let is_name = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let is_revision = !revision.is_empty() && !revision.contains(char::is_whitespace);
    (is_name(organisation) && is_name(name) && is_revision && !name.ends_with(".gguf"))
        .then_some((repository, revision))
}

/// The directory with the model's files, fetched where they are not in the cache yet. A complete snapshot in the cache
/// is used without asking the hub.
pub(super) fn snapshot(
    repository: &str,
    revision: &str,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<PathBuf, ModelError> {
    let repo = Repo::with_revision(repository.to_string(), RepoType::Model, revision.to_string());
    if let Some(directory) = cached(&Cache::from_env().repo(repo.clone())) {
        return Ok(directory);
    }
    let fail = |file: &str, error: ApiError| ModelError::Hub {
        repo: repository.to_string(),
        file: file.to_string(),
        reason: error.to_string(),
    };
    // bars are drawn by whoever listens to `progress`
    let mut builder = ApiBuilder::from_env();
    if let Some(token) = token(|name| std::env::var(name).ok()) {
        builder = builder.with_token(Some(token));
    }
    let api = builder
        .with_progress(false)
        .build()
        .map_err(|e| fail(CONFIG, e))?
        .repo(repo);
    let listing = api.info().map_err(|e| fail(CONFIG, e))?;
    let has = |file: &str| listing.siblings.iter().any(|s| s.rfilename == file);
    let mut fetch = |file: &str| fetch(&api, file, progress).map_err(|e| fail(file, e));

    let is_template = |file: &&str| file.starts_with(ADDITIONAL_CHAT_TEMPLATES) && file.ends_with(".jinja");
    for file in listing
        .siblings
        .iter()
        .map(|s| s.rfilename.as_str())
        .filter(is_template)
    {
        fetch(file)?;
    }
    let mut config = None;
    for file in BESIDE_WEIGHTS.into_iter().filter(|file| has(file)) {
        let path = fetch(file)?;
        if file == CONFIG {
            config = Some(path);
        }
    }
    if has(SINGLE) {
        fetch(SINGLE)?;
    } else if has(INDEX) {
        let index = fetch(INDEX)?;
        for shard in shards_of(&index)? {
            fetch(&shard)?;
        }
    }
    config
        .and_then(|path| path.parent().map(PathBuf::from))
        .ok_or_else(|| ModelError::Hub {
            repo: repository.to_string(),
            file: CONFIG.to_string(),
            reason: "the repository has no such file".into(),
        })
}

/// The hub's access token of the environment, as Python's client reads it; the one that a login left in the cache is read
/// by the hub client itself.
fn token(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let file = || read_text(variable("HF_TOKEN_PATH")?.as_ref(), DOCUMENT_BYTES).ok();
    let token = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(file)?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_string())
}

/// The snapshot's directory, if every file that a model needs is there.
fn cached(cache: &CacheRepo) -> Option<PathBuf> {
    let config = cache.get(CONFIG)?;
    cache.get("tokenizer.json")?;
    if cache.get(SINGLE).is_none() {
        let shards = shards_of(&cache.get(INDEX)?).ok()?;
        shards.iter().all(|shard| cache.get(shard).is_some()).then_some(())?;
    }
    config.parent().map(PathBuf::from)
}

/// File names in an index of shards.
fn shards_of(index: &std::path::Path) -> Result<Vec<String>, ModelError> {
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

fn fetch(api: &ApiRepo, file: &str, progress: &mut dyn FnMut(f32, &str)) -> Result<PathBuf, ApiError> {
    let what = format!("downloading {file}");
    api.download_with_progress(
        file,
        Fraction {
            what,
            done: 0,
            total: 1,
            progress,
        },
    )
}

/// Turns the hub client's byte counts into fractions.
struct Fraction<'a> {
    what: String,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(f32, &str),
}

impl Progress for Fraction<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.total = size.max(1);
        self.update(0);
    }

    fn update(&mut self, size: usize) {
        self.done += size;
        (self.progress)(self.done as f32 / self.total as f32, &self.what);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with HF_TOKEN, which the hint of a refused download names.
    #[test]
    fn the_token_is_where_the_hint_says() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\u{feff}hf_file\n").unwrap();
        let path = file.path().to_str().unwrap();
        for (variables, expected) in [
            (vec![("HF_TOKEN", " hf_a\n")], Some("hf_a")),
            (vec![("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_b")),
            (vec![("HF_TOKEN_PATH", path)], Some("hf_file")),
            (vec![("HF_TOKEN", "hf_a"), ("HF_TOKEN_PATH", path)], Some("hf_a")),
            (vec![("HF_TOKEN", "")], None),
            (vec![], None),
        ] {
            let found = token(|name| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some((*value).to_string())
            });
            assert_eq!(found.as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn only_ids_are_ids() {
        assert_eq!(
            id("Qwen/Qwen2.5-0.5B-Instruct"),
            Some(("Qwen/Qwen2.5-0.5B-Instruct", "main"))
        );
        assert_eq!(id("a/b@refs/pr/1"), Some(("a/b", "refs/pr/1")));
        for path in [
            "model",
            "/models/a",
            "./a",
            "../a/b",
            "a/b/c",
            "a/",
            "a b/c",
            "a/b@",
            "builtin:x",
            "a/b.gguf",
            "",
        ] {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
