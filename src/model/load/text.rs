//! A model's tokenizer and chat template without its weights, to count tokens where no engine runs.

use std::path::Path;

use super::files::Files;
use super::{Generation, builtin, directory, gguf, hub, random};
use crate::hub::Hub;
use crate::model::chat_template::ChatTemplate;
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;
use crate::model::tokenizer::Tokenizer;

/// Tokenizer and chat template, which turn messages into token ids.
#[derive(Clone)]
pub struct TextSide {
    /// Text ↔ ids.
    pub tokenizer: Tokenizer,
    /// Messages → text.
    pub chat_template: ChatTemplate,
    /// What ends an answer.
    pub generation: Generation,
}

/// Reads the text side of the model at `path` (as for [`super::load`]) from this machine, without downloading. Returns
/// `None` if it is not there, and for models with random weights.
///
/// # Errors
/// Fails if a file of the model cannot be read or used.
pub fn load_text(path: &str) -> Result<Option<TextSide>, ModelError> {
    let local = Path::new(path);
    let files = match files_of(path) {
        Some(files) => directory::model_files(&files)?,
        None if local.is_file() => gguf::model_files(local)?,
        None => return Ok(None),
    };
    let config = ModelConfig::from_json(&files.config)?;
    files.text_side(&config).map(Some)
}

fn files_of(path: &str) -> Option<Files> {
    if let Some(name) = path.strip_prefix("builtin:") {
        let is_random = name.starts_with(random::PREFIX);
        let name = name.split(':').next().unwrap_or_default();
        return builtin::files(name).filter(|_| !is_random);
    }
    let local = Path::new(path);
    if local.is_dir() {
        return Some(Files::Directory(local.to_path_buf()));
    }
    let cached = Hub::from_env().cached(&hub::id(path)?)?;
    cached
        .join("tokenizer.json")
        .exists()
        .then_some(Files::Directory(cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_side_is_read_without_weights() {
        let model = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen2");
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            std::fs::copy(fixture.join(file), model.path().join(file)).unwrap();
        }
        for path in [
            model.path().to_str().unwrap(),
            "builtin:tiny",
            "builtin:scripted:script.yaml",
        ] {
            let text = load_text(path).unwrap().unwrap();
            assert!(!text.tokenizer.encode("1 + 1").unwrap().is_empty(), "{path}");
        }
        for path in [
            "builtin:random:config.json",
            "builtin:none",
            "no/such-model-here",
            "model.gguf",
        ] {
            assert!(load_text(path).unwrap().is_none(), "{path}");
        }
        std::fs::write(model.path().join("tokenizer.json"), "{").unwrap();
        assert!(load_text(model.path().to_str().unwrap()).is_err());
    }
}
