//! Reasons why training code is not stored or not run.

use std::io;
use std::time::Duration;

/// Maximum number of entries in an archive.
pub const ENTRIES: u64 = 50_000;
/// Maximum total size of an archive's unpacked files.
pub const UNPACKED_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Maximum ratio of an entry's unpacked to its compressed size; sources compress to a tenth.
pub const RATIO: u64 = 200;

/// Reasons to refuse a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// The body is not a readable zip archive.
    #[error("cannot read the request body as a zip archive: {0}; hint: send a zip file as the raw request body")]
    Archive(String),
    /// The archive has no entries.
    #[error("the zip archive contains no files")]
    Empty,
    /// The path is absolute, contains `..` or control characters, or is too long.
    #[error("zip entry {0:?} is not a plain relative path")]
    Path(String),
    /// The path leads elsewhere than the top folder that the protocol names.
    #[error("zip entry {0:?} lies outside of the top folder ajet/")]
    Outside(String),
    /// The entry is a link, a device or a pipe.
    #[error("zip entry {0:?} is neither a file nor a directory")]
    Kind(String),
    /// Two entries have the same path, or one lies below a file.
    #[error("duplicate zip entry {0:?}")]
    Duplicate(String),
    /// Two paths would be one where names have no case.
    #[error("the paths {0:?} and {1:?} of the zip archive differ only in upper and lower case")]
    Case(String, String),
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
    /// The entry is compressed as no source is.
    #[error("zip entry {path:?} unpacks to {ratio} times its compressed size; the maximum is {RATIO}")]
    Ratio {
        /// Path of the entry.
        path: String,
        /// Unpacked size divided by the compressed one.
        ratio: u64,
    },
    /// Too many entries.
    #[error("the zip archive has {0} entries; the maximum is {ENTRIES}")]
    TooMany(u64),
    /// The unpacked files are too large.
    #[error("the zip archive unpacks to more than the maximum of {UNPACKED_BYTES} bytes")]
    TooLarge,
    /// The files are not an engine that can be built here.
    #[error(
        "this server cannot run the snapshot: {0}; hint: send the sources of ajet-swarm with `ajet-swarm sync-code`"
    )]
    NotAnEngine(String),
    /// Nothing here builds Rust code.
    #[error(
        "this server cannot build the snapshot: {0}; hint: install Rust (https://rustup.rs) on the server's machine and \
         start the server with cargo in its PATH"
    )]
    NoCargo(String),
    /// Reading or writing the disk failed.
    #[error("cannot store the snapshot: {0}")]
    Io(#[from] io::Error),
}

/// Reasons why the engine of a snapshot could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// cargo cannot be run.
    #[error("cannot run cargo: {0}")]
    Cargo(io::Error),
    /// The compiler, or cargo, reported an error.
    #[error("the synced training code does not compile: {0}")]
    Compile(String),
    /// The time is over.
    #[error(
        "the build of the synced training code did not finish within {0:?}; hint: start the server with a larger \
         --build-timeout"
    )]
    Timeout(Duration),
    /// cargo built something else.
    #[error("the synced training code builds no program named ajet-swarm")]
    NoProgram,
    /// Reading or writing the disk failed.
    #[error("cannot build the synced training code: {0}")]
    Io(#[from] io::Error),
}
