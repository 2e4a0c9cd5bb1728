//! The journal: all finished episodes since the last durable checkpoint, written to disk before their ends are
//! acknowledged.
//!
//! A file of JSON lines with these records:
//!
//! - `begin`: the run's identity, so that a job does not resume with the episodes of another;
//! - `episode`: a finished episode with its rows;
//! - `update`: the batch of that step was closed and its update began. Since an update is a pure function of weights
//!   and episodes, this is enough to repeat it;
//! - `lost`: replaces a line that could not be read.
//!
//! To resume, the engine loads the checkpoint and replays the journal in order: episodes enter the pool, `update`
//! trains on the pool. When a checkpoint is durable, the records it covers are removed. An incomplete last line (the
//! process died while writing it) was never acknowledged and is dropped. Any other unreadable line is moved to
//! [`DAMAGED_FILE_NAME`]; the other lines stay usable.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::finished::FinishedEpisode;
use super::identity::RunIdentity;
use crate::engine::storage::append_file::AppendFile;
use crate::engine::storage::durable;

/// Name of the journal file in the experiment directory.
pub const FILE_NAME: &str = "journal.jsonl";
/// Name of the file with the journal's unreadable lines.
pub const DAMAGED_FILE_NAME: &str = "journal.damaged.jsonl";

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// First line.
    Begin {
        /// Identity of the run.
        run: RunIdentity,
    },
    /// A finished episode.
    Episode(Box<FinishedEpisode>),
    /// The start of an update.
    Update {
        /// Step at which the batch was sampled.
        global_step: u64,
    },
    /// A line that could not be read.
    Lost {
        /// Its line number when it was found, from 1.
        line: u64,
        /// Error of the parser.
        why: String,
    },
}

impl Record {
    /// Returns the step to which this record belongs.
    pub fn global_step(&self) -> Option<u64> {
        match self {
            Self::Begin { .. } | Self::Lost { .. } => None,
            Self::Episode(episode) => Some(episode.global_step),
            Self::Update { global_step } => Some(*global_step),
        }
    }
}

/// Implemented by hand: serde's implementation for a tagged enum buffers the fields, which takes memory, and buffered
/// floats are no longer floats when JSON numbers keep their digits. Here the tag is the first key.
impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RecordVisitor)
    }
}

struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record with its kind as first key")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
        #[derive(Deserialize)]
        struct Begin {
            run: RunIdentity,
        }
        #[derive(Deserialize)]
        struct Update {
            global_step: u64,
        }
        #[derive(Deserialize)]
        struct Lost {
            line: u64,
            why: String,
        }
        let kind = match map.next_entry::<String, String>()? {
            Some((key, kind)) if key == "record" => kind,
            _ => return Err(A::Error::missing_field("record")),
        };
        let fields = MapAccessDeserializer::new(map);
        match kind.as_str() {
            "begin" => Begin::deserialize(fields).map(|Begin { run }| Record::Begin { run }),
            "episode" => Deserialize::deserialize(fields).map(Record::Episode),
            "update" => Update::deserialize(fields).map(|Update { global_step }| Record::Update { global_step }),
            "lost" => Lost::deserialize(fields).map(|Lost { line, why }| Record::Lost { line, why }),
            other => Err(A::Error::unknown_variant(
                other,
                &["begin", "episode", "update", "lost"],
            )),
        }
    }
}

/// Reasons why the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system failed.
    #[error("cannot {action} the journal {path}: {}", reason(source))]
    Io {
        /// Path of the journal.
        path: PathBuf,
        /// Failed action, as a verb.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The record could not be read back, so writing it again would fail too.
    #[error("cannot represent the episode in the journal: {0}")]
    Unreadable(serde_json::Error),
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    run: RunIdentity,
    file: AppendFile,
}

impl Journal {
    /// Opens or creates the journal of an experiment and returns its records.
    ///
    /// An incomplete last line is removed; other damaged lines are moved to another file, each replaced by a
    /// [`Record::Lost`].
    pub fn open(path: &Path, run: &RunIdentity) -> Result<(Self, Vec<Record>), JournalError> {
        let io = |action| move |source| io_error(path, action, source);
        let file = AppendFile::open(path).map_err(io("open"))?;
        let mut journal = Self {
            path: path.to_owned(),
            run: run.clone(),
            file,
        };
        let (records, damaged) = journal.read()?;
        if !damaged.is_empty() {
            journal.keep_damaged(&damaged)?;
            journal.rewrite(&records)?;
        }
        if records.is_empty() {
            journal.append(&Record::Begin { run: run.clone() })?;
            durable::sync_parent(path).map_err(io("write"))?;
        }
        Ok((journal, records))
    }

