//! Opening text files, compressed ones by their extension.

use std::io::{BufRead, BufReader};
use std::path::Path;

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;

use super::TaskError;
use crate::config::small_file::open_regular;

/// Bytes read at once.
const BUFFER: usize = 128 << 10;

/// Extensions of compressions that are not read.
const UNKNOWN: [&str; 6] = ["xz", "lz4", "zip", "7z", "rar", "tar"];

/// The text of a file, decompressed on the way.
pub fn text(path: &Path) -> Result<Box<dyn BufRead>, TaskError> {
    let fail = |reason| TaskError::File {
        path: path.to_path_buf(),
        reason,
    };
    let file = BufReader::with_capacity(BUFFER, open_regular(path).map_err(fail)?);
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    Ok(match extension.as_str() {
        "gz" | "gzip" => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
        "bz2" => Box::new(BufReader::with_capacity(BUFFER, MultiBzDecoder::new(file))),
        "zst" | "zstd" => {
            let decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(fail)?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
        other if UNKNOWN.contains(&other) => {
            let reason = format!("compression .{other} is not supported; .gz, .zst and .bz2 are");
            return Err(fail(std::io::Error::new(std::io::ErrorKind::Unsupported, reason)));
        }
        _ => Box::new(file),
    })
}
