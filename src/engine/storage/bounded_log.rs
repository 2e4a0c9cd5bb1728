//! A file of lines for readers that need only the newest: beyond its limit, the older half is removed.

use std::io;
use std::path::Path;

use super::append_file::AppendFile;

/// An open file of lines within a size limit.
#[derive(Debug)]
pub struct BoundedLog {
    file: AppendFile,
    /// Maximum size, in bytes.
    limit: u64,
    /// Size beyond which the older half is removed: the limit, and more after a failure, to not retry at every line.
    shorten_beyond: u64,
}

impl BoundedLog {
    /// Opens or creates the file of at most `limit` bytes.
    ///
    /// # Errors
    /// Fails if the file system does, or if it is not a regular file.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        Ok(Self {
            file: AppendFile::open(path)?,
            limit,
            shorten_beyond: limit,
        })
    }

    /// Removes the line that a killed writer left incomplete. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be read or truncated.
    pub fn remove_incomplete_line(&mut self) -> io::Result<()> {
        self.file.read_lines(|_| {})
    }

    /// Appends a line, which ends with a line feed. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the line cannot be written, or what exceeds the limit cannot be removed.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.append(line)?;
        let size = self.file.size()?;
        if size > self.shorten_beyond {
            self.shorten_beyond = size + self.limit / 2;
            self.file.keep_newest(self.limit / 2)?;
            self.shorten_beyond = self.limit;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_the_newest_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let lines = || -> Vec<String> {
            let text = std::fs::read_to_string(&path).unwrap();
            text.lines().map(str::to_owned).collect()
        };
        let mut log = BoundedLog::open(&path, 100).unwrap();
        for number in 0..1000 {
            log.append(format!("line {number:04}\n").as_bytes()).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= 100);
            let kept = lines();
            assert!(kept.len() == number + 1 || kept.len() >= 5, "{kept:?}");
            let first = number + 1 - kept.len();
            let expected: Vec<_> = (first..=number).map(|number| format!("line {number:04}")).collect();
            assert_eq!(kept, expected);
        }
        std::fs::write(&path, "whole\nhalf").unwrap();
        let mut log = BoundedLog::open(&path, 100).unwrap();
        log.remove_incomplete_line().unwrap();
        log.append(b"next\n").unwrap();
        assert_eq!(lines(), ["whole", "next"]);
    }

    #[test]
    fn what_cannot_be_shortened_is_written_on_and_shortened_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut log = BoundedLog::open(&path, 100).unwrap();
        let blocked = path.with_extension("tmp"); // where the shortened file is written
        std::fs::create_dir(&blocked).unwrap();
        let line = [b"x".repeat(9), b"\n".to_vec()].concat();
        let failures = (0..20).filter(|_| log.append(&line).is_err()).count();
        assert_eq!(
            (failures, std::fs::metadata(&path).unwrap().len()),
            (2, 200),
            "no line is lost"
        );
        std::fs::remove_dir(&blocked).unwrap();
        for _ in 0..20 {
            log.append(&line).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= 100);
    }
}
