//! Checks before an engine is started, so that the caller learns of errors at once.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::SystemTime;

use crate::config::experiment::{self, Experiment};
use crate::config::schema::Ajet;
use crate::config::{check_model_path, to_json};

/// Checks the model and creates the experiment directory.
///
/// # Errors
///
/// Returns a message for the user.
pub fn check(config: &Ajet) -> Result<Experiment, String> {
    check_model_path(&config.model.path)?;
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
