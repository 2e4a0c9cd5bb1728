//! The archive of training code: the same bytes for the same files, whenever and wherever it is made.

use std::io::{Cursor, Write};

use bytes::Bytes;
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use super::sources::{Sources, SourcesError};
use crate::config::small_file::read_bytes;
use crate::protocol::training_code::ARCHIVE_BYTES;

/// Packs the files of a checkout, without times and modes.
///
/// # Errors
/// A file cannot be read, or all of them are too large.
pub fn pack(sources: &Sources) -> Result<Bytes, SourcesError> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .unix_permissions(0o644);
    let mut total = 0;
    for file in &sources.files {
        let path = sources.root.join(file);
        let failed = |reason: String| SourcesError::File {
            path: path.clone(),
            reason,
        };
        let bytes = read_bytes(&path, ARCHIVE_BYTES).map_err(|error| failed(error.to_string()))?;
        total += bytes.len() as u64;
        if total > ARCHIVE_BYTES {
            return Err(SourcesError::TooLarge(sources.root.clone()));
        }
        zip.start_file(Sources::archived(file), options)
            .map_err(|error| failed(error.to_string()))?;
        zip.write_all(&bytes).map_err(|error| failed(error.to_string()))?;
    }
    let archive = zip.finish().map_err(|error| SourcesError::File {
        path: sources.root.clone(),
        reason: error.to_string(),
    })?;
    Ok(archive.into_inner().into())
}
