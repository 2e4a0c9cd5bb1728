//! Opening text files, compressed ones by their extension.

use std::io::{BufRead, BufReader};
use std::path::Path;

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;

use super::TaskError;
use crate::config::small_file::open_regular;

/// Bytes read at once.
const BUFFER: usize = 128 << 10;

/// Maximum memory for unpacking `.xz`, in KiB: four times what `xz -9` needs. Files say how much they take.
const XZ_KIB: u32 = 256 << 10;

/// Extensions of compressions that are not read.
const UNKNOWN: [&str; 5] = ["lz4", "zip", "7z", "rar", "tar"];

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
        "xz" => {
            let decoder = XzReader::new_mem_limit(file, true, XZ_KIB);
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
        "zst" | "zstd" => {
            let decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(fail)?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
        other if UNKNOWN.contains(&other) => {
            let reason = format!("compression .{other} is not supported; .gz, .zst, .bz2 and .xz are");
            return Err(fail(std::io::Error::new(std::io::ErrorKind::Unsupported, reason)));
        }
        _ => Box::new(file),
    })
}
