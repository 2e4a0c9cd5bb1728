//! The rules of docs/architecture.md, checked over the source text.

mod circles;
mod documents;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use circles::circles;
use source::SourceTree;

/// Crates that only some layers may name.
const USED_IN: [(&str, &[&str]); 3] = [
    ("candle_core", &["model", "inference", "train"]),
    ("candle_nn", &["model", "inference", "train"]),
    ("minijinja", &["jinja"]),
];

static TREE: LazyLock<SourceTree> = LazyLock::new(SourceTree::read);

/// Each layer and what it may use: the table in docs/architecture.md. `None` for a layer that may use all others.
fn table() -> BTreeMap<String, Option<Vec<String>>> {
    let text = include_str!("../../docs/architecture.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| folder"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let names = |cell: &str| -> Vec<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted
            .map(|name| name.trim_end_matches('/').trim_end_matches(".rs").into())
            .collect()
    };
    let mut table = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let allowed = (cells[2].trim() != "everything").then(|| names(cells[2]));
        for layer in names(cells[0]) {
            table.insert(layer, allowed.clone());
        }
    }
    table
}

fn layer_of(path: &Path) -> String {
    let first = path.iter().next().unwrap().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn layers_use_only_what_the_table_allows() {
    let table = table();
    let mut wrong = vec![];
    for (path, named) in TREE.layers_named() {
        let layer = layer_of(path);
        if layer == "lib" || layer == "main" || layer == named || !table.contains_key(named) {
            continue;
        }
        let allowed = table
            .get(&layer)
            .unwrap_or_else(|| panic!("{layer} is not in the table"));
        if allowed
            .as_ref()
            .is_some_and(|allowed| !allowed.iter().any(|name| name == named))
        {
            wrong.push(format!("{} uses {named}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_layer_is_in_the_table_and_the_table_has_no_circle() {
    let table = table();
    for (_, file) in TREE.files() {
        let layer = layer_of(&file.path);
        assert!(
            ["lib", "main"].contains(&layer.as_str()) || table.contains_key(&layer),
            "{layer}"
        );
    }
    let arrows = table
        .iter()
        .map(|(layer, allowed)| (layer, allowed.iter().flatten().collect()));
    assert_eq!(circles(&arrows.collect()), Vec::<Vec<&String>>::new());
}

#[test]
fn no_files_need_one_another() {
    let dependencies = TREE.dependencies();
    let found = circles(&dependencies);
    let told: Vec<_> = found
        .iter()
        .map(|circle| {
            circle
                .iter()
                .map(|file| file.join("::"))
                .collect::<Vec<_>>()
                .join(" ↔ ")
        })
        .collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn some_crates_are_named_only_in_their_layers() {
    for (_, file) in TREE.files() {
        for (name, layers) in USED_IN {
            let allowed = layers.contains(&layer_of(&file.path).as_str());
            assert!(
                allowed || !file.names_crate(name),
                "{} names {name}",
                file.path.display()
            );
        }
    }
}

// The compiler denies `unsafe` (Cargo.toml) except where this attribute allows it again.
#[test]
fn only_kernels_allow_unsafe_code() {
    let allowing = TREE.files().filter(|(_, file)| file.text.contains("allow(unsafe_code"));
    let found: Vec<PathBuf> = allowing.map(|(_, file)| file.path.clone()).collect();
    assert_eq!(found, [Path::new("model/kernels/mod.rs")]);
}
