//! Unpacks the archives that clients upload.
//!
//! Archives are untrusted: no entry may leave the directory, be a link, or exceed the limits, whatever sizes the
//! archive declares.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use flate2::read::DeflateDecoder;

use super::error::{CodeError, ENTRIES, RATIO, UNPACKED_BYTES};
use super::zip_directory::{Archive, Entry};
use crate::protocol::training_code::TOP;

/// Maximum length of an entry's path, in bytes.
const PATH_BYTES: usize = 1024;
/// Size up to which an entry may be compressed at any ratio.
const ANY_RATIO: u64 = 1024 * 1024;

/// Supported compression methods.
const STORED: u16 = 0;
const DEFLATE: u16 = 8;
/// File-type bits of a Unix mode, and the allowed types.
const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// What an archive unpacked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Number of files.
    pub files: u64,
    /// Their total size in bytes.
    pub bytes: u64,
}

/// Unpacks an archive into a directory.
///
/// # Errors
///
/// Fails if the archive is invalid or the disk fails; the directory may then hold part of it.
pub fn unpack(archive: &File, dir: &Path) -> Result<Contents, CodeError> {
    let mut archive = Archive::open(archive).map_err(CodeError::Archive)?;
    if archive.entries_left() > ENTRIES {
        return Err(CodeError::TooMany(archive.entries_left()));
    }
    let contents = unpack_entries(&mut archive, dir)?;
    match contents.files {
        0 => Err(CodeError::Empty),
        _ => Ok(contents),
    }
}

fn unpack_entries(archive: &mut Archive, dir: &Path) -> Result<Contents, CodeError> {
    let (mut made, mut spellings) = (BTreeSet::new(), Spellings::default());
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
        spellings.check(&path)?;
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
        check_ratio(&entry)?;
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
    Ok(Contents { files, bytes: total })
}

/// Refuses a large entry that is compressed as no source is.
fn check_ratio(entry: &Entry) -> Result<(), CodeError> {
    let ratio = entry.size / entry.packed.max(1);
    match entry.size > ANY_RATIO && ratio > RATIO {
        true => Err(CodeError::Ratio {
            path: entry.name.clone(),
            ratio,
        }),
        false => Ok(()),
    }
}

/// The spelling of every path and folder so far, by its lower-case form.
#[derive(Default)]
struct Spellings(BTreeMap<String, PathBuf>);

impl Spellings {
    /// Refuses a path of which a part was spelled otherwise before.
    fn check(&mut self, path: &Path) -> Result<(), CodeError> {
        for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            let folded = part.to_string_lossy().to_lowercase();
            let before = self.0.entry(folded).or_insert_with(|| part.to_owned());
            if before != part {
                let spelled = |path: &Path| path.to_string_lossy().into_owned();
                return Err(CodeError::Case(spelled(before), spelled(part)));
            }
        }
        Ok(())
    }
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
        && !name.contains(['\\', ':', char::REPLACEMENT_CHARACTER])
        && !name.contains(char::is_control)
        && name.len() <= PATH_BYTES
        && !relative.as_os_str().is_empty();
    match safe {
        true if relative.starts_with(TOP) => Ok(relative),
        true => Err(CodeError::Outside(name.to_owned())),
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

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
