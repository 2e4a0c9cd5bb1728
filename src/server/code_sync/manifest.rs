//! Whether a snapshot is an engine's source.

use std::path::Path;

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::protocol::training_code::{PACKAGE, package_name};

/// Files without which the engine cannot be built.
const NEEDED: [&str; 2] = ["Cargo.lock", "src/main.rs"];

/// Checks that a directory holds the sources of ajet-swarm.
///
/// # Errors
///
/// Returns what is missing, as a clause.
pub fn check_is_engine(dir: &Path) -> Result<(), String> {
    let Ok(manifest) = read_text(&dir.join("Cargo.toml"), DOCUMENT_BYTES) else {
        let python = dir.join("__init__.py").exists();
        let what = if python { ", only AgentJet's Python package" } else { "" };
        return Err(format!("it has no ajet/Cargo.toml{what}"));
    };
    match package_name(&manifest) {
        Some(PACKAGE) => {}
        Some(other) => return Err(format!("ajet/Cargo.toml is of the package {other:?}, not {PACKAGE:?}")),
        None => return Err("ajet/Cargo.toml names no package".into()),
    }
    match NEEDED.iter().find(|file| !dir.join(file).is_file()) {
        Some(missing) => Err(format!("it has no ajet/{missing}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let says = |what: &str| {
            let error = check_is_engine(dir.path()).unwrap_err();
            assert!(error.contains(what), "{error}");
        };
        says("has no ajet/Cargo.toml");
        std::fs::write(dir.path().join("__init__.py"), "").unwrap();
        says("Python package");
        std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"serde\"").unwrap();
        says("\"serde\"");
        std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"ajet-swarm\"").unwrap();
        says("no ajet/Cargo.lock");
        std::fs::write(dir.path().join("Cargo.lock"), "").unwrap();
        says("no ajet/src/main.rs");
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/main.rs"), "").unwrap();
        assert_eq!(check_is_engine(dir.path()), Ok(()));
    }
}
