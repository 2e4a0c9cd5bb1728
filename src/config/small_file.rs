//! Files that are read whole: settings, templates, scripts, tasks.
//!
//! Only regular files are read, and no more of one than its limit: a device such as `/dev/zero` has no end, and a named
//! pipe without a writer blocks its reader. A file named on the command line may also be a pipe, such as `<(…)` and
//! `/dev/stdin`; reading it waits for its writer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Maximum bytes of a job, a configuration or another small document.
pub const DOCUMENT_BYTES: u64 = 64 << 20;
/// Maximum bytes of a tokenizer or an index of weights.
pub const TABLE_BYTES: u64 = 512 << 20;
/// Maximum bytes of a file of tasks.
pub const DATASET_BYTES: u64 = 8 << 30;

/// Opens a regular file for reading; never waits.
///
/// # Errors
/// Fails if it cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path)
}

/// Opens a regular file as the options say; never waits.
///
/// # Errors
/// As of [`open_regular`].
pub fn open_regular_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe waits for its other end. Regular files ignore it.
    let file = options.custom_flags(O_NONBLOCK).open(path)?;
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
        format!("it is {what}; only regular files are used"),
    ))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As of [`open_regular`]; the file is larger.
pub fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_up_to(open_regular(path)?, limit)
}

/// Reads what the user named on the command line, a file or a pipe, to its end, of at most `limit` bytes.
///
/// # Errors
/// Fails if it cannot be read, or is larger.
pub fn read_given_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_up_to(File::open(path)?, limit)
}

fn read_up_to(file: File, limit: u64) -> io::Result<Vec<u8>> {
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
    text(read_bytes(path, limit)?)
}

/// Reads UTF-8 text as [`read_given_bytes`], without a byte order mark.
///
/// # Errors
/// As of [`read_given_bytes`]; it is not UTF-8.
pub fn read_given_text(path: &Path, limit: u64) -> io::Result<String> {
    text(read_given_bytes(path, limit)?)
}

fn text(mut bytes: Vec<u8>) -> io::Result<String> {
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

    #[test]
    fn what_a_user_names_may_be_a_pipe_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for (written, limit, read) in [
            ("", 5, Ok("")),
            ("12345", 5, Ok("12345")),
            ("\u{feff}a: 1", 100, Ok("a: 1")),
            ("123456", 5, Err("more than 5 bytes")),
        ] {
            let got = std::thread::scope(|scope| {
                scope.spawn(|| std::fs::write(&pipe, written));
                read_given_text(&pipe, limit).map_err(|error| error.to_string())
            });
            match read {
                Ok(text) => assert_eq!(got.as_deref(), Ok(text)),
                Err(said) => assert!(got.as_ref().is_err_and(|error| error.contains(said)), "{got:?}"),
            }
        }
        let endless = read_given_text(Path::new("/dev/zero"), 1000).unwrap_err();
        assert!(endless.to_string().contains("more than 1000 bytes"), "{endless}");
        read_given_text(dir.path(), 5).unwrap_err();
    }
}