    /// Writes a record to disk. After an error, the journal is unchanged.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = to_line(record)?;
        self.file
            .append_durably(&line)
            .map_err(|e| io_error(&self.path, "write", e))
    }

    /// Removes everything up to and including the update of `global_step`, which a durable checkpoint contains.
    pub fn cut(&mut self, global_step: u64) -> Result<(), JournalError> {
        let (mut records, damaged) = self.read()?;
        self.keep_damaged(&damaged)?;
        records.retain(|r| r.global_step().is_some_and(|s| s > global_step));
        records.insert(0, Record::Begin { run: self.run.clone() });
        self.rewrite(&records)
    }

    /// Returns all complete lines, and the text of the damaged ones.
    fn read(&mut self) -> Result<(Vec<Record>, Vec<u8>), JournalError> {
        let (mut records, mut damaged) = (Vec::new(), Vec::new());
        let each = |line: &[u8]| {
            records.push(serde_json::from_slice(line).unwrap_or_else(|error| {
                damaged.extend_from_slice(line);
                Record::Lost {
                    line: records.len() as u64 + 1,
                    why: error.to_string(),
                }
            }));
        };
        self.file
            .read_lines(each)
            .map_err(|e| io_error(&self.path, "read", e))?;
        Ok((records, damaged))
    }

    /// Saves damaged lines to the file for them.
    fn keep_damaged(&self, text: &[u8]) -> Result<(), JournalError> {
        if text.is_empty() {
            return Ok(());
        }
        let path = self.path.with_file_name(DAMAGED_FILE_NAME);
        AppendFile::open(&path)
            .and_then(|mut file| file.append_durably(text))
            .and_then(|()| durable::sync_parent(&path))
            .map_err(|e| io_error(&path, "write", e))
    }

    /// Replaces the whole content.
    fn rewrite(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut text = Vec::new();
        for record in records {
            text.extend(to_line(record)?);
        }
        durable::replace(&self.path, &text).map_err(|e| io_error(&self.path, "shorten", e))?;
        self.file = AppendFile::open(&self.path).map_err(|e| io_error(&self.path, "open", e))?;
        Ok(())
    }
}

#[cfg(test)]
impl Journal {
    /// Makes writes fail, as on a full disk.
    pub(crate) fn break_for_test(&mut self) {
        self.file.break_for_test();
    }

    /// Makes writes succeed again.
    pub(crate) fn heal_for_test(&mut self) {
        self.file.heal_for_test();
    }
}

/// Renames a journal that does not continue the checkpoint, and returns its new name.
pub fn set_aside(path: &Path) -> Result<PathBuf, JournalError> {
    let aside = (1..)
        .map(|n| path.with_extension(format!("jsonl.set-aside-{n}")))
        .find(|p| !p.exists())
        .unwrap_or_else(|| path.with_extension("jsonl.set-aside"));
    std::fs::rename(path, &aside).map_err(|e| io_error(path, "rename", e))?;
    Ok(aside)
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> JournalError {
    JournalError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

/// Returns the system's reason, with an explanation where the user must free disk space.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("the disk is full ({error})"),
        _ => error.to_string(),
    }
}

