//! A model's architecture without its weights and texts, to compute with its sizes.

use std::path::Path;

use serde_json::Value;

use super::files::Files;
use super::{builtin, gguf, hub, not_found, random};
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::hub::Hub;
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;

const CONFIG: &str = "config.json";

/// Reads the architecture of the model at `path` (as for [`super::load`], or a `config.json`) from this machine, without
/// downloading.
///
/// # Errors
/// Fails if there is no such model here, or if it is not supported.
pub fn load_shape(path: &str) -> Result<ModelConfig, ModelError> {
    let local = Path::new(path);
    if local.is_file() && local.extension().is_some_and(|extension| extension == "json") {
        return of_file(local);
    }
    if local.is_file() {
        return ModelConfig::from_json(&gguf::model_files(local)?.config);
    }
    let files = match path.strip_prefix("builtin:") {
        Some(name) => match name.strip_prefix(random::PREFIX) {
            Some(config) => return of_file(Path::new(config)),
            None => builtin::files(name.split(':').next().unwrap_or_default()),
        },
        None if local.is_dir() => Some(Files::Directory(local.to_path_buf())),
        None => hub::id(path)
            .and_then(|repository| Hub::from_env().cached(&repository))
            .map(Files::Directory),
    };
    let config = match files {
        Some(files) => files.json(CONFIG)?,
        None => None,
    };
    ModelConfig::from_json(&config.ok_or_else(|| not_found(path))?)
}

fn of_file(path: &Path) -> Result<ModelConfig, ModelError> {
    let text = read_text(path, DOCUMENT_BYTES).map_err(ModelError::io(path))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|error| ModelError::file(path.display().to_string(), error))?;
    ModelConfig::from_json(&json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_read_from_wherever_a_model_is() {
        let root = env!("CARGO_MANIFEST_DIR");
        let directory = format!("{root}/tests/fixtures/models/qwen2");
        let shape = load_shape(&directory).unwrap();
        for path in [
            format!("{directory}/config.json"),
            format!("builtin:random:{directory}/config.json"),
        ] {
            assert_eq!(load_shape(&path).unwrap(), shape, "{path}");
        }
        assert!(load_shape("builtin:tiny").unwrap().num_parameters() > 0);
        let missing = load_shape("no/such-model-here").unwrap_err();
        assert!(missing.to_string().contains("no/such-model-here"), "{missing}");
    }
}
