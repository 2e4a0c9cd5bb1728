//! Zip archives of which every field is the test's to choose.

use std::fs::File;
use std::io::Write;

/// An entry of an archive.
#[derive(Clone, Debug)]
pub struct RawEntry {
    pub name: Vec<u8>,
    pub data: Vec<u8>,
    /// Unix mode with the type's bits; 0 for an archive of another system.
    pub mode: u32,
    pub flags: u16,
    pub method: u16,
    /// What the headers say instead of the truth.
    pub size: Option<u32>,
    pub packed: Option<u32>,
    pub crc: Option<u32>,
    pub offset: Option<u32>,
}

impl RawEntry {
    /// A stored regular file.
    pub fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        Self {
            name: name.as_ref().to_vec(),
            data: data.as_ref().to_vec(),
            mode: 0o100_644,
            flags: 0,
            method: 0,
            size: None,
            packed: None,
            crc: None,
            offset: None,
        }
    }

    fn packed_data(&self) -> Vec<u8> {
        if self.method != 8 {
            return self.data.clone();
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&self.data).unwrap();
        encoder.finish().unwrap()
    }

    fn header(&self, packed: &[u8]) -> Vec<u8> {
        let mut crc = flate2::Crc::new();
        crc.update(&self.data);
        let mut out = 20_u16.to_le_bytes().to_vec(); // version needed
        out.extend(self.flags.to_le_bytes());
        out.extend(self.method.to_le_bytes());
        out.extend([0; 4]); // time
        out.extend(self.crc.unwrap_or(crc.sum()).to_le_bytes());
        out.extend(self.packed.unwrap_or(packed.len() as u32).to_le_bytes());
        out.extend(self.size.unwrap_or(self.data.len() as u32).to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend([0; 2]); // extra fields
        out
    }
}

/// Writes an archive.
pub fn raw_zip(entries: &[RawEntry]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let (offset, packed) = (out.len() as u32, entry.packed_data());
        let header = entry.header(&packed);
        out.extend(b"PK\x03\x04");
        out.extend(&header);
        out.extend(&entry.name);
        out.extend(&packed);
        directory.extend(b"PK\x01\x02");
        directory.extend([20, 3]); // made on Unix
        directory.extend(&header);
        directory.extend([0; 6]); // comment, disk, internal attributes
        directory.extend((entry.mode << 16).to_le_bytes());
        directory.extend(entry.offset.unwrap_or(offset).to_le_bytes());
        directory.extend(&entry.name);
    }
    let start = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend((entries.len() as u16).to_le_bytes());
    out.extend((entries.len() as u16).to_le_bytes());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0; 2]);
    out
}

/// The archive as an upload arrives.
pub fn as_file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// The smallest archive that is taken for an engine.
pub fn engine_entries() -> Vec<RawEntry> {
    [
        ("ajet/Cargo.toml", "[package]\nname = \"ajet-swarm\"\n"),
        ("ajet/Cargo.lock", ""),
        ("ajet/src/main.rs", "fn main() {}\n"),
    ]
    .map(|(name, text)| RawEntry::file(name, text))
    .to_vec()
}
