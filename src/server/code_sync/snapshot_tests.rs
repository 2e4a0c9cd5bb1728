//! Storing snapshots, and a hundred archives that must leave nothing behind.

use super::*;
use crate::server::code_sync::raw_zip::{RawEntry, as_file, engine_entries, raw_zip};

fn store(root: &Path, entries: &[RawEntry]) -> Result<Snapshot, CodeError> {
    Unpacked::new(&as_file(&raw_zip(entries)), root)?.store(root)
}

/// An engine with a file of this text.
fn engine_with(text: &str) -> Vec<RawEntry> {
    let mut entries = engine_entries();
    entries.push(RawEntry::file("ajet/src/a.rs", text));
    entries
}

#[test]
fn a_snapshot_is_stored_whole_selected_and_described() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("code");
    let stored = store(&root, &engine_with("1")).unwrap();
    assert_eq!(fs::read_to_string(stored.code_path().join("src/a.rs")).unwrap(), "1");
    assert_eq!(stored.description.files, 4);
    assert_eq!(stored.description.sha256.len(), 64);
    let pattern = regex::Regex::new(r"^\d{8}_\d{6}_\d{6}$").unwrap();
    assert!(pattern.is_match(&stored.name()), "{}", stored.name());
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&root).unwrap());
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(selected(&root), Some(stored.clone()));
    assert_eq!(list(&root), [stored]);
    select(&root, None).unwrap();
    select(&root, None).unwrap();
    assert_eq!(selected(&root), None);
}

#[test]
fn the_newest_are_kept_and_the_same_archive_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let first = store(root, &engine_with("first")).unwrap();
    fs::write(first.engine(), "built").unwrap();
    store(root, &engine_with("second")).unwrap();
    let again = store(root, &engine_with("first")).unwrap();
    assert_eq!((&again, selected(root).as_ref()), (&first, Some(&first)));
    assert!(again.engine().is_file(), "what was built is used again");
    for number in 0..KEPT + 2 {
        store(root, &engine_with(&number.to_string())).unwrap();
    }
    assert_eq!(list(root).len(), KEPT);
    assert!(!list(root).contains(&first));
    let oldest = list(root)[0].clone();
    select(root, Some(&oldest)).unwrap();
    assert_eq!(selected(root), Some(oldest));
    fs::write(root.join(SELECTED), "../elsewhere").unwrap();
    assert_eq!(selected(root), None);
}

/// Paths that no entry may have.
const PATHS: [(&str, &str); 40] = [
    ("../x", "plain relative"),
    ("..", "plain relative"),
    ("../../../../../../tmp/x", "plain relative"),
    ("ajet/../x", "plain relative"),
    ("ajet/../../x", "plain relative"),
    ("ajet/src/../../../x", "plain relative"),
    ("ajet/..", "plain relative"),
    ("./../x", "plain relative"),
    ("/etc/cron.d/x", "plain relative"),
    ("/ajet/x", "plain relative"),
    ("//ajet/x", "plain relative"),
    ("/", "plain relative"),
    ("", "plain relative"),
    (".", "plain relative"),
    ("./", "plain relative"),
    ("C:/x", "plain relative"),
    ("C:\\x", "plain relative"),
    ("C:x", "plain relative"),
    ("\\\\host\\share\\x", "plain relative"),
    ("..\\x", "plain relative"),
    ("ajet\\..\\..\\x", "plain relative"),
    ("ajet\\x", "plain relative"),
    ("ajet/a:stream", "plain relative"),
    ("ajet/a\0b", "plain relative"),
    ("ajet/a\nb", "plain relative"),
    ("ajet/a\rb", "plain relative"),
    ("ajet/\u{1b}[2Jx", "plain relative"),
    ("ajet/\u{7f}x", "plain relative"),
    ("ajet/\u{9b}x", "plain relative"),
    ("ajet", "duplicate"),
    ("x", "outside of the top folder"),
    ("README.md", "outside of the top folder"),
    ("src/main.rs", "outside of the top folder"),
    ("ajetx/x", "outside of the top folder"),
    ("AJET/x", "outside of the top folder"),
    ("Ajet/src/main.rs", "outside of the top folder"),
    ("ajet-swarm/x", "outside of the top folder"),
    (".cargo/config.toml", "outside of the top folder"),
    ("xajet/ajet/x", "outside of the top folder"),
    ("ajet /x", "outside of the top folder"),
];

/// Entries that collide with one of the engine's own.
const COLLISIONS: [(&str, &str); 12] = [
    ("ajet/Cargo.toml", "duplicate"),
    ("ajet/./Cargo.toml", "duplicate"),
    ("ajet//Cargo.toml", "duplicate"),
    ("./ajet/Cargo.toml", "duplicate"),
    ("ajet/Cargo.toml/x", "duplicate"),
    ("ajet/src/main.rs/x/y", "duplicate"),
    ("ajet/src", "duplicate"),
    ("ajet/cargo.toml", "upper and lower case"),
    ("ajet/CARGO.LOCK", "upper and lower case"),
    ("ajet/SRC/other.rs", "upper and lower case"),
    ("ajet/src/Main.rs", "upper and lower case"),
    ("ajet/Src/x/y/z.rs", "upper and lower case"),
];

