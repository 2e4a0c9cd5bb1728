//! The rows of a file, one at a time: JSON lines, JSON, CSV and Parquet, the texts among them compressed or not.
//!
//! No reader holds more of a file than the row that it is at; of Parquet, the pages that the row is in.

mod bounded;
mod csv;
mod csv_type;
mod json;
mod json_lines;
mod open;
mod parquet;
mod parquet_column;
mod parquet_footer;
mod parquet_record;
mod parquet_value;

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Map, Value};

use super::TaskError;
pub use json_lines::parse_line;

/// Maximum number of bytes of a row's text; fewer in tests, so that they are quick.
pub const ROW_BYTES: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// A row: its columns by name, in the file's order.
pub type Row = Map<String, Value>;

/// Takes the rows of a file in their order, until it breaks; an error is what is wrong with the row.
pub type Sink<'a> = dyn FnMut(Row) -> Result<ControlFlow<()>, String> + 'a;

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON object a line.
    JsonLines,
    /// A list of objects, or objects one after another.
    Json,
    /// Comma-separated values.
    Csv,
    /// Tab-separated values.
    Tsv,
    /// Apache Parquet.
    Parquet,
}

/// What a file does not say about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Of JSON: the key of the top-level object that holds the list of rows.
    pub field: Option<String>,
    /// Of CSV: the character between values; the format's own where none is given.
    pub delimiter: Option<u8>,
    /// Of CSV: the character around values that hold a delimiter.
    pub quote: Option<u8>,
    /// Of CSV without a header: the names of its columns.
    pub column_names: Option<Vec<String>>,
    /// The only columns that are needed; all where none are given. A reader may give more.
    pub needed: Option<Needed>,
}

/// Columns that tasks are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Have to be there. Where one is not, all columns are read, so that a message can name them.
    pub named: Vec<String>,
    /// Are read where they are there.
    pub optional: Vec<String>,
}

impl Format {
    /// The format of a file with this extension, in lower case.
    pub fn of_extension(extension: &str) -> Option<Self> {
        Some(match extension {
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::Json,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }

    /// Returns the format that a file's name stands for: the last extension that names one, as in `train.jsonl.gz`.
    pub fn of_name(name: &str) -> Option<Self> {
        let extensions = name.split('.').skip(1).collect::<Vec<_>>();
        let known = |extension: &&str| Self::of_extension(&extension.to_lowercase());
        extensions.iter().rev().find_map(known)
    }
}

/// The number of a file's rows. Of Parquet it is written there; other files are read for it.
///
/// # Errors
/// As of [`read`].
pub fn count(path: &Path, format: Format, options: &Options) -> Result<u64, TaskError> {
    if format == Format::Parquet {
        return parquet::count(path);
    }
    let mut count = 0;
    read(path, format, options, &mut |_| {
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Gives the rows of the file at `path` to `sink`.
///
/// # Errors
/// Fails if the file cannot be read or is damaged, with the place; or what `sink` says of a row.
pub fn read(path: &Path, format: Format, options: &Options, sink: &mut Sink) -> Result<(), TaskError> {
    match format {
        Format::JsonLines => json_lines::read(path, open::text(path)?, sink),
        Format::Json => json::read(path, open::text(path)?, options.field.as_deref(), sink),
        Format::Csv => csv::read(path, options, b',', sink),
        Format::Tsv => csv::read(path, options, b'\t', sink),
        Format::Parquet => parquet::read(path, options.needed.as_ref(), sink),
    }
}

#[cfg(test)]
mod tests;
