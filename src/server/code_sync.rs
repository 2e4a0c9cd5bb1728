//! Snapshots of training code that clients upload: each is unpacked into its own directory and never run.
//!
//! Archives are untrusted: no entry may leave the directory, be a link, or exceed the limits, whatever sizes the
//! archive declares. An archive is unpacked to a temporary directory and then renamed, so a snapshot is stored whole or
//! not at all.

mod zip_directory;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use flate2::read::DeflateDecoder;

use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use zip_directory::{Archive, Entry};

/// Maximum size of an archive.
pub const ARCHIVE_BYTES: u64 = 1024 * 1024 * 1024;
/// Maximum total size of an archive's unpacked files.
const UNPACKED_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Maximum number of entries in an archive.
const ENTRIES: u64 = 50_000;
/// Maximum length of an entry's path, in bytes.
const PATH_BYTES: usize = 1024;
/// Number of snapshots kept; older ones are removed.
const KEPT: usize = 3;

/// Supported compression methods.
const STORED: u16 = 0;
const DEFLATE: u16 = 8;
/// File-type bits of a Unix mode, and the allowed types.
const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// Reasons to refuse an archive.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The body is not a readable zip archive.
    #[error("cannot read the request body as a zip archive: {0}; hint: send a zip file as the raw request body")]
    Archive(String),
    /// The archive has no entries.
    #[error("the zip archive contains no files")]
    Empty,
    /// The path is absolute, contains `..`, or is not a valid path.
    #[error("zip entry {0:?} is not a plain relative path")]
    Path(String),
    /// The entry is a link, a device or a pipe.
    #[error("zip entry {0:?} is neither a file nor a directory")]
    Kind(String),
    /// Two entries have the same path, or one lies below a file.
    #[error("duplicate zip entry {0:?}")]
    Duplicate(String),
    /// The entry is encrypted, or its compression method is not deflate.
    #[error("zip entry {0:?} is encrypted or not compressed with deflate")]
    Method(String),
    /// The entry's data do not match its header.
    #[error("zip entry {path:?} is damaged: {reason}")]
    Damaged {
        /// Path of the entry.
        path: String,
        /// Reason.
        reason: String,
    },
    /// Too many entries.
    #[error("the zip archive has {0} entries; the maximum is {ENTRIES}")]
    TooMany(u64),
    /// The unpacked files are too large.
    #[error("the zip archive unpacks to more than the maximum of {UNPACKED_BYTES} bytes")]
    TooLarge,
    /// Reading or writing the disk failed.
    #[error("cannot store the snapshot: {0}")]
    Io(#[from] io::Error),
}

/// A stored snapshot.
#[derive(Debug)]
pub struct Snapshot {
    dir: PathBuf,
    files: usize,
    bytes: u64,
}

impl Snapshot {
    /// Returns the code directory reported to clients: `ajet` inside the snapshot if it exists (the layout of Python's
    /// servers), otherwise the snapshot.
    pub fn code_path(&self) -> PathBuf {
        let ajet = self.dir.join("ajet");
        if ajet.is_dir() { ajet } else { self.dir.clone() }
    }

    /// Describes what was stored and what the client must do to use it.
    pub fn message(&self) -> String {
        let dir = self.dir.display();
        let advice = match self.is_engine() {
            true => format!(
                "this is an ajet-swarm crate; hint: build it there (cargo build --release) and start a server \
                 with --engine={dir}/target/release/ajet-swarm"
            ),
            false => "this server trains with its built-in engine and the synced training configuration".into(),
        };
        format!(
            "stored {} files ({} bytes) in {dir}; nothing there is built or run: {advice}",
            self.files, self.bytes
        )
    }

    fn is_engine(&self) -> bool {
        let manifest = read_text(&self.dir.join("Cargo.toml"), DOCUMENT_BYTES).unwrap_or_default();
        manifest
            .lines()
            .any(|line| line.replace(' ', "") == "name=\"ajet-swarm\"")
    }
}

/// Unpacks an archive into a new directory below `root`.
///
/// # Errors
///
/// Fails if the archive is invalid or the disk fails; nothing is left behind then.
pub fn store(archive: &File, root: &Path) -> Result<Snapshot, CodeError> {
    let mut archive = Archive::open(archive).map_err(CodeError::Archive)?;
    if archive.entries_left() > ENTRIES {
        return Err(CodeError::TooMany(archive.entries_left()));
    }
    fs::create_dir_all(root)?;
    let run_blocking = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(root)?;
    let (files, bytes) = unpack(&mut archive, run_blocking.path())?;
    if files == 0 {
        return Err(CodeError::Empty);
    }
    let dir = std::path::absolute(root)?.join(name()?);
    fs::rename(run_blocking.keep(), &dir)?;
    remove_old(root);
    Ok(Snapshot { dir, files, bytes })
}

