//! The documents name files and tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// Every file below a directory with one of these extensions.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true => files_below(&path, extension),
        false => vec![path],
    });
    found
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect()
}

/// What stands between single backticks outside of code blocks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2))
}

#[test]
fn documents_name_files_and_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: Vec<PathBuf> = ["src", "tests"]
        .iter()
        .flat_map(|directory| files_below(&root.join(directory), "rs"))
        .collect();
    let code: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut documents = files_below(&root.join("docs"), "md");
    documents.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    let mut missing = vec![];
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        let is_security = document.ends_with("docs/security.md");
        for name in quoted(&text) {
            let exists = match name.ends_with(".rs") && !name.contains(char::is_whitespace) {
                true => sources.iter().any(|path| path.ends_with(name)),
                // There, a long name is that of a test.
                false if is_security && is_test_name(name) => code.contains(&format!("fn {name}(")),
                false => true,
            };
            if !exists {
                missing.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn is_test_name(name: &str) -> bool {
    name.matches('_').count() >= 3
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}
