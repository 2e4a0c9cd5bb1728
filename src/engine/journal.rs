//! The journal: every finished episode, on disk before its end is acknowledged, back to the last durable checkpoint.
//!
//! A file of JSON lines. What is written is one of
//!
//! - `begin`: which model is trained how, so that a job does not go on with another's episodes;
//! - `episode`: a finished episode with its rows;
//! - `update`: the batch of that step was closed, and its update begun. Since an update is a pure function of weights and
//!   episodes, this is enough to do it again.
//!
//! A resume loads the checkpoint and reads the journal in order: episodes enter the pool, `update` trains on the pool.
//! When a checkpoint is durable, what it covers is cut off. A last line that was not written to its end (the process
//! died in the middle of it) was never acknowledged and is dropped.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::durable;
use super::finished::FinishedEpisode;
use super::identity::RunIdentity;

/// Name of the journal in the experiment directory.
pub const FILE_NAME: &str = "journal.jsonl";

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line.
    Begin {
        /// What is trained.
        run: RunIdentity,
    },
    /// An episode ended.
    Episode(Box<FinishedEpisode>),
    /// The update of this step began.
    Update {
        /// The step at which the batch was sampled.
        global_step: u64,
    },
}

impl Record {
    /// The step that this record belongs to.
    fn global_step(&self) -> Option<u64> {
        match self {
            Self::Begin { .. } => None,
            Self::Episode(episode) => Some(episode.global_step),
            Self::Update { global_step } => Some(*global_step),
        }
    }
}

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("the journal {path} could not be {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A line in the middle is not what was written.
    #[error(
        "line {line} of the journal {path} is damaged ({source}); hint: move the file away to go on from the last checkpoint without the episodes in it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    run: RunIdentity,
    file: File,
    /// Length of what is known to be whole.
    len: u64,
    /// Whether something may stand after `len`, left by a failed write.
    torn: bool,
}

impl Journal {
    /// Opens the journal of an experiment, or begins one, and returns what is in it.
    ///
    /// A torn last line is cut off.
    pub fn open(path: &Path, run: &RunIdentity) -> Result<(Self, Vec<Record>), JournalError> {
        let io = |what| move |source| io_error(path, what, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io("opened"))?;
        let (records, len) = read(path, &file)?;
        let mut journal = Self {
            path: path.to_owned(),
            run: run.clone(),
            file,
            len,
            torn: true,
        };
        journal.mend().map_err(io("repaired"))?;
        if records.is_empty() {
            journal.append(&Record::Begin { run: run.clone() })?;
            durable::sync_parent(path).map_err(io("written"))?;
        }
        Ok((journal, records))
    }

    /// Writes a record and waits until it is on disk. After an error the journal is as it was before.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = to_line(record).map_err(|e| io_error(&self.path, "written", e))?;
        self.write(&line).map_err(|e| {
            self.torn = true;
            let _ = self.mend(); // tried again before the next write
            io_error(&self.path, "written", e)
        })
    }

    /// Cuts off everything up to and with the update of `global_step`, whose outcome a durable checkpoint holds.
    pub fn cut(&mut self, global_step: u64) -> Result<(), JournalError> {
        let path = self.path.clone();
        let io = |what| {
            let path = &path;
            move |source| io_error(path, what, source)
        };
        let (records, _) = read(&self.path, &self.file)?;
        let mut text = to_line(&Record::Begin { run: self.run.clone() }).map_err(io("written"))?;
        for record in records
            .iter()
            .filter(|r| r.global_step().is_some_and(|s| s > global_step))
        {
            text.extend(to_line(record).map_err(io("written"))?);
        }
        durable::replace(&path, &text).map_err(io("cut"))?;
        self.file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io("opened"))?;
        self.len = text.len() as u64;
        self.torn = false;
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.mend()?;
        self.file.write_all(line)?;
        self.file.sync_data()?;
        self.len += line.len() as u64;
        Ok(())
    }

    /// Takes away what a failed write left behind, and puts the cursor at the end.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.len)?;
            self.torn = false;
        }
        self.file.seek(SeekFrom::Start(self.len))?;
        Ok(())
    }
}

