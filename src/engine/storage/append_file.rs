//! A file of appended records with a single writer: the journal, metrics, event files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::durable;
use crate::config::small_file::open_regular_with;

/// An open file of records.
#[derive(Debug)]
pub struct AppendFile {
    path: PathBuf,
    file: File,
    /// Start of a failed write that could not be removed yet.
    torn: Option<u64>,
}

impl AppendFile {
    /// Opens the regular file at `path`, or creates it with permissions for its owner only.
    ///
    /// # Errors
    /// Fails if the file system does, or if it is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: open_regular_with(durable::private().read(true).append(true).create(true), path)?,
            torn: None,
        })
    }

    /// Calls `each` with every line, and removes an incomplete last line, which a killed writer left.
    ///
    /// # Errors
    /// Fails if the file cannot be read or truncated.
    pub fn read_lines(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.remove_torn()?;
        let mut reader = BufReader::new(&self.file);
        reader.rewind()?;
        let (mut line, mut whole) = (Vec::new(), 0);
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            whole += line.len() as u64;
            each(&line);
            line.clear();
        }
        if !line.is_empty() {
            self.torn = Some(whole);
            self.remove_torn()?;
        }
        Ok(())
    }

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// Fails if the file system does.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Replaces the file by its last lines, at most `bytes` bytes of them. After an error, the file is unchanged.
    ///
    /// # Errors
    /// Fails if the file system does.
    pub fn keep_newest(&mut self, bytes: u64) -> io::Result<()> {
        self.remove_torn()?;
        let Some(before) = self.size()?.checked_sub(bytes + 1) else {
            return Ok(());
        };
        // From the last byte that goes, so that a line which begins right behind it stays.
        self.file.seek(SeekFrom::Start(before))?;
        let mut newest = Vec::new();
        (&self.file).take(bytes + 1).read_to_end(&mut newest)?;
        let line = newest
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(newest.len(), |end| end + 1);
        self.rewrite(&newest[line..])
    }

    /// Replaces the contents. After an error, the file is unchanged.
    ///
    /// # Errors
    /// Fails if the file system does.
    pub fn rewrite(&mut self, contents: &[u8]) -> io::Result<()> {
        durable::write(&self.path, contents)?;
        *self = Self::open(&self.path)?;
        Ok(())
    }

    /// Appends a record. After an error, the file is unchanged.
    ///
    /// # Errors
    /// Fails if the file system does, or if the file is no longer at its path.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.append_then(record, |_| Ok(()))
    }

    /// Appends a record and waits until it is on disk. After an error, the file is unchanged.
    ///
    /// # Errors
    /// Fails as [`Self::append`] does.
    pub fn append_durably(&mut self, record: &[u8]) -> io::Result<()> {
        self.append_then(record, File::sync_data)
    }

    fn append_then(&mut self, record: &[u8], written: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        self.remove_torn()?;
        let end = self.file.metadata()?.len();
        let appended = (&self.file)
            .write_all(record)
            .and_then(|()| written(&self.file))
            .and_then(|()| self.check_in_place());
        if appended.is_err() {
            self.torn = Some(end);
            let _ = self.remove_torn(); // retried before the next write
        }
        appended
    }

    /// Removes what a failed write left.
    fn remove_torn(&mut self) -> io::Result<()> {
        if let Some(end) = self.torn {
            self.file.set_len(end)?;
            self.torn = None;
        }
        Ok(())
    }

    /// Checks that the file was not deleted or replaced, since appended records would be lost with it.
    fn check_in_place(&self) -> io::Result<()> {
        let (ours, there) = (self.file.metadata()?, std::fs::metadata(&self.path));
        match there {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the file was deleted or replaced while the engine was running; hint: restore it, or stop the engine",
            )),
        }
    }
}

#[cfg(test)]
impl AppendFile {
    /// Makes writes fail, as on a full disk.
    pub(crate) fn break_for_test(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    /// Makes writes succeed again.
    pub(crate) fn heal_for_test(&mut self) {
        self.file = Self::open(&self.path).unwrap().file;
    }

    /// Leaves part of a record behind, as a write that the disk had no room for.
    pub(crate) fn tear_for_test(&mut self, part: &[u8]) {
        self.torn.get_or_insert(self.file.metadata().unwrap().len());
        self.file.write_all(part).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        let mut lines = vec![];
        let each = |line: &[u8]| lines.push(String::from_utf8_lossy(line).trim_end().to_owned());
        AppendFile::open(path).unwrap().read_lines(each).unwrap();
        lines
    }

    #[test]
    fn a_failed_or_torn_write_never_joins_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file = AppendFile::open(&path).unwrap();
        file.append(b"one\n").unwrap();
        for torn in ["t", "tw", "two", "{\"a\": 1"] {
            file.tear_for_test(torn.as_bytes());
            file.break_for_test();
            file.append(b"lost\n").unwrap_err();
            file.heal_for_test();
            file.append_durably(b"next\n").unwrap();
            // A killed writer leaves the same without knowing of it.
            std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .unwrap()
                .write_all(torn.as_bytes())
                .unwrap();
            assert!(lines(&path).iter().all(|line| line == "one" || line == "next"));
        }
        assert_eq!(lines(&path).len(), 5);
    }

    // Seen with two engines in one directory: each wrote at the end that it remembered.
    #[test]
    fn what_another_wrote_meanwhile_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let (mut ours, mut theirs) = (AppendFile::open(&path).unwrap(), AppendFile::open(&path).unwrap());
        ours.append(b"ours 1\n").unwrap();
        theirs.append(b"theirs\n").unwrap();
        ours.append(b"ours 2\n").unwrap();
        assert_eq!(lines(&path), ["ours 1", "theirs", "ours 2"]);
    }

    #[test]
    fn a_record_in_a_file_that_is_not_there_any_more_is_an_error() {
        type Loss = fn(&Path);
        let losses: [(&str, Loss); 4] = [
            ("deleted", |path| std::fs::remove_file(path).unwrap()),
            ("replaced", |path| durable::replace(path, b"other\n").unwrap()),
            ("its directory deleted", |path| {
                std::fs::remove_dir_all(path.parent().unwrap()).unwrap()
            }),
            ("its directory replaced", |path| {
                std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
                std::fs::create_dir(path.parent().unwrap()).unwrap();
                std::fs::write(path, "other\n").unwrap();
            }),
        ];
        for (name, lose) in losses {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("d").join("f");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            let mut file = AppendFile::open(&path).unwrap();
            file.append(b"one\n").unwrap();
            lose(&path);
            let error = file.append_durably(b"two\n").unwrap_err();
            assert!(error.to_string().contains("hint:"), "{name}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let (here, away) = (dir.path().join("here"), dir.path().join("away"));
        let mut file = AppendFile::open(&here).unwrap();
        std::fs::rename(&here, &away).unwrap();
        file.append(b"two\n").unwrap_err();
        std::fs::rename(&away, &here).unwrap();
        file.append(b"two\n").unwrap();
        assert_eq!(lines(&here), ["two"], "put back, it is as before");
    }
}
