//! Whether a model can be at the path that `ajet.model.path` names.

use std::path::{Path, PathBuf};

/// Checks that a model named by a path exists; `builtin:NAME` and hub ids are resolved by the engine.
///
/// # Errors
///
/// It does not exist, or is no model; a sentence for the user.
pub fn check_model_path(model: &str) -> Result<(), String> {
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
                "the model directory {model} has no config.json; hint: {}",
                match gguf_in(path) {
                    Some(file) => format!("name the .gguf file itself: {}", file.display()),
                    None => "name the directory of a Hugging Face model".to_owned(),
                }
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

/// The first `.gguf` file of a directory, by name.
fn gguf_in(dir: &Path) -> Option<PathBuf> {
    let entries = dir.read_dir().ok()?.flatten().map(|entry| entry.path());
    entries
        .filter(|file| file.extension().is_some_and(|extension| extension == "gguf"))
        .min()
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
            let message = check_model_path(&model).unwrap_err();
            assert!(message.contains(said), "{model:?}: {message}");
        }
        let gguf = dir.path().join("q4.gguf");
        std::fs::write(&gguf, "").unwrap();
        let message = check_model_path(here).unwrap_err();
        assert!(
            message.ends_with(&format!("name the .gguf file itself: {}", gguf.display())),
            "{message}"
        );
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        for model in [here, "builtin:tiny", "Qwen/Qwen2.5-0.5B-Instruct"] {
            assert_eq!(check_model_path(model), Ok(()), "{model}");
        }
    }
}