/// Returns a directory name that sorts by time.
fn name() -> io::Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_err(io::Error::other)?;
    Ok(format!("{:012}-{:09}", now.as_secs(), now.subsec_nanos()))
}

fn unpack(archive: &mut Archive, dir: &Path) -> Result<(usize, u64), CodeError> {
    let mut made = BTreeSet::new();
    let (mut files, mut total, mut packed_total) = (0, 0, 0_u64);
    while let Some(entry) = archive.next_entry().map_err(CodeError::Archive)? {
        let Entry {
            name,
            size,
            method,
            packed,
            ..
        } = &entry;
        let path = safe_path(name)?;
        if is_dir(name, entry.mode)? {
            fs::create_dir_all(dir.join(&path)).map_err(|error| creation_error(name, error))?;
            continue;
        }
        if !made.insert(path.clone()) {
            return Err(CodeError::Duplicate(name.clone()));
        }
        if entry.encrypted || ![STORED, DEFLATE].contains(method) {
            return Err(CodeError::Method(name.clone()));
        }
        let damaged = |reason: String| CodeError::Damaged {
            path: name.clone(),
            reason,
        };
        // Overlapping entries could decompress the same bytes many times (a zip bomb).
        packed_total = packed_total.saturating_add(*packed);
        if packed_total > archive.size() {
            return Err(damaged("it overlaps with another entry".into()));
        }
        let target = dir.join(&path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|error| creation_error(name, error))?;
        }
        let mut file = File::create_new(&target).map_err(|error| creation_error(name, error))?;
        let part = archive.packed(&entry).map_err(damaged)?;
        let reader: Box<dyn Read> = match *method {
            STORED => Box::new(part),
            _ => Box::new(DeflateDecoder::new(part)),
        };
        // One byte more than allowed, so that an excess is noticed whatever size the archive declares.
        let mut reader = flate2::CrcReader::new(reader.take(UNPACKED_BYTES - total + 1));
        let written = io::copy(&mut reader, &mut file).map_err(|error| damaged(error.to_string()))?;
        total += written;
        if total > UNPACKED_BYTES {
            return Err(CodeError::TooLarge);
        }
        if written != *size || reader.crc().sum() != entry.crc32 {
            return Err(damaged("size or checksum does not match".into()));
        }
        files += 1;
    }
    Ok((files, total))
}

/// Maps the error of creating an entry: either its path already exists or the disk failed.
fn creation_error(name: &str, error: io::Error) -> CodeError {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            CodeError::Duplicate(name.to_owned())
        }
        _ => CodeError::Io(error),
    }
}

/// Returns the path if it can only lead below its base directory.
fn safe_path(name: &str) -> Result<PathBuf, CodeError> {
    let path = Path::new(name);
    let plain = |component: Component| matches!(component, Component::Normal(_) | Component::CurDir);
    let relative: PathBuf = path
        .components()
        .filter(|component| *component != Component::CurDir)
        .collect();
    let safe = path.components().all(plain)
        && !name.contains(['\\', '\0', ':'])
        && name.len() <= PATH_BYTES
        && !relative.as_os_str().is_empty();
    match safe {
        true => Ok(relative),
        false => Err(CodeError::Path(name.to_owned())),
    }
}

fn is_dir(name: &str, mode: Option<u32>) -> Result<bool, CodeError> {
    match mode.map_or(0, |mode| mode & TYPE_MASK) {
        DIRECTORY => Ok(true),
        // Archives made on other systems have no file type.
        0 => Ok(name.ends_with('/')),
        REGULAR if !name.ends_with('/') => Ok(false),
        _ => Err(CodeError::Kind(name.to_owned())),
    }
}

