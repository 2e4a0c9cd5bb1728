//! SHA-256 of files and bytes, and hexadecimal text.

use std::io::{self, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::small_file::open_regular;

/// Returns the SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the SHA-256 of a regular file of any size.
///
/// # Errors
/// Fails if the file cannot be read, or is no regular file.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut hasher = Hasher(Sha256::new());
    let mut file = io::BufReader::with_capacity(1 << 20, open_regular(path)?);
    io::copy(&mut file, &mut hasher)?;
    Ok(hex(&hasher.0.finalize()))
}

/// Hashes what is written to it.
struct Hasher(Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_bytes_have_the_same_sum() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), abc);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(sha256_of_file(&path).unwrap(), abc);
        let large = vec![7; 3 << 20];
        std::fs::write(&path, &large).unwrap();
        assert_eq!(sha256_of_file(&path).unwrap(), sha256(&large));
        assert!(sha256_of_file(dir.path()).is_err());
    }
}
