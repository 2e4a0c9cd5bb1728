//! Reader of a zip archive's central directory, entry by entry: an archive of millions of entries needs no more memory
//! than one of a single entry, and is refused by its end record before any entry is read.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

const END: (&[u8; 4], usize) = (b"PK\x05\x06", 22);
const END_64: (&[u8; 4], usize) = (b"PK\x06\x06", 56);
const LOCATOR_64: (&[u8; 4], usize) = (b"PK\x06\x07", 20);
const CENTRAL: (&[u8; 4], usize) = (b"PK\x01\x02", 46);
const LOCAL: (&[u8; 4], usize) = (b"PK\x03\x04", 30);
/// Maximum length of the comment after the end record.
const COMMENT: u64 = 0xffff;
/// Value of a 32-bit field whose real value is in the 64-bit extra field.
const IN_64: u32 = u32::MAX;

/// Header of one archived file.
#[derive(Debug)]
pub struct Entry {
    /// Path, ending in `/` for a directory.
    pub name: String,
    /// Unix mode, if the archive was made on Unix.
    pub mode: Option<u32>,
    /// Compression method.
    pub method: u16,
    /// Whether the file is encrypted.
    pub encrypted: bool,
    /// Checksum of the unpacked data.
    pub crc32: u32,
    /// Compressed size in bytes.
    pub packed: u64,
    /// Unpacked size in bytes.
    pub size: u64,
    /// Offset of the local header.
    header: u64,
}

/// An archive and its entries not read yet.
#[derive(Debug)]
pub struct Archive<'a> {
    file: &'a File,
    size: u64,
    directory: BufReader<Part<'a>>,
    left: u64,
}

/// A range of bytes of a file.
#[derive(Debug)]
pub struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<'a> Archive<'a> {
    /// Reads the end record, but no entry yet. Errors are sentences.
    pub fn open(file: &'a File) -> Result<Self, String> {
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        let tail_start = size.saturating_sub(END.1 as u64 + COMMENT);
        let tail = bytes_at(file, tail_start, (size - tail_start) as usize)?;
        let end = (0..=tail.len().saturating_sub(END.1)).rev().find(|&at| {
            let record = tail.get(at..at + END.1);
            record.is_some_and(|r| r.starts_with(END.0) && at + END.1 + usize::from(u16_at(r, 20)) == tail.len())
        });
        let end_at = end.ok_or("no end record found")?;
        let end = &tail[end_at..];
        let (mut left, mut length, mut start) = (
            u64::from(u16_at(end, 10)),
            u64::from(u32_at(end, 12)),
            u64::from(u32_at(end, 16)),
        );
        if left == 0xffff || length == u64::from(IN_64) || start == u64::from(IN_64) {
            let locator = (tail_start + end_at as u64).checked_sub(LOCATOR_64.1 as u64);
            let locator = locator.and_then(|at| record_at(file, at, LOCATOR_64).ok());
            if let Some(locator) = locator {
                let end = record_at(file, u64_at(&locator, 8), END_64)?;
                (left, length, start) = (u64_at(&end, 32), u64_at(&end, 40), u64_at(&end, 48));
            }
        }
        let end = start.checked_add(length).filter(|end| *end <= size);
        Ok(Self {
            file,
            size,
            directory: BufReader::new(Part {
                file,
                at: start,
                end: end.ok_or("the central directory lies outside the archive")?,
            }),
            left,
        })
    }

    /// Returns the size of the archive in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of entries left to read, as declared by the archive.
    pub fn entries_left(&self) -> u64 {
        self.left
    }

    /// Reads the next entry; returns `None` after the last. Errors are sentences.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, String> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let fixed = self.take(CENTRAL.1)?;
        if !fixed.starts_with(CENTRAL.0) {
            return Err("the central directory is damaged".into());
        }
        let name = self.take(u16_at(&fixed, 28).into())?;
        let extra = self.take(u16_at(&fixed, 30).into())?;
        self.take(u16_at(&fixed, 32).into())?; // skip the comment
        let mut wide = wide_fields(&extra).chunks_exact(8);
        let mut field = |at: usize| match u32_at(&fixed, at) {
            IN_64 => wide.next().map_or(u64::from(IN_64), |bytes| u64_at(bytes, 0)),
            short => short.into(),
        };
        let (size, packed, header) = (field(24), field(20), field(42)); // in the order of the 64-bit fields
        const UNIX: u16 = 3;
        let mode = u32_at(&fixed, 38) >> 16;
        Ok(Some(Entry {
            name: String::from_utf8_lossy(&name).into_owned(),
            mode: (u16_at(&fixed, 4) >> 8 == UNIX && mode != 0).then_some(mode),
            method: u16_at(&fixed, 10),
            encrypted: u16_at(&fixed, 8) & 1 != 0,
            crc32: u32_at(&fixed, 16),
            packed,
            size,
            header,
        }))
    }

    /// Returns the compressed bytes of an entry. Errors are sentences.
    pub fn packed(&self, entry: &Entry) -> Result<Part<'a>, String> {
        let local = record_at(self.file, entry.header, LOCAL)?;
        let names = u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        let at = entry.header + LOCAL.1 as u64 + names; // no overflow: the record was read from there
        let end = at.checked_add(entry.packed).filter(|end| *end <= self.size);
        Ok(Part {
            file: self.file,
            at,
            end: end.ok_or("the entry extends past the end of the archive")?,
        })
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length];
        let read = self.directory.read_exact(&mut bytes);
        read.map_err(|_| "the central directory has fewer entries than declared")?;
        Ok(bytes)
    }
}

/// Returns the 64-bit sizes from an entry's extra fields.
fn wide_fields(mut extra: &[u8]) -> &[u8] {
    const WIDE: u16 = 1;
    while extra.len() >= 4 {
        let length = usize::from(u16_at(extra, 2)).min(extra.len() - 4);
        if u16_at(extra, 0) == WIDE {
            return &extra[4..4 + length];
        }
        extra = &extra[4 + length..];
    }
    &[]
}

fn record_at(file: &File, at: u64, (magic, length): (&[u8; 4], usize)) -> Result<Vec<u8>, String> {
    let bytes = bytes_at(file, at, length)?;
    match bytes.starts_with(magic) {
        true => Ok(bytes),
        false => Err("no record at the declared offset".into()),
    }
}

fn bytes_at(file: &File, at: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at)
        .map_err(|e| format!("cannot read the archive: {e}"))?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