/// Types of files other than regular ones and directories, with the other bits of their modes.
const MODES: [u32; 12] = [
    0o120_777, 0o120_644, 0o120_000, 0o020_666, 0o060_660, 0o010_644, 0o140_777, 0o160_000, 0o030_644, 0o050_644,
    0o110_644, 0o170_777,
];

/// A change of a valid entry.
type Change = fn(&mut RawEntry);

/// Headers that lie.
const LIES: [(Change, &str); 16] = [
    (|entry| entry.size = Some(3), "damaged"),
    (|entry| entry.size = Some(u32::MAX - 1), "times its compressed size"),
    (|entry| entry.size = Some(u32::MAX), "times its compressed size"),
    (|entry| entry.packed = Some(u32::MAX - 1), "damaged"),
    (|entry| entry.packed = Some(1), "damaged"),
    (|entry| entry.packed = Some(0), "damaged"),
    (|entry| entry.crc = Some(1), "damaged"),
    (|entry| entry.offset = Some(u32::MAX - 1), "damaged"),
    (|entry| entry.offset = Some(1), "damaged"),
    (|entry| entry.offset = Some(0), "damaged"),
    (|entry| entry.flags = 1, "encrypted"),
    (|entry| entry.method = 12, "not compressed with deflate"),
    (|entry| entry.method = 93, "not compressed with deflate"),
    (|entry| entry.method = 99, "not compressed with deflate"),
    (|entry| entry.name = b"ajet/\xff\xfe".to_vec(), "plain relative"),
    (
        |entry| entry.name = [b"ajet/".as_slice(), &[b'x'; 2000]].concat(),
        "plain relative",
    ),
];

/// Bytes that are no archive, or one of something else.
fn others() -> Vec<(Vec<u8>, &'static str)> {
    let archive = raw_zip(&engine_entries());
    let cut = |bytes: usize| archive[..archive.len() - bytes].to_vec();
    let named = |names: &[&str]| raw_zip(&names.iter().map(|name| RawEntry::file(name, "x")).collect::<Vec<_>>());
    let mut bomb = engine_with(&"\0".repeat(8 << 20));
    bomb.iter_mut().for_each(|entry| entry.method = 8);
    let mut too_many = archive.clone();
    let end = too_many.len() - 22;
    too_many[end + 8..end + 12].copy_from_slice(&[0xfe, 0xff, 0xfe, 0xff]);
    let mut elsewhere = archive.clone();
    elsewhere[end + 16..end + 20].copy_from_slice(&[0xff; 4]);
    let mut foreign = engine_entries();
    foreign[0] = RawEntry::file("ajet/Cargo.toml", "[package]\nname = \"malware\"\n");
    vec![
        (Vec::new(), "as a zip archive"),
        (b"PK".to_vec(), "as a zip archive"),
        (b"not a zip".to_vec(), "as a zip archive"),
        (vec![0; 100_000], "as a zip archive"),
        (b"PK\x05\x06".repeat(1000), "as a zip archive"),
        (cut(1), "as a zip archive"),
        (cut(22), "as a zip archive"),
        (archive[100..].to_vec(), "archive"),
        (elsewhere, "central directory"),
        (raw_zip(&[]), "no files"),
        (named(&["ajet/"]), "neither a file nor a directory"),
        (too_many, "65534 entries"),
        (raw_zip(&bomb), "times its compressed size"),
        (
            named(&["ajet/__init__.py", "ajet/launcher.py"]),
            "only AgentJet's Python package",
        ),
        (named(&["ajet/README.md"]), "no ajet/Cargo.toml"),
        (raw_zip(&foreign), "\"malware\""),
        (raw_zip(&engine_entries()[..1]), "no ajet/Cargo.lock"),
        (raw_zip(&engine_entries()[..2]), "no ajet/src/main.rs"),
        (raw_zip(&engine_entries()[1..]), "no ajet/Cargo.toml"),
        (
            named(&["ajet/Cargo.toml/x", "ajet/Cargo.lock", "ajet/src/main.rs"]),
            "no ajet/Cargo.toml",
        ),
    ]
}

fn hostile() -> Vec<(Vec<u8>, &'static str)> {
    let with = |entry: RawEntry| {
        let mut entries = engine_entries();
        entries.push(entry);
        raw_zip(&entries)
    };
    let named = PATHS.iter().chain(&COLLISIONS);
    let mut all: Vec<_> = named
        .map(|(name, said)| (with(RawEntry::file(name, "x")), *said))
        .collect();
    for mode in MODES {
        let link = RawEntry::file("ajet/link", "/etc/passwd");
        all.push((with(RawEntry { mode, ..link }), "neither a file nor a directory"));
    }
    for (change, said) in LIES {
        let mut entry = RawEntry::file("ajet/src/a.rs", "some text");
        change(&mut entry);
        all.push((with(entry), said));
    }
    all.extend(others());
    all
}

#[test]
fn a_hundred_hostile_archives_are_refused_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("code");
    let hostile = hostile();
    assert!(hostile.len() >= 100, "{}", hostile.len());
    for (number, (bytes, said)) in hostile.into_iter().enumerate() {
        let outcome = Unpacked::new(&as_file(&bytes), &root).map(|_| ());
        let error = outcome.expect_err(&format!("archive {number}, which should be refused for {said:?}"));
        assert!(error.to_string().contains(said), "archive {number}, {said:?}: {error}");
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            0,
            "archive {number} left something"
        );
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "archive {number} led outside"
        );
    }
    store(&root, &engine_entries()).unwrap();
}
