//! The environment variables of Python's hub client.

use std::path::{Path, PathBuf};

use crate::config::small_file::{DOCUMENT_BYTES, read_text};

/// What the variables say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Environment {
    /// The directory of the cache.
    pub cache: PathBuf,
    /// The access token.
    pub token: Option<String>,
    /// Whether the network may not be used.
    pub offline: bool,
}

impl Environment {
    /// Reads the variables in the order of Python's client.
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.unwrap_or_else(|| Path::new(&variable("HOME").unwrap_or_default()).join(".cache"));
            caches.join("huggingface")
        });
        let cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        let offline = variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE"));
        Self {
            cache: cache.map(PathBuf::from).unwrap_or_else(|| home.join("hub")),
            token: token(variable, &home),
            offline: offline.is_some_and(|value| is_true(&value)),
        }
    }
}

fn token(variable: impl Fn(&str) -> Option<String>, home: &Path) -> Option<String> {
    let file = || {
        let path = variable("HF_TOKEN_PATH").map(PathBuf::from);
        read_text(&path.unwrap_or_else(|| home.join("token")), DOCUMENT_BYTES).ok()
    };
    let token = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(file)?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(|name| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some((*value).to_string())
        })
    }

    /// Seen with HF_TOKEN, which the hint of a refused download names.
    #[test]
    fn the_token_is_where_the_hint_says() {
        let home = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\u{feff}hf_file\n").unwrap();
        std::fs::write(home.path().join("token"), "hf_login\n").unwrap();
        let path = file.path().to_str().unwrap();
        let home = home.path().to_str().unwrap();
        for (variables, expected) in [
            (vec![("HF_TOKEN", " hf_a\n")], Some("hf_a")),
            (vec![("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_b")),
            (vec![("HF_TOKEN_PATH", path)], Some("hf_file")),
            (vec![("HF_TOKEN", "hf_a"), ("HF_TOKEN_PATH", path)], Some("hf_a")),
            (vec![("HF_HOME", home)], Some("hf_login")),
            (vec![("HF_TOKEN", ""), ("HF_HOME", "/nonexistent")], None),
            (vec![("HF_HOME", "/nonexistent")], None),
        ] {
            assert_eq!(environment(&variables).token.as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_cache_is_that_of_pythons_client() {
        for (variables, expected) in [
            (vec![("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (vec![("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (vec![("HOME", "/h"), ("HF_HOME", "/hf")], "/hf/hub"),
            (vec![("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (vec![("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/c")], "/c"),
        ] {
            assert_eq!(environment(&variables).cache, Path::new(expected), "{variables:?}");
        }
    }

    #[test]
    fn offline_is_what_python_takes_for_true() {
        for (variables, expected) in [
            (vec![("HF_HUB_OFFLINE", "1")], true),
            (vec![("HF_HUB_OFFLINE", "True")], true),
            (vec![("TRANSFORMERS_OFFLINE", "yes")], true),
            (vec![("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")], false),
            (vec![("HF_HUB_OFFLINE", "")], false),
            (vec![], false),
        ] {
            assert_eq!(environment(&variables).offline, expected, "{variables:?}");
        }
    }
}
