//! A reader that gives no more bytes than one row may have.

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use super::ROW_BYTES;

/// Bytes that a row may still take; reset at the beginning of a row.
#[derive(Clone, Debug)]
pub struct Budget(Rc<Cell<u64>>);

impl Budget {
    /// A full budget.
    pub fn new() -> Self {
        Self(Rc::new(Cell::new(ROW_BYTES)))
    }

    /// Begins a row.
    pub fn reset(&self) {
        self.0.set(ROW_BYTES);
    }

    /// Begins something of any length.
    pub fn lift(&self) {
        self.0.set(u64::MAX);
    }
}

/// Fails where a row is longer than its budget. Strips a byte order mark.
pub struct Bounded<R> {
    inner: R,
    budget: Budget,
}

impl<R: BufRead> Bounded<R> {
    /// Reads from `inner` within `budget`.
    pub fn new(mut inner: R, budget: Budget) -> io::Result<Self> {
        const MARK: &[u8] = "\u{feff}".as_bytes();
        if inner.fill_buf()?.starts_with(MARK) {
            inner.consume(MARK.len());
        }
        Ok(Self { inner, budget })
    }
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer
            .len()
            .min(usize::try_from(self.budget.0.get()).unwrap_or(usize::MAX));
        if length == 0 && !buffer.is_empty() {
            return Err(too_long());
        }
        let read = self.inner.read(&mut buffer[..length])?;
        self.budget.0.set(self.budget.0.get() - read as u64);
        Ok(read)
    }
}

/// What is wrong with a row that is too long.
pub fn too_long() -> io::Error {
    io::Error::other(format!("the row is longer than {} MiB", ROW_BYTES >> 20))
}
