//! The journal: every finished episode, on disk before its end is acknowledged, back to the last durable checkpoint.
//!
//! A file of JSON lines. What is written is one of
//!
//! - `begin`: which model is trained how, so that a job does not go on with another's episodes;
//! - `episode`: a finished episode with its rows;
//! - `update`: the batch of that step was closed, and its update begun. Since an update is a pure function of weights and
//!   episodes, this is enough to do it again;
//! - `lost`: here stood a line that could not be read.
//!
//! A resume loads the checkpoint and reads the journal in order: episodes enter the pool, `update` trains on the pool.
//! When a checkpoint is durable, what it covers is cut off. A last line that was not written to its end (the process
//! died in the middle of it) was never acknowledged and is dropped. Any other line that cannot be read is kept in
//! [`DAMAGED_FILE_NAME`], and costs no more than itself.

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

/// Name of the journal in the experiment directory.
pub const FILE_NAME: &str = "journal.jsonl";
/// Name of the file beside it that keeps lines of it that could not be read.
pub const DAMAGED_FILE_NAME: &str = "journal.damaged.jsonl";

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// A line that could not be read.
    Lost {
        /// Its number when it was found, from 1.
        line: u64,
        /// What the parser said.
        why: String,
    },
}

impl Record {
    /// The step that this record belongs to.
    pub fn global_step(&self) -> Option<u64> {
        match self {
            Self::Begin { .. } | Self::Lost { .. } => None,
            Self::Episode(episode) => Some(episode.global_step),
            Self::Update { global_step } => Some(*global_step),
        }
    }
}

/// By hand: what serde makes for a tagged enum first gathers the fields, which takes memory, and floats that are gathered
/// are no longer floats where JSON numbers keep their digits. Here the tag is the first key.
impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RecordVisitor)
    }
}

struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record, its kind first")
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

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("the journal {path} could not be {what}: {}", reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// What was to be written could not be read again. A later attempt fails too.
    #[error("the journal cannot hold this: {0}")]
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
    /// Opens the journal of an experiment, or begins one, and returns what is in it.
    ///
    /// A torn last line is cut off; other damaged lines are moved aside, each with a [`Record::Lost`] in its place.
    pub fn open(path: &Path, run: &RunIdentity) -> Result<(Self, Vec<Record>), JournalError> {
        let io = |what| move |source| io_error(path, what, source);
        let file = AppendFile::open(path).map_err(io("opened"))?;
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
            durable::sync_parent(path).map_err(io("written"))?;
        }
        Ok((journal, records))
    }

    /// Writes a record and waits until it is on disk. After an error the journal is as it was before.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = to_line(record)?;
        self.file
            .append_durably(&line)
            .map_err(|e| io_error(&self.path, "written", e))
    }

    /// Cuts off everything up to and with the update of `global_step`, whose outcome a durable checkpoint holds.
    pub fn cut(&mut self, global_step: u64) -> Result<(), JournalError> {
        let (mut records, damaged) = self.read()?;
        self.keep_damaged(&damaged)?;
        records.retain(|r| r.global_step().is_some_and(|s| s > global_step));
        records.insert(0, Record::Begin { run: self.run.clone() });
        self.rewrite(&records)
    }

    /// Every whole line, and the text of those that are damaged.
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

    /// Writes damaged lines where they are kept.
    fn keep_damaged(&self, text: &[u8]) -> Result<(), JournalError> {
        if text.is_empty() {
            return Ok(());
        }
        let path = self.path.with_file_name(DAMAGED_FILE_NAME);
        AppendFile::open(&path)
            .and_then(|mut file| file.append_durably(text))
            .and_then(|()| durable::sync_parent(&path))
            .map_err(|e| io_error(&path, "written", e))
    }

    /// Replaces all that is there.
    fn rewrite(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut text = Vec::new();
        for record in records {
            text.extend(to_line(record)?);
        }
        durable::replace(&self.path, &text).map_err(|e| io_error(&self.path, "cut", e))?;
        self.file = AppendFile::open(&self.path).map_err(|e| io_error(&self.path, "opened", e))?;
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

/// The system's reason, and what it means where users are to make room.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("the disk is full ({error})"),
        _ => error.to_string(),
    }
}

/// A record as a line that a resume can read: JSON has no infinity, and parsers have limits.
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
