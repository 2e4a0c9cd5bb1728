//! TensorBoard's event files: records of the `Event` protocol buffer in TensorFlow's record format.
//!
//! A record is its length (u64), the length's checksum (u32), the bytes, and their checksum (u32), all little-endian; a
//! checksum is the CRC-32C, rotated and offset. An event holds time, step and a summary: name and value of each metric.
//! Sources: tensorflow `core/lib/io/record_writer.h`, `core/util/event.proto`, `core/framework/summary.proto`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::PendingRecords;
use crate::engine::metrics::{Metrics, verl_metrics};
use crate::engine::storage::append_file::AppendFile;
use crate::engine::storage::durable;

/// Directory of event files in the experiment directory.
const DIR_NAME: &str = "tensorboard";
/// Content of the first record of a file.
const FILE_VERSION: &str = "brain.Event:2";

/// An event file, created with its first step. Each engine process writes its own; TensorBoard joins the files of a
/// directory.
#[derive(Debug)]
pub struct EventFile {
    dir: PathBuf,
    file: Option<AppendFile>,
    pending: PendingRecords,
}

impl EventFile {
    /// Creates the log of this run.
    pub fn new(experiment_dir: &Path) -> Self {
        Self {
            dir: experiment_dir.join(DIR_NAME),
            file: None,
            pending: PendingRecords::default(),
        }
    }

    /// Appends a step's metrics, also under verl's names. After an error they are written by the next call, or by [`Self::flush`].
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn append(&mut self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let mut all = metrics.clone();
        all.extend(verl_metrics(metrics));
        self.write(&record(&step_event(now(), global_step, &all)))
    }

    /// Writes pending records.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write(&[])
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        self.pending.then(record, |records| {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(begin(&self.dir)?),
            };
            file.append(records)
        })
    }
}

/// Returns Unix seconds.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn begin(dir: &Path) -> io::Result<AppendFile> {
    durable::create_dir(dir)?;
    let now = now();
    let name = format!("events.out.tfevents.{now:.0}.ajet-swarm.{}", std::process::id());
    let mut file = AppendFile::open(&dir.join(name))?;
    let mut event = Message::default();
    event.double(1, now);
    event.bytes(3, FILE_VERSION.as_bytes());
    file.append(&record(&event.0))?;
    Ok(file)
}

/// Encodes `Event { wall_time = 1, step = 2, summary = 5 }` with one `Summary.Value { tag = 1, simple_value = 2 }` per
/// metric.
fn step_event(now: f64, global_step: u64, metrics: &Metrics) -> Vec<u8> {
    let mut summary = Message::default();
    for (name, value) in metrics {
        let mut entry = Message::default();
        entry.bytes(1, name.as_bytes());
        entry.float(2, *value as f32);
        summary.bytes(1, &entry.0);
    }
    let mut event = Message::default();
    event.double(1, now);
    event.unsigned(2, global_step);
    event.bytes(5, &summary.0);
    event.0
}

/// Encoder of a protocol buffer message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const FIXED_64: u64 = 1;
    const LENGTH_DELIMITED: u64 = 2;
    const FIXED_32: u64 = 5;

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn unsigned(&mut self, field: u64, value: u64) {
        self.key(field, Self::VARINT);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, Self::FIXED_64);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, Self::FIXED_32);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, Self::LENGTH_DELIMITED);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// Masks a checksum as TensorFlow stores it, so that checksums of data with embedded checksums stay strong.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes CRC-32C (Castagnoli) bit by bit: a step's record is only a few kilobytes.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_the_standard_vector() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283); // RFC 3720's check value
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa); // RFC 3720, B.4
        assert_eq!(masked(0), 0xa282_ead8);
    }

    #[test]
    fn an_event_byte_by_byte() {
        let metrics = Metrics::from_iter([("kl".to_owned(), 0.5)]);
        let expected = [
            &[0x09][..],
            &1.0f64.to_le_bytes(),
            &[0x10, 0xac, 0x02],    // step 300
            &[0x2a, 11, 0x0a, 9],   // the summary, and in it one value
            &[0x0a, 2, b'k', b'l'], // its tag
            &[0x15, 0, 0, 0, 0x3f], // 0.5
        ];
        assert_eq!(step_event(1.0, 300, &metrics), expected.concat());
    }

    #[test]
    fn a_file_is_whole_records_with_right_checksums() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = EventFile::new(dir.path());
        let files = || std::fs::read_dir(dir.path().join(DIR_NAME)).map_or(0, Iterator::count);
        assert_eq!(files(), 0);
        for step in 1..=3 {
            events
                .append(step, &Metrics::from_iter([("loss".to_owned(), 1.0)]))
                .unwrap();
        }
        assert_eq!(files(), 1);
        let path = std::fs::read_dir(dir.path().join(DIR_NAME))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        assert!(path.to_string_lossy().contains("tfevents"));
        let bytes = std::fs::read(path).unwrap();
        let (mut rest, mut records) = (bytes.as_slice(), 0);
        while !rest.is_empty() {
            let (length, tail) = rest.split_at(8);
            let (length_check, tail) = tail.split_at(4);
            let (data, tail) = tail.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
            let (data_check, tail) = tail.split_at(4);
            assert_eq!(length_check, masked(crc32c(length)).to_le_bytes());
            assert_eq!(data_check, masked(crc32c(data)).to_le_bytes());
            (rest, records) = (tail, records + 1);
        }
        assert_eq!(records, 4);
    }
}