/// Serialises a record and checks that it can be read back: JSON has no infinity, and parsers have limits.
fn to_line(record: &Record) -> Result<Vec<u8>, JournalError> {
    let mut line = serde_json::to_vec(record).map_err(JournalError::Unreadable)?;
    serde_json::from_slice::<Record>(&line).map_err(JournalError::Unreadable)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Row;
    use proptest::prelude::*;

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
                ..Row::default()
            }],
            ..Default::default()
        }))
    }

    /// Seen with big integers in what clients send along, which came out as floats.
    #[test]
    fn numbers_keep_their_digits() {
        let Record::Episode(mut ended) = episode("e", 1) else {
            unreachable!()
        };
        let sent = r#"{"n":12345678901234567890123,"x":[1.10,1e+5,-0,1e+400],"y":{"z":2.50e-3,"ln":-1.5e-7}}"#;
        ended.log_metrics = serde_json::from_str(sent).unwrap();
        let line = to_line(&Record::Episode(ended.clone())).unwrap();
        assert!(String::from_utf8_lossy(&line).contains(sent));
        assert_eq!(serde_json::from_slice::<Record>(&line).unwrap(), Record::Episode(ended));
        let before = r#"{"record":"update","global_step":7}"#;
        assert_eq!(serde_json::from_str::<Record>(before).unwrap(), update(7));
        for wrong in [
            r#"{"record":"other"}"#,
            r#"{"global_step":1,"record":"update"}"#,
            r#"{"record":"update"}"#,
            "{}",
            "[]",
        ] {
            assert!(serde_json::from_str::<Record>(wrong).is_err(), "{wrong}");
        }
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

    // Seen with two engines in one directory, whose writes went through each other's lines.
    #[test]
    fn a_damaged_line_costs_only_itself_and_is_kept() {
        type Damage = fn(&mut Vec<u8>);
        let damages: [(&str, Damage); 5] = [
            ("a hole", |line| line[5..20].fill(0)),
            ("nothing but zeros", |line| line.fill(0)),
            ("cut short", |line| line.truncate(30)),
            ("not UTF-8", |line| line[10] = 0xff),
            ("another's line inside", |line| {
                let half = line.len() / 2;
                let other = line.clone();
                line.splice(half..half, other);
            }),
        ];
        let written = [episode("a", 1), episode("b", 1), episode("c", 1)];
        for (name, damage) in damages {
            for at in 0..written.len() {
                let scratch = Scratch::new();
                let (mut journal, _) = scratch.open();
                written.iter().for_each(|r| journal.append(r).unwrap());
                let text = std::fs::read(&scratch.path).unwrap();
                let mut lines: Vec<Vec<u8>> = text.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
                damage(&mut lines[1 + at]);
                let damaged = lines[1 + at].clone();
                std::fs::write(&scratch.path, lines.join(&b'\n')).unwrap();

                let (mut journal, found) = scratch.open();
                let mut others = written.to_vec();
                others.remove(at);
                let is_lost = |r: &Record| matches!(r, Record::Lost { line, .. } if *line == at as u64 + 2);
                assert!(is_lost(&found[1 + at]), "{name} at {at}: {found:?}");
                let whole: Vec<Record> = found[1..].iter().filter(|r| !is_lost(r)).cloned().collect();
                assert_eq!(whole, others, "{name} at {at}");
                let kept = std::fs::read(scratch.path.with_file_name(DAMAGED_FILE_NAME)).unwrap();
                assert!(kept.starts_with(&damaged), "{name} at {at}");
                journal.append(&update(1)).unwrap();
                let (_, again) = scratch.open();
                assert_eq!(again.len(), found.len() + 1, "{name}: the loss is remembered");
                assert_eq!(again[..found.len()], found);
            }
        }
    }

    proptest! {
        // Seen with log-probabilities of `temperature: 1e-40`, which are not finite: JSON has `null` for them.
        #[test]
        fn whatever_is_accepted_can_be_read_back(
            reward in proptest::num::f64::ANY,
            logprobs in proptest::collection::vec(proptest::num::f32::ANY, 0..4),
            text in ".*",
            depth in 0_usize..150,
            metric in proptest::num::i64::ANY,
        ) {
            let nested = (0..depth).fold(serde_json::Value::from(metric), |value, _| serde_json::json!([value]));
            let record = Record::Episode(Box::new(FinishedEpisode {
                episode_uuid: text.clone(),
                task_id: text.clone(),
                tag: Some(text.clone()),
                reward,
                rows: vec![Row { logprobs, ..Row::default() }],
                log_metrics: [(text, nested)].into_iter().collect(),
                ..FinishedEpisode::default()
            }));
            let scratch = Scratch::new();
            let (mut journal, _) = scratch.open();
            let accepted = journal.append(&record).is_ok();
            journal.append(&update(1)).unwrap();
            let mut expected = vec![begin(), update(1)];
            if accepted {
                expected.insert(1, record);
            }
            // By their text, since NaN does not equal itself.
            prop_assert_eq!(format!("{:?}", scratch.open().1), format!("{expected:?}"));
        }
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
        journal.file.tear_for_test(b"{\"record\":\"epis");
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
