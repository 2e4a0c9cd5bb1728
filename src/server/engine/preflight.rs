//! Checks before an engine is started, so that the caller learns of errors at once.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::SystemTime;

use crate::config::experiment::{self, Experiment};
use crate::config::schema::Ajet;
use crate::config::to_json;

/// Checks the model and creates the experiment directory.
///
/// # Errors
///
/// Returns a message for the user.
pub fn check(config: &Ajet) -> Result<Experiment, String> {
    check_model(&config.model.path)?;
    let here = std::env::current_dir().map_err(|error| format!("cannot find the working directory: {error}"))?;
    let experiment =
        experiment::resolve(config, &here, SystemTime::now(), Path::exists).map_err(|problem| problem.to_string())?;
    let cannot = |error: std::io::Error| {
        format!(
            "cannot write to the experiment directory {}: {error}; hint: set ajet.experiment_dir to a writable directory",
            experiment.dir.display()
        )
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700) // it holds prompts and completions
        .create(&experiment.dir)
        .map_err(cannot)?;
    tempfile::Builder::new()
        .prefix(".writable")
        .tempfile_in(&experiment.dir)
        .map_err(cannot)?;
    Ok(experiment)
}

/// Checks that a model named by a path exists; `builtin:NAME` and hub ids are resolved by the engine.
///
/// # Errors
///
/// It does not exist, or is no model; a sentence for the user.
pub fn check_model(model: &str) -> Result<(), String> {
    if model.is_empty() {
        return Err("ajet.model.path is not set; hint: set it to a directory, a .gguf file or a hub id".into());
    }
    if model.starts_with("builtin:") {
        return Ok(());
    }
    let path = Path::new(model);
    if path.is_dir() {
        return match path.join("config.json").is_file() {
            true => Ok(()),
            false => Err(format!(
                "the model directory {model} has no config.json; hint: name the directory of a Hugging Face model"
            )),
        };
    }
    let can_only_be_a_path = model.starts_with(['/', '.', '~']) || model.matches('/').count() != 1;
    if !path.exists() && (can_only_be_a_path || model.ends_with(".gguf")) {
        return Err(format!(
            "model not found: {model}; hint: set ajet.model.path to a directory or .gguf file on the server's \
             machine, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or builtin:tiny"
        ));
    }
    Ok(())
}

/// Returns the configuration for the engine as JSON, with the resolved experiment directory, so that a restart with it
/// finds the same experiment.
pub fn config_file(mut config: Ajet, experiment: &Experiment) -> String {
    config.experiment_name.clone_from(&experiment.name);
    config.experiment_dir = experiment.dir.to_string_lossy().into_owned();
    to_json(&config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_cannot_be_there_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().to_str().unwrap();
        for (model, said) in [
            (String::new(), "not set"),
            ("/no/such/model".into(), "model not found: /no/such/model"),
            ("./model.gguf".into(), "model not found"),
            ("org/model.gguf".into(), "model not found"),
            ("model".into(), "model not found"),
            (here.to_owned(), "has no config.json"),
        ] {
            let message = check_model(&model).unwrap_err();
            assert!(message.contains(said), "{model:?}: {message}");
        }
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        for model in [here, "builtin:tiny", "Qwen/Qwen2.5-0.5B-Instruct"] {
            assert_eq!(check_model(model), Ok(()), "{model}");
        }
    }

    #[test]
    fn an_experiment_directory_is_made_and_one_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Ajet::default();
        config.model.path = "builtin:tiny".into();
        config.experiment_name = "b".into();
        let wanted = dir.path().join("a/b");
        config.experiment_dir = wanted.to_str().unwrap().into();
        let experiment = check(&config).unwrap();
        assert_eq!(experiment.dir, wanted);
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&wanted).unwrap());
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(&wanted).unwrap().count(), 0, "the probe is gone");
        std::fs::write(dir.path().join("file"), "").unwrap();
        config.experiment_dir = dir.path().join("file/b").to_str().unwrap().into();
        let message = check(&config).unwrap_err();
        assert!(
            message.contains("cannot write to the experiment directory"),
            "{message}"
        );
    }
}
