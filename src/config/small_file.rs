//! Files that are read whole: settings, templates, scripts, tasks.
//!
//! Only regular files are read, and no more of one than its limit: a device such as `/dev/zero` has no end, and a named
//! pipe without a writer blocks whoever opens it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Most bytes of a job, a configuration or another small document.
pub const DOCUMENT_BYTES: u64 = 64 << 20;
/// Most bytes of a tokenizer or an index of weights.
pub const TABLE_BYTES: u64 = 512 << 20;
/// Most bytes of a file of tasks.
pub const DATASET_BYTES: u64 = 8 << 30;

/// Opens a regular file for reading; never waits.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe waits for its writer. Regular files ignore it.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    let what = match kind {
        kind if kind.is_file() => return Ok(file),
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "a special file",
    };
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is {what}; only regular files are read"),
    ))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As of [`open_regular`]; the file is larger.
pub fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    // One more than is allowed, since the size that the file system gives may be out of date.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it has more than {limit} bytes, the limit for this file"),
        )),
        false => Ok(bytes),
    }
}

/// Reads a regular UTF-8 file of at most `limit` bytes, without the byte order mark that some editors put before it.
///
/// # Errors
/// As of [`read_bytes`]; the file is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = read_bytes(path, limit)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("it is not UTF-8: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe, link) = (
            dir.path().join("file"),
            dir.path().join("pipe"),
            dir.path().join("link"),
        );
        std::fs::write(&file, "12345").unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert_eq!(read_text(&file, 5).unwrap(), "12345");
        let marked = dir.path().join("marked");
        std::fs::write(&marked, "\u{feff}a: 1\u{feff}").unwrap();
        assert_eq!(read_text(&marked, 100).unwrap(), "a: 1\u{feff}");
        // `/dev/zero` was seen with `builtin:scripted:/dev/zero` and `builtin:random:/dev/zero`, which grew without end.
        for (path, said) in [
            (file.as_path(), "more than 4 bytes"),
            (pipe.as_path(), "a pipe"),
            (link.as_path(), "a device"),
            (dir.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
            (Path::new("/dev/full"), "a device"),
            (Path::new("/dev/tty"), ""),
        ] {
            let error = read_text(path, 4).unwrap_err().to_string();
            assert!(error.contains(said), "{}: {error}", path.display());
        }
        std::fs::write(&file, [0xff]).unwrap();
        assert!(read_text(&file, 4).unwrap_err().to_string().contains("not UTF-8"));
    }
}
