//! A file of lines to which another process appends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::small_file::open_regular;

/// Bytes at the end of a file that are read at first; of a larger one, the beginning is left out.
const FIRST_READ: u64 = 64 * 1024 * 1024;

/// What of a file was read.
#[derive(Debug)]
pub struct GrowingFile {
    path: PathBuf,
    /// Device and inode, to notice that the file was replaced.
    identity: Option<(u64, u64)>,
    /// End of the last complete line that was read.
    read: u64,
}

/// New lines of a file.
pub struct NewLines {
    /// Whether earlier lines no longer hold, since the file was replaced or shortened.
    pub restarted: bool,
    /// Complete lines with the offset of each, oldest first.
    pub lines: Vec<(u64, Vec<u8>)>,
}

impl GrowingFile {
    /// Starts with nothing read.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            identity: None,
            read: 0,
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the lines that were appended since the last call. A file that does not exist is empty.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn new_lines(&mut self) -> io::Result<NewLines> {
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let restarted = self.identity.take().is_some();
                self.read = 0;
                return Ok(NewLines {
                    restarted,
                    lines: vec![],
                });
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let identity = Some((metadata.dev(), metadata.ino()));
        let restarted = self.identity.is_some() && (self.identity != identity || metadata.len() < self.read);
        if self.identity.is_none() || restarted {
            self.identity = identity;
            self.read = first_line_after(&file, metadata.len().saturating_sub(FIRST_READ))?;
        }
        let lines = if metadata.len() > self.read {
            self.lines(&file)?
        } else {
            vec![]
        };
        Ok(NewLines { restarted, lines })
    }

    fn lines(&mut self, mut file: &File) -> io::Result<Vec<(u64, Vec<u8>)>> {
        file.seek(SeekFrom::Start(self.read))?;
        let (mut reader, mut lines) = (BufReader::new(file), Vec::new());
        loop {
            let mut line = Vec::new();
            let length = reader.read_until(b'\n', &mut line)? as u64;
            if !line.ends_with(b"\n") {
                return Ok(lines); // being written, or the end
            }
            lines.push((self.read, line));
            self.read += length;
        }
    }

    /// Reads the line at an offset.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn line_at(&self, reader: &mut BufReader<File>, offset: u64) -> io::Result<Vec<u8>> {
        reader.seek(SeekFrom::Start(offset))?;
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// Opens the file for [`Self::line_at`].
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(&self) -> io::Result<BufReader<File>> {
        open_regular(&self.path).map(BufReader::new)
    }
}

/// Returns the offset of the first line that begins at or after `offset`.
fn first_line_after(mut file: &File, offset: u64) -> io::Result<u64> {
    let Some(before) = offset.checked_sub(1) else {
        return Ok(0);
    };
    file.seek(SeekFrom::Start(before))?;
    let mut rest = Vec::new();
    let skipped = BufReader::new(file.take(FIRST_READ)).read_until(b'\n', &mut rest)?;
    Ok(before + skipped as u64)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn texts(file: &mut GrowingFile) -> (bool, Vec<String>) {
        let new = file.new_lines().unwrap();
        let lines = new.lines.into_iter().map(|(_, line)| String::from_utf8(line).unwrap());
        (new.restarted, lines.collect())
    }

    #[test]
    fn only_new_complete_lines_are_read_and_a_replaced_file_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut file = GrowingFile::new(&path);
        assert_eq!(texts(&mut file), (false, vec![]), "no file yet");
        std::fs::write(&path, "a\nb\nhalf").unwrap();
        assert_eq!(texts(&mut file), (false, vec!["a\n".into(), "b\n".into()]));
        assert_eq!(texts(&mut file), (false, vec![]));
        let mut append = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        append.write_all(b" line\nc").unwrap();
        let new = file.new_lines().unwrap();
        assert_eq!(new.lines, [(4, b"half line\n".to_vec())]);
        let mut reader = file.open().unwrap();
        assert_eq!(file.line_at(&mut reader, 2).unwrap(), b"b\n");
        std::fs::write(&path, "x\n").unwrap();
        assert_eq!(texts(&mut file), (true, vec!["x\n".into()]), "shortened");
        std::fs::write(dir.path().join("new"), "longer than before\n").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(
            texts(&mut file),
            (true, vec!["longer than before\n".into()]),
            "replaced"
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(texts(&mut file), (true, vec![]));
    }

    #[test]
    fn reading_from_the_middle_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, "abc\ndef\n").unwrap();
        let file = File::open(&path).unwrap();
        for (offset, line) in [(0, 0), (1, 4), (3, 4), (4, 4), (5, 8), (8, 8)] {
            assert_eq!(first_line_after(&file, offset).unwrap(), line, "{offset}");
        }
    }
}
