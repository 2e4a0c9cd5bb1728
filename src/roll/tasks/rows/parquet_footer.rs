//! A look at a Parquet file's schema before the decoder gets it.
//!
//! The decoder reserves memory for as many children as a group says that it has, and descends once for every level of
//! nesting. A damaged or made-up footer could end the process that way, so this counts both first. The footer is a
//! struct of Thrift's compact protocol, whose second field is the list of schema elements.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Deepest nesting of groups and lists, in levels of the file's schema.
const MOST_DEPTH: usize = 128;
/// Maximum bytes of a footer.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes after the footer: its length and the magic number.
const TAIL: u64 = 8;
const MAGIC: &[u8; 4] = b"PAR1";

/// Types of Thrift's compact protocol.
mod kind {
    pub const STOP: u8 = 0;
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
}

/// Field of the list of schema elements in the footer, and of the number of children in such an element.
const SCHEMA: i64 = 2;
const CHILDREN: i64 = 5;

/// Checks the schema of a file.
///
/// # Errors
/// Fails if there is no footer, or its schema is not a tree within the depth limit.
pub fn check(file: &mut File) -> Result<(), String> {
    let footer = footer(file)?;
    let mut input = Input(&footer);
    let children = schema(&mut input).ok_or("the footer is damaged")?;
    depth_fits(&children)
}

fn footer(file: &mut File) -> Result<Vec<u8>, String> {
    let reason = |error: io::Error| error.to_string();
    let length = file.seek(SeekFrom::End(0)).map_err(reason)?;
    let end = length.checked_sub(TAIL).ok_or("the file is too short")?;
    file.seek(SeekFrom::Start(end)).map_err(reason)?;
    let mut tail = [0; TAIL as usize];
    file.read_exact(&mut tail).map_err(reason)?;
    let [a, b, c, d, magic @ ..] = tail;
    if magic != *MAGIC {
        return Err("it does not end in PAR1".into());
    }
    let size = u64::from(u32::from_le_bytes([a, b, c, d]));
    if size > MOST_BYTES {
        return Err(format!("its footer has {size} bytes, more than {MOST_BYTES}"));
    }
    let start = end
        .checked_sub(size)
        .ok_or_else(|| format!("it is shorter than its footer of {size} bytes"))?;
    file.seek(SeekFrom::Start(start)).map_err(reason)?;
    let mut footer = vec![];
    file.take(size).read_to_end(&mut footer).map_err(reason)?;
    Ok(footer)
}