/// Removes all but the newest snapshots.
fn remove_old(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut snapshots: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    snapshots.sort();
    for old in snapshots.iter().rev().skip(KEPT) {
        if let Err(error) = fs::remove_dir_all(old) {
            tracing::warn!("cannot remove the old snapshot {}: {error}", old.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use zip::CompressionMethod;
    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// An archive of files, each with its mode.
    fn zipped(entries: &[(&str, u32, &str)]) -> File {
        let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
        for (name, mode, text) in entries {
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .unix_permissions(*mode);
            zip.start_file(*name, options).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap()
    }

    fn raw(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn files_are_unpacked_whole_into_a_directory_of_their_own_and_the_last_three_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let mut dirs = vec![];
        for number in 0..5 {
            let text = number.to_string();
            let archive = zipped(&[("ajet/a.py", 0o644, &text), ("ajet/./deep/er/b.py", 0o755, "b")]);
            let snapshot = store(&archive, root.path()).unwrap();
            assert_eq!(fs::read_to_string(snapshot.code_path().join("a.py")).unwrap(), text);
            assert_eq!(fs::read_to_string(snapshot.dir.join("ajet/deep/er/b.py")).unwrap(), "b");
            assert!(
                snapshot.message().starts_with("stored 2 files (2 bytes) in /"),
                "{}",
                snapshot.message()
            );
            assert!(
                snapshot.message().contains("nothing there is built or run"),
                "{}",
                snapshot.message()
            );
            dirs.push(snapshot.dir);
        }
        assert_eq!(dirs.iter().filter(|dir| dir.exists()).count(), KEPT);
        assert!(dirs[4].exists());
    }

    #[test]
    fn an_engines_crate_is_recognised_and_told_how_to_use() {
        let root = tempfile::tempdir().unwrap();
        let archive = zipped(&[("Cargo.toml", 0o644, "[package]\nname = \"ajet-swarm\"\n")]);
        let snapshot = store(&archive, root.path()).unwrap();
        assert!(snapshot.message().contains("--engine="), "{}", snapshot.message());
        assert_eq!(snapshot.code_path(), snapshot.dir);
    }

    #[test]
    fn what_leads_elsewhere_or_is_no_file_is_refused_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let good = ("ajet/a.py", 0o644, "a");
        for (entries, said) in [
            (vec![good, ("../evil", 0o644, "")], "plain relative path"),
            (vec![good, ("ajet/../../evil", 0o644, "")], "plain relative path"),
            (vec![good, ("/etc/evil", 0o644, "")], "plain relative path"),
            (vec![good, ("C:\\evil", 0o644, "")], "plain relative path"),
            (vec![good, ("..\\evil", 0o644, "")], "plain relative path"),
            (vec![good, ("ajet/./a.py", 0o644, "")], "duplicate zip entry"),
            (vec![good, ("ajet/a.py/below", 0o644, "")], "duplicate zip entry"),
            (vec![], "no files"),
        ] {
            let error = store(&zipped(&entries), root.path()).unwrap_err().to_string();
            assert!(error.contains(said), "{entries:?}: {error}");
        }
        let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
        zip.add_symlink("ajet/link", "/etc/passwd", SimpleFileOptions::default())
            .unwrap();
        let error = store(&zip.finish().unwrap(), root.path()).unwrap_err().to_string();
        assert!(error.contains("neither a file nor a directory"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_is_no_zip_or_a_damaged_one_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for bytes in [&b""[..], b"PK", b"not a zip at all", &[0; 4096]] {
            let error = store(&raw(bytes), root.path()).unwrap_err().to_string();
            assert!(error.contains("as a zip archive"), "{error}");
        }
        let mut bytes = Vec::new();
        let mut file = zipped(&[("ajet/a.py", 0o644, "some text that is changed")]);
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let at = bytes.windows(4).position(|window| window == b"some").unwrap();
        bytes[at] = b'S';
        let error = store(&raw(&bytes), root.path()).unwrap_err().to_string();
        assert!(error.contains("checksum"), "{error}");
        for cut in 0..bytes.len() {
            store(&raw(&bytes[..cut]), root.path()).unwrap_err();
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0xff;
            let _ = store(&raw(&flipped), root.path()); // it may be refused, it must not panic
        }
    }

    /// Deflated by hand, since the archive's own size is then ours to say.
    fn deflated(name: &str, data: &[u8], claimed_size: u32) -> File {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        let packed = encoder.finish().unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let head = |out: &mut Vec<u8>| {
            out.extend(20_u16.to_le_bytes()); // version needed
            out.extend(0_u16.to_le_bytes()); // flags
            out.extend(8_u16.to_le_bytes()); // deflate
            out.extend([0; 4]); // time
            out.extend(crc.sum().to_le_bytes());
            out.extend((packed.len() as u32).to_le_bytes());
            out.extend(claimed_size.to_le_bytes());
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(0_u16.to_le_bytes()); // extra
        };
        let mut out = b"PK\x03\x04".to_vec();
        head(&mut out);
        out.extend(name.as_bytes());
        out.extend(&packed);
        let directory = out.len() as u32;
        out.extend(b"PK\x01\x02");
        out.extend(20_u16.to_le_bytes()); // made by
        head(&mut out);
        out.extend([0; 14]); // comment, disk, attributes, offset
        out.extend(name.as_bytes());
        let length = out.len() as u32 - directory;
        out.extend(b"PK\x05\x06");
        out.extend([0; 4]);
        out.extend([1, 0, 1, 0]);
        out.extend(length.to_le_bytes());
        out.extend(directory.to_le_bytes());
        out.extend([0; 2]);
        raw(&out)
    }

    #[test]
    fn deflated_entries_are_unpacked_and_one_that_lies_about_its_size_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let data = b"print('hello')\n".repeat(1000);
        let snapshot = store(&deflated("ajet/a.py", &data, data.len() as u32), root.path()).unwrap();
        assert_eq!(fs::read(snapshot.dir.join("ajet/a.py")).unwrap(), data);
        let error = store(&deflated("ajet/a.py", &data, 10), root.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    /// An archive whose directory has `listed` entries, all of one stored file, and whose end record says `said`.
    fn repeated(listed: u64, said: u64, wide: bool) -> File {
        let name = b"ajet/a.py";
        let header = |magic: &[u8], middle: &[u8], tail: usize| {
            let mut out = magic.to_vec();
            out.extend(middle);
            out.extend([0; 8]); // flags, method, time
            out.extend([0; 12]); // checksum and sizes of nothing
            out.extend((name.len() as u16).to_le_bytes());
            out.extend([0; 2]);
            out.extend(vec![0; tail]);
            out.extend(name);
            out
        };
        let mut bytes = header(b"PK\x03\x04", &[20, 0], 0);
        let start = bytes.len() as u64;
        let entry = header(b"PK\x01\x02", &[20, 0, 20, 0], 14);
        (0..listed).for_each(|_| bytes.extend(&entry));
        let (length, end) = (bytes.len() as u64 - start, bytes.len() as u64);
        if wide {
            bytes.extend(b"PK\x06\x06");
            bytes.extend(44_u64.to_le_bytes());
            bytes.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            [said, said, length, start]
                .iter()
                .for_each(|field| bytes.extend(field.to_le_bytes()));
            bytes.extend(b"PK\x06\x07\0\0\0\0");
            bytes.extend(end.to_le_bytes());
            bytes.extend([1, 0, 0, 0]);
        }
        let short = if wide { u16::MAX } else { said as u16 };
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend(short.to_le_bytes());
        bytes.extend(short.to_le_bytes());
        bytes.extend((length as u32).to_le_bytes());
        bytes.extend((start as u32).to_le_bytes());
        bytes.extend([0; 2]);
        raw(&bytes)
    }

    /// Seen with an archive of 205 MB whose 4 million entries were read before they were counted.
    #[test]
    fn too_many_entries_are_refused_by_the_end_record() {
        let root = tempfile::tempdir().unwrap();
        for (listed, said, wide, expected) in [
            (
                1,
                50_001,
                false,
                "the zip archive has 50001 entries; the maximum is 50000",
            ),
            (
                1,
                4_000_000,
                true,
                "the zip archive has 4000000 entries; the maximum is 50000",
            ),
            (
                1,
                u64::MAX,
                true,
                "the zip archive has 18446744073709551615 entries; the maximum is 50000",
            ),
            (
                1,
                50_000,
                false,
                "the central directory has fewer entries than declared",
            ),
            (60_000, 2, true, "duplicate zip entry \"ajet/a.py\""),
            (1, 2, false, "the central directory has fewer entries than declared"),
        ] {
            let error = store(&repeated(listed, said, wide), root.path())
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        for wide in [false, true] {
            let snapshot = store(&repeated(1, 1, wide), root.path()).unwrap();
            assert_eq!(fs::read(snapshot.dir.join("ajet/a.py")).unwrap(), b"");
        }
    }

    #[test]
    fn entries_that_share_bytes_are_refused() {
        let mut bytes = Vec::new();
        let mut file = zipped(&[("a", 0o644, "some text"), ("b", 0o644, "some text")]);
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let central: Vec<usize> = (0..bytes.len() - 4)
            .filter(|at| bytes[*at..].starts_with(b"PK\x01\x02"))
            .collect();
        let whole = bytes.len() as u32;
        for at in &central {
            bytes[at + 20..at + 24].copy_from_slice(&(whole - 60).to_le_bytes()); // bytes in the archive
        }
        let root = tempfile::tempdir().unwrap();
        let error = store(&raw(&bytes), root.path()).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
    }
}
