//! What a checkpoint consists of for an engine that only samples: a model, and a LoRA adapter where it is one.

use std::path::{Path, PathBuf};

use super::storage::checkpoint::Checkpoint;
use crate::model::{ModelError, peft};
use crate::protocol::checkpoint::{ADAPTER_CONFIG, DIR_NAME, MANIFEST};

/// A model to sample from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The complete model, as `ajet.model.path` has it.
    pub base: String,
    /// Directory of the LoRA adapter on it.
    pub adapter: Option<PathBuf>,
}

/// Reasons why a checkpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServedModelError {
    /// The checkpoint is missing or damaged.
    #[error("{0}")]
    Checkpoint(String),
    /// A base was given for a complete model.
    #[error("{0} is a complete model, not a LoRA adapter\nhint: omit --base")]
    NoAdapter(String),
    /// The adapter's configuration cannot be read.
    #[error(transparent)]
    Adapter(#[from] ModelError),
}

impl ServedModel {
    /// Finds the model that `given` names: a checkpoint, an experiment directory for its newest checkpoint, an exported
    /// model or adapter, or anything else that `ajet.model.path` takes. `base` replaces the model that an adapter names.
    ///
    /// # Errors
    /// Fails if the checkpoint is damaged, an adapter's configuration is invalid, or a base is given for a complete model.
    pub fn find(given: &str, base: Option<&str>) -> Result<Self, ServedModelError> {
        let path = Path::new(given);
        let dir = match path.join(MANIFEST).is_file() || path.join(DIR_NAME).is_dir() {
            true => Checkpoint::find(path).map_err(ServedModelError::Checkpoint)?.dir,
            false => path.to_owned(),
        };
        if dir.join(ADAPTER_CONFIG).is_file() {
            let base = base.map_or_else(|| peft::base_model(&dir), |base| Ok(base.to_owned()))?;
            return Ok(Self {
                base,
                adapter: Some(dir),
            });
        }
        match base {
            Some(_) => Err(ServedModelError::NoAdapter(given.to_owned())),
            None => Ok(Self {
                base: dir.to_string_lossy().into_owned(),
                adapter: None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::identity::RunIdentity;
    use crate::engine::storage::checkpoint::CheckpointStore;

    fn adapter(dir: &Path) -> std::io::Result<()> {
        std::fs::write(
            dir.join(ADAPTER_CONFIG),
            r#"{"base_model_name_or_path": "builtin:tiny"}"#,
        )
    }

    #[test]
    fn checkpoints_experiments_exports_and_models_are_found() {
        let scratch = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(scratch.path(), 9, RunIdentity::default());
        let full = |dir: &Path| std::fs::write(dir.join("config.json"), "{}");
        let first = store.stage(1, full).unwrap().publish().unwrap();
        let second = store.stage(2, adapter).unwrap().publish().unwrap();
        let export = scratch.path().join("export");
        std::fs::create_dir(&export).unwrap();
        adapter(&export).unwrap();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let of_tiny = |dir: &Path| ServedModel {
            base: "builtin:tiny".into(),
            adapter: Some(dir.to_owned()),
        };
        let complete = |base: &str| ServedModel {
            base: base.to_owned(),
            adapter: None,
        };
        for (given, found) in [
            (text(&first), complete(&text(&first))),
            (text(&second), of_tiny(&second)),
            (text(scratch.path()), of_tiny(&second)),
            (text(&export), of_tiny(&export)),
            ("Qwen/Qwen3-0.6B".into(), complete("Qwen/Qwen3-0.6B")),
            ("builtin:tiny".into(), complete("builtin:tiny")),
        ] {
            assert_eq!(ServedModel::find(&given, None).unwrap(), found, "{given}");
        }
        let elsewhere = ServedModel::find(&text(&export), Some("/models/tiny")).unwrap();
        assert_eq!(elsewhere.base, "/models/tiny");
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let scratch = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(scratch.path(), 9, RunIdentity::default());
        let dir = store.stage(1, adapter).unwrap().publish().unwrap();
        let find = |base| ServedModel::find(&dir.to_string_lossy(), base).unwrap_err().to_string();
        std::fs::write(dir.join(ADAPTER_CONFIG), "{}").unwrap();
        assert!(find(None).contains("is damaged"), "its checksum does not match");
        std::fs::remove_file(dir.join(MANIFEST)).unwrap();
        assert!(find(None).contains("base_model_name_or_path"));
        let complete = ServedModel::find("builtin:tiny", Some("builtin:tiny"))
            .unwrap_err()
            .to_string();
        assert!(complete.contains("omit --base"), "{complete}");
    }
}