/// Follows the tree that the numbers of children describe.
fn depth_fits(children: &[u64]) -> Result<(), String> {
    // Children that are still to come, level by level.
    let mut open: Vec<u64> = vec![];
    for count in children {
        if let Some(rest) = open.last_mut() {
            *rest -= 1;
        }
        if *count > children.len() as u64 {
            return Err(format!(
                "a group of its schema has {count} children, but there are {} elements",
                children.len()
            ));
        }
        if *count > 0 {
            open.push(*count);
        }
        if open.len() > MOST_DEPTH {
            return Err(format!("its schema nests deeper than {MOST_DEPTH} levels"));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

/// The numbers of children of all schema elements; `None` where the bytes are no such footer.
fn schema(input: &mut Input) -> Option<Vec<u64>> {
    let mut id = 0;
    while let Some(kind) = input.field(&mut id)? {
        if id == SCHEMA && kind == kind::LIST {
            let (count, _) = input.list()?;
            return (0..count).map(|_| element(input)).collect();
        }
        input.skip(kind, 0)?;
    }
    Some(vec![])
}

/// The number of children of a schema element.
fn element(input: &mut Input) -> Option<u64> {
    let (mut id, mut children) = (0, 0);
    while let Some(kind) = input.field(&mut id)? {
        match (id, kind) {
            (CHILDREN, kind::I32) => children = input.signed()?.try_into().ok()?,
            _ => input.skip(kind, 0)?,
        }
    }
    Some(children)
}

/// Bytes of Thrift's compact protocol. Every method is `None` where they end early.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The type of the next field, after `id`, which becomes its number; `Some(None)` at the end of the struct.
    fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let header = self.byte()?;
        let kind = header & 0x0f;
        if kind == kind::STOP {
            return Some(None);
        }
        *id = match header >> 4 {
            0 => self.signed()?,
            more => id.checked_add(more.into())?,
        };
        Some(Some(kind))
    }

    /// The length of a list and the type of its elements.
    fn list(&mut self) -> Option<(u64, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.unsigned()?,
            count => count.into(),
        };
        Some((count, header & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MOST_DEPTH {
            return None;
        }
        match kind {
            kind::TRUE | kind::FALSE => Some(()),
            kind::BYTE => self.advance(1),
            kind::I16 | kind::I32 | kind::I64 => self.unsigned().map(drop),
            kind::DOUBLE => self.advance(8),
            kind::BINARY => {
                let length = self.unsigned()?;
                self.advance(length)
            }
            kind::LIST | kind::SET => {
                let (count, kind) = self.list()?;
                self.skip_items(count, &[kind], depth)
            }
            kind::MAP => match self.unsigned()? {
                0 => Some(()),
                count => {
                    let kinds = self.byte()?;
                    self.skip_items(count, &[kinds >> 4, kinds & 0x0f], depth)
                }
            },
            kind::STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    fn skip_items(&mut self, count: u64, kinds: &[u8], depth: usize) -> Option<()> {
        for _ in 0..count {
            for kind in kinds {
                match *kind {
                    // In a list a truth value is a byte.
                    kind::TRUE | kind::FALSE => self.advance(1)?,
                    kind => self.skip(kind, depth + 1)?,
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a footer of schema elements that have these numbers of children.
    fn check_schema(children: &[u32]) -> Result<(), String> {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let unsigned = |bytes: &mut Vec<u8>, mut value: u64| {
            while value >= 0x80 {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
        };
        unsigned(&mut footer, children.len() as u64);
        for count in children {
            // A name, then the number of children.
            footer.extend([0x48, 1, b'x', 0x15]);
            unsigned(&mut footer, u64::from(*count) << 1);
            footer.push(0);
        }
        footer.push(0);
        let mut file = tempfile::tempfile().unwrap();
        let length = (footer.len() as u32).to_le_bytes();
        io::Write::write_all(&mut file, &[b"PAR1", &footer[..], &length, b"PAR1"].concat()).unwrap();
        check(&mut file)
    }

    #[test]
    fn only_trees_of_bearable_depth_get_to_the_decoder() {
        assert_eq!(check_schema(&[2, 0, 1, 0]), Ok(()));
        assert_eq!(check_schema(&vec![1; 100]), Ok(()));
        let deep = check_schema(&vec![1; 1_000_000]).unwrap_err();
        assert_eq!(deep, "its schema nests deeper than 128 levels");
        let wide = check_schema(&[1, i32::MAX as u32, 0]).unwrap_err();
        assert_eq!(
            wide,
            "a group of its schema has 2147483647 children, but there are 3 elements"
        );
    }

    #[test]
    fn what_is_no_footer_is_refused() {
        let error_of = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, bytes).unwrap();
            check(&mut file).unwrap_err()
        };
        assert_eq!(error_of(b"PAR1"), "the file is too short");
        assert_eq!(error_of(b"PAR1....PAR2"), "it does not end in PAR1");
        assert_eq!(
            error_of(b"\xff\0\0\0PAR1"),
            "it is shorter than its footer of 255 bytes"
        );
        assert_eq!(
            error_of(b"\0\0\0\xffPAR1"),
            "its footer has 4278190080 bytes, more than 67108864"
        );
        assert_eq!(error_of(b"\xff\xff\xff\x03\0\0\0PAR1"), "the footer is damaged");
    }
}