#[cfg(test)]
impl Journal {
    /// Makes writes fail, as on a full disk.
    pub(super) fn break_for_test(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    /// Makes writes succeed again.
    pub(super) fn heal_for_test(&mut self) {
        self.file = OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
    }
}

/// Moves a journal that does not join on to the checkpoint out of the way, and returns its new name.
pub fn set_aside(path: &Path) -> Result<PathBuf, JournalError> {
    let aside = (1..)
        .map(|n| path.with_extension(format!("jsonl.set-aside-{n}")))
        .find(|p| !p.exists())
        .unwrap_or_else(|| path.with_extension("jsonl.set-aside"));
    std::fs::rename(path, &aside).map_err(|e| io_error(path, "moved away", e))?;
    Ok(aside)
}

fn io_error(path: &Path, what: &'static str, source: io::Error) -> JournalError {
    JournalError::Io {
        path: path.to_owned(),
        what,
        source,
    }
}

fn to_line(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

/// Every whole line from the start, and where the last of them ends.
fn read(path: &Path, file: &File) -> Result<(Vec<Record>, u64), JournalError> {
    let io = |source| io_error(path, "read", source);
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    let (mut records, mut len) = (Vec::new(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(io)?;
        if read == 0 || line.last() != Some(&b'\n') {
            return Ok((records, len));
        }
        match serde_json::from_slice(&line) {
            Ok(record) => records.push(record),
            // Blocks of a line may reach the disk in any order, so a torn last line may have its end without its middle.
            Err(_) if reader.fill_buf().map_err(io)?.is_empty() => return Ok((records, len)),
            Err(source) => {
                return Err(JournalError::Damaged {
                    path: path.to_owned(),
                    line: records.len() + 1,
                    source,
                });
            }
        }
        len += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Row;

    fn episode(uuid: &str, global_step: u64) -> Record {
        Record::Episode(Box::new(FinishedEpisode {
            global_step,
            episode_uuid: uuid.into(),
            task_id: "täsk".into(),
            client_uuid: "c".into(),
            reward: 0.1 + 0.2,
            rows: vec![Row {
                token_ids: vec![1, 2, 3],
                loss_mask: vec![false, true, true],
                logprobs: vec![0.0, -1.234_567_8e-7, -0.1],
                truncated: false,
            }],
            ..Default::default()
        }))
    }

    fn update(global_step: u64) -> Record {
        Record::Update { global_step }
    }

    fn run() -> RunIdentity {
        RunIdentity::default()
    }

    fn begin() -> Record {
        Record::Begin { run: run() }
    }

    struct Scratch {
        _dir: tempfile::TempDir,
        path: PathBuf,
    }

    impl Scratch {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE_NAME);
            Self { _dir: dir, path }
        }

        fn open(&self) -> (Journal, Vec<Record>) {
            Journal::open(&self.path, &run()).unwrap()
        }
    }

    #[test]
    fn what_was_appended_is_read_back_to_the_bit() {
        let scratch = Scratch::new();
        let (mut journal, records) = scratch.open();
        assert!(records.is_empty());
        let written = [episode("a", 1), episode("b", 1), update(1), episode("c", 2)];
        written.iter().for_each(|r| journal.append(r).unwrap());
        let (_, records) = scratch.open();
        assert_eq!(records[0], begin());
        assert_eq!(records[1..], written);
    }

    #[test]
    fn a_tail_cut_at_any_byte_loses_only_the_last_record() {
        let scratch = Scratch::new();
        let (mut journal, _) = scratch.open();
        journal.append(&episode("whole", 1)).unwrap();
        let whole = std::fs::metadata(&scratch.path).unwrap().len();
        journal.append(&episode("torn", 1)).unwrap();
        let bytes = std::fs::read(&scratch.path).unwrap();
        for len in whole..bytes.len() as u64 {
            std::fs::write(&scratch.path, &bytes[..len as usize]).unwrap();
            let (mut journal, records) = scratch.open();
            assert_eq!(records, [begin(), episode("whole", 1)], "cut at {len}");
            journal.append(&episode("after", 1)).unwrap();
            let (_, records) = scratch.open();
            assert_eq!(records, [begin(), episode("whole", 1), episode("after", 1)]);
        }
    }

    #[test]
    fn a_last_line_with_a_hole_is_dropped_and_a_damaged_middle_is_an_error() {
        let scratch = Scratch::new();
        let (mut journal, _) = scratch.open();
        journal.append(&episode("a", 1)).unwrap();
        let end_of_first = std::fs::read(&scratch.path).unwrap().len();
        journal.append(&episode("b", 1)).unwrap();
        let mut bytes = std::fs::read(&scratch.path).unwrap();
        bytes[end_of_first + 5..end_of_first + 20].fill(0);
        std::fs::write(&scratch.path, &bytes).unwrap();
        assert_eq!(scratch.open().1, [begin(), episode("a", 1)]);

        bytes.extend(to_line(&update(1)).unwrap());
        std::fs::write(&scratch.path, &bytes).unwrap();
        let error = Journal::open(&scratch.path, &run()).unwrap_err().to_string();
        assert!(
            error.contains("line 3 of the journal") && error.contains("hint:"),
            "{error}"
        );
    }

    #[test]
    fn a_cut_keeps_what_the_checkpoint_does_not_hold() {
        let scratch = Scratch::new();
        let (mut journal, _) = scratch.open();
        for record in [episode("a", 1), update(1), episode("b", 2), update(2), episode("c", 3)] {
            journal.append(&record).unwrap();
        }
        journal.cut(2).unwrap();
        journal.append(&episode("d", 3)).unwrap();
        assert_eq!(scratch.open().1, [begin(), episode("c", 3), episode("d", 3)]);
        journal.cut(3).unwrap();
        assert_eq!(scratch.open().1, [begin()]);
    }

    #[test]
    fn a_write_that_failed_leaves_nothing_behind() {
        let scratch = Scratch::new();
        let (mut journal, _) = scratch.open();
        journal.append(&episode("a", 1)).unwrap();
        // What a full disk does: part of the line is there, and the call failed.
        journal.file.write_all(b"{\"record\":\"epis").unwrap();
        journal.break_for_test();
        journal.append(&episode("b", 1)).unwrap_err();
        journal.heal_for_test();
        journal.append(&episode("b", 1)).unwrap();
        assert_eq!(scratch.open().1, [begin(), episode("a", 1), episode("b", 1)]);
    }

    #[test]
    fn a_journal_set_aside_keeps_its_content_under_another_name() {
        let scratch = Scratch::new();
        scratch.open().0.append(&episode("a", 1)).unwrap();
        let aside = set_aside(&scratch.path).unwrap();
        assert!(!scratch.path.exists());
        assert!(std::fs::read_to_string(aside).unwrap().contains("\"a\""));
        scratch.open();
        assert!(set_aside(&scratch.path).unwrap().ends_with("journal.jsonl.set-aside-2"));
    }
}
