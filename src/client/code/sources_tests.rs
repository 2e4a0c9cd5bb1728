//! Checkouts of several layouts.

use super::*;
use crate::client::code::pack;

/// A work tree with these files, of which `tracked` are in git's index.
fn checkout(prefix: &str, files: &[&str], tracked: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(prefix).join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = match *file {
            "Cargo.toml" => "[package]\nname = \"ajet-swarm\"\n",
            ".gitignore" => "target\n*.tmp\n",
            file => file,
        };
        std::fs::write(path, text).unwrap();
    }
    git(dir.path(), &["init", "-q"]);
    for file in tracked {
        git(&dir.path().join(prefix), &["add", file]);
    }
    dir
}

fn git(dir: &Path, args: &[&str]) {
    let status = Command::new("git").arg("-C").arg(dir).args(args).status();
    assert!(status.unwrap().success(), "{args:?}");
}

fn names(sources: &Sources) -> Vec<String> {
    let archive = std::io::Cursor::new(pack(sources).unwrap());
    let zip = zip::ZipArchive::new(archive).unwrap();
    zip.file_names().map(|name| name.unwrap().into_owned()).collect()
}

const FILES: [&str; 6] = [
    "Cargo.toml",
    ".gitignore",
    "src/main.rs",
    "src/new.rs",
    "notes.tmp",
    "target/built",
];

#[test]
fn tracked_files_are_sent_and_untracked_ones_named_whatever_the_layout() {
    for prefix in ["", "ajet", "deep/er"] {
        let dir = checkout(prefix, &FILES, &["Cargo.toml", ".gitignore", "src/main.rs"]);
        let root = dir.path().join(prefix).canonicalize().unwrap();
        let asked: &[&str] = match prefix {
            "" => &["", "src"],
            "ajet" => &["", "ajet", "ajet/src"],
            _ => &["deep/er", "deep/er/src"],
        };
        for asked in asked {
            let sources = Sources::find(&dir.path().join(asked)).unwrap();
            assert_eq!(sources.root, root, "{prefix:?} {asked:?}");
            assert_eq!(sources.left_out, ["src/new.rs"]);
            assert_eq!(
                names(&sources),
                ["ajet/.gitignore", "ajet/Cargo.toml", "ajet/src/main.rs"]
            );
        }
    }
}

/// Seen: more than a thousand lines about the files of experiments.
#[test]
fn a_directory_that_is_not_sent_is_named_once_and_one_of_experiments_not_at_all() {
    let files = [
        "Cargo.toml",
        "notes/one",
        "notes/two",
        "examples/a.yaml",
        "examples/saved_experiments/a/x",
        "saved_experiments/b/y",
    ];
    let dir = checkout("", &files, &["Cargo.toml", "examples/a.yaml"]);
    assert_eq!(Sources::find(dir.path()).unwrap().left_out, ["notes/"]);
}

#[test]
fn the_work_tree_counts_and_not_the_last_commit() {
    let dir = checkout("", &FILES, &["Cargo.toml", "src/main.rs", "src/new.rs"]);
    let before = pack(&Sources::find(dir.path()).unwrap()).unwrap();
    assert_eq!(
        pack(&Sources::find(dir.path()).unwrap()).unwrap(),
        before,
        "the same bytes"
    );
    std::fs::write(dir.path().join("src/main.rs"), "changed").unwrap();
    std::fs::remove_file(dir.path().join("src/new.rs")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("src/link.rs")).unwrap();
    git(dir.path(), &["add", "src/link.rs"]);
    let sources = Sources::find(dir.path()).unwrap();
    assert_eq!(sources.left_out, [".gitignore", "src/link.rs"]);
    let archive = pack(&sources).unwrap();
    assert!(archive.windows(7).any(|bytes| bytes == b"changed"));
    assert_eq!(names(&sources), ["ajet/Cargo.toml", "ajet/src/main.rs"]);
    std::fs::write(dir.path().join("src/main.rs"), "src/main.rs").unwrap();
    std::fs::write(dir.path().join("src/new.rs"), "src/new.rs").unwrap();
    assert_eq!(
        pack(&Sources::find(dir.path()).unwrap()).unwrap(),
        before,
        "the same files"
    );
}

#[test]
fn what_is_no_checkout_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let says = |path: &Path, what: &str| {
        let error = Sources::find(path).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    says(dir.path(), "no sources of ajet-swarm");
    says(&dir.path().join("none"), "no sources of ajet-swarm");
    std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"ajet-swarm\"\n").unwrap();
    // The temporary directory may itself lie in a work tree; then git answers for it.
    if let Err(error) = Sources::find(dir.path()) {
        assert!(error.to_string().contains("with git"), "{error}");
    }
}
