//! A column of a row group: its values with their levels, one after another.
//!
//! A value's *definition level* says how much of its path is there, its *repetition level* at which list it goes on.

use std::vec;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;
use serde_json::Value;

use super::parquet_value::{Meaning, float};

/// Rows that are decoded at once.
const BATCH: usize = 64;

/// Reads a column value by value.
pub struct Column {
    reader: ColumnReader,
    meaning: Meaning,
    name: String,
    most_definition: i16,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: vec::IntoIter<Value>,
    /// Values of the batch, nulls among them.
    length: usize,
    /// How many of them were taken.
    taken: usize,
}

impl Column {
    /// Reads the column that `descriptor` describes.
    pub fn new(reader: ColumnReader, descriptor: &ColumnDescriptor) -> Self {
        Self {
            reader,
            meaning: Meaning::of(descriptor),
            name: descriptor.path().string(),
            most_definition: descriptor.max_def_level(),
            definitions: vec![],
            repetitions: vec![],
            values: vec![].into_iter(),
            length: 0,
            taken: 0,
        }
    }

    /// Gets the next row ready.
    ///
    /// # Errors
    /// Fails if the column is damaged or has no further row.
    pub fn begin_row(&mut self) -> Result<(), String> {
        if self.taken < self.length {
            return match self.repetition() {
                0 => Ok(()),
                _ => Err(self.wrong("its rows are not those of the other columns")),
            };
        }
        self.fill()?;
        match self.length {
            0 => Err(self.wrong("it has fewer rows than the file says")),
            _ => Ok(()),
        }
    }

    /// The definition level of the next value of this row.
    ///
    /// # Errors
    /// Fails if the row has no further value.
    pub fn definition(&self) -> Result<i16, String> {
        match self.taken < self.length {
            true => Ok(self
                .definitions
                .get(self.taken)
                .copied()
                .unwrap_or(self.most_definition)),
            false => Err(self.wrong("a row ends early")),
        }
    }

    /// The repetition level of the next value; 0 where a row begins or nothing is left.
    pub fn repetition(&self) -> i16 {
        match self.taken < self.length {
            true => self.repetitions.get(self.taken).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// Takes the next value of this row.
    ///
    /// # Errors
    /// Fails if the row has no further value.
    pub fn take(&mut self) -> Result<Value, String> {
        let is_there = self.definition()? == self.most_definition;
        self.taken += 1;
        match is_there {
            true => self.values.next().ok_or_else(|| self.wrong("a value is missing")),
            false => Ok(Value::Null),
        }
    }

    fn wrong(&self, what: &str) -> String {
        format!("column {}: {what}", self.name)
    }

    fn fill(&mut self) -> Result<(), String> {
        let meaning = self.meaning;
        let (definitions, repetitions) = (&mut self.definitions, &mut self.repetitions);
        definitions.clear();
        repetitions.clear();
        let mut levels = (definitions, repetitions);
        let batch = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => batch(reader, &mut levels, |value| Ok((*value).into())),
            ColumnReader::Int32ColumnReader(reader) => batch(reader, &mut levels, |value| Ok(meaning.int32(*value))),
            ColumnReader::Int64ColumnReader(reader) => batch(reader, &mut levels, |value| Ok(meaning.int64(*value))),
            ColumnReader::Int96ColumnReader(reader) => batch(reader, &mut levels, |value| Ok(meaning.int96(value))),
            ColumnReader::FloatColumnReader(reader) => batch(reader, &mut levels, |value| Ok(float((*value).into()))),
            ColumnReader::DoubleColumnReader(reader) => batch(reader, &mut levels, |value| Ok(float(*value))),
            ColumnReader::ByteArrayColumnReader(reader) => {
                batch(reader, &mut levels, |value: &ByteArray| meaning.bytes(value.data()))
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                batch(reader, &mut levels, |value: &FixedLenByteArray| {
                    meaning.bytes(value.data())
                })
            }
        };
        let (values, length) = batch.map_err(|reason| self.wrong(&reason))?;
        self.values = values.into_iter();
        self.length = length;
        self.taken = 0;
        Ok(())
    }
}

/// The values of the next rows, and how many there are with those that are null.
fn batch<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    (definitions, repetitions): &mut (&mut Vec<i16>, &mut Vec<i16>),
    convert: impl Fn(&T::T) -> Result<Value, String>,
) -> Result<(Vec<Value>, usize), String> {
    let mut values = vec![];
    let (_, _, length) = reader
        .read_records(BATCH, Some(definitions), Some(repetitions), &mut values)
        .map_err(|error: ParquetError| error.to_string())?;
    Ok((values.iter().map(convert).collect::<Result<_, _>>()?, length))
}
