//! The rules of docs/architecture.md on who may import whom, checked over the source text.

use std::fs;
use std::path::{Path, PathBuf};

/// A layer and the layers that it may import. `cli` may import all and is not listed.
const ARROWS: [(&str, &[&str]); 12] = [
    ("server", &["protocol", "config"]),
    ("client", &["protocol", "config"]),
    ("overwatch", &["protocol", "config"]),
    ("roll", &["protocol", "config", "client", "hub", "jinja"]),
    (
        "engine",
        &["inference", "train", "timeline", "model", "protocol", "config"],
    ),
    ("train", &["model", "timeline", "config"]),
    ("inference", &["model", "config"]),
    ("model", &["config", "hub", "jinja"]),
    ("hub", &["config"]),
    ("jinja", &[]),
    ("timeline", &["config"]),
    ("protocol", &["config"]),
];

/// Layers that may name candle.
const USE_CANDLE: [&str; 3] = ["model", "inference", "train"];

/// A source file and its layer: the directory, or the file's own name, right below `src`.
struct Source {
    layer: String,
    path: PathBuf,
    /// Without comments.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = vec![];
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap();
                let layer = below
                    .iter()
                    .next()
                    .unwrap()
                    .to_string_lossy()
                    .trim_end_matches(".rs")
                    .to_owned();
                let code = without_comments(&fs::read_to_string(&path).unwrap());
                let path = below.to_owned();
                sources.push(Source { layer, path, code });
            }
        }
    }
    assert!(sources.len() > 10, "only {} files found", sources.len());
    sources
}

fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Names that follow `prefix` in the code, those of `prefix{a, b}` too.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = vec![];
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(top_level_names(group)),
            None => names.push(rest.split(|c| !is_name(c)).next().unwrap_or_default()),
        }
    }
    names
}

/// First names of the parts of `a::{b, c}, d::e}`: `a` and `d`.
fn top_level_names(group: &str) -> Vec<&str> {
    let mut names = vec![];
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(group[start..at].split("::").next().unwrap_or_default().trim());
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

#[test]
fn layers_import_only_what_the_arrows_allow() {
    let mut wrong = vec![];
    for source in sources() {
        let Some((_, allowed)) = ARROWS.iter().find(|(layer, _)| *layer == source.layer) else {
            continue;
        };
        let layers = ARROWS.iter().map(|(layer, _)| *layer).chain(["cli", "config"]);
        let forbidden: Vec<_> = layers
            .filter(|layer| *layer != source.layer && !allowed.contains(layer))
            .collect();
        for prefix in ["crate::", "ajet_swarm::"] {
            for name in names_after(&source.code, prefix) {
                if forbidden.contains(&name) {
                    wrong.push(format!("{} imports {name}", source.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn config_imports_nothing_of_ours() {
    for source in sources().iter().filter(|source| source.layer == "config") {
        let names = names_after(&source.code, "crate::");
        assert!(
            names.iter().all(|name| *name == "config"),
            "{}: {names:?}",
            source.path.display()
        );
    }
}

#[test]
fn candle_is_named_only_where_tensors_are() {
    for source in sources()
        .iter()
        .filter(|source| !USE_CANDLE.contains(&source.layer.as_str()))
    {
        for name in ["candle_core", "candle_nn"] {
            assert!(!source.code.contains(name), "{} names {name}", source.path.display());
        }
    }
}

#[test]
fn minijinja_is_named_only_where_its_limits_are_set() {
    for source in sources().iter().filter(|source| source.layer != "jinja") {
        assert!(
            !source.code.contains("minijinja"),
            "{} names minijinja",
            source.path.display()
        );
    }
}

// The compiler denies `unsafe` (Cargo.toml) except where this attribute allows it again.
#[test]
fn only_kernels_allow_unsafe_code() {
    let allowing = |source: &&Source| source.code.contains("unsafe_code");
    let found: Vec<PathBuf> = sources()
        .iter()
        .filter(allowing)
        .map(|source| source.path.clone())
        .collect();
    assert_eq!(found, [Path::new("model/kernels/mod.rs")]);
}

#[test]
fn names_are_found_in_every_form_of_import() {
    let code =
        "use crate::model::ops;\nuse crate::{config::Ajet, train::{loss, adamw}, timeline};\ncrate::roll::run();";
    assert_eq!(
        names_after(code, "crate::"),
        ["model", "config", "train", "timeline", "roll"]
    );
}
