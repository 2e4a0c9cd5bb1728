//! Comma-separated values. The types of columns are inferred from their values, as pandas and `datasets` do.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};

use super::bounded::{Bounded, Budget};
use super::csv_type::Type;
use super::{Options, Row, Sink, TaskError, open};

/// Rows that the types of the columns are inferred from.
const SAMPLE: usize = 10_000;

/// Gives the rows of a file to `sink`. The file is opened twice: the types of the columns are inferred from its first
/// rows.
pub fn read(path: &Path, options: &Options, delimiter: u8, sink: &mut Sink) -> Result<(), TaskError> {
    let mut record = StringRecord::new();
    let mut sample = Table::open(path, options, delimiter)?;
    let mut types = vec![Type::Missing; sample.names.len()];
    for _ in 0..SAMPLE {
        if !sample.next(&mut record)? {
            break;
        }
        for (kind, text) in types.iter_mut().zip(&record) {
            *kind = kind.with(text);
        }
    }
    let mut table = Table::open(path, options, delimiter)?;
    while table.next(&mut record)? {
        // Rows may be short, as pandas has it; what they lack is null.
        let texts = record.iter().chain(std::iter::repeat(""));
        let fields = table.names.iter().zip(&types).zip(texts);
        let row: Row = fields
            .map(|((name, kind), text)| (name.clone(), kind.value(text)))
            .collect();
        let flow = sink(row).map_err(|reason| table.wrong(line_of(&record), reason))?;
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// The records of a file after its header.
struct Table<'a> {
    path: &'a Path,
    reader: Reader<BufReader<Bounded<Box<dyn BufRead>>>>,
    budget: Budget,
    names: Vec<String>,
}

impl<'a> Table<'a> {
    fn open(path: &'a Path, options: &Options, delimiter: u8) -> Result<Self, TaskError> {
        let budget = Budget::new();
        let text = Bounded::new(open::text(path)?, budget.clone()).map_err(|reason| TaskError::File {
            path: path.to_path_buf(),
            reason,
        })?;
        let reader = ReaderBuilder::new()
            .delimiter(options.delimiter.unwrap_or(delimiter))
            .quote(options.quote.unwrap_or(b'"'))
            .has_headers(false)
            .flexible(true)
            .from_reader(BufReader::new(text));
        let mut table = Self {
            path,
            reader,
            budget,
            names: options.column_names.clone().unwrap_or_default(),
        };
        if options.column_names.is_none() {
            let mut header = StringRecord::new();
            table.read(&mut header)?;
            table.names = distinct(&header);
        }
        Ok(table)
    }

    /// Reads the next record; false at the end.
    fn next(&mut self, record: &mut StringRecord) -> Result<bool, TaskError> {
        let read = self.read(record)?;
        let (columns, values) = (self.names.len(), record.len());
        if read && values > columns {
            let reason = format!("the row has {values} values, but there are {columns} columns");
            return Err(self.wrong(line_of(record), reason));
        }
        Ok(read)
    }

    fn read(&mut self, record: &mut StringRecord) -> Result<bool, TaskError> {
        self.budget.reset();
        self.reader.read_record(record).map_err(|error| {
            let line = match error.position() {
                Some(position) => position.line(),
                None => self.reader.position().line(),
            };
            let reason = match error.kind() {
                ErrorKind::Io(error) => error.to_string(),
                ErrorKind::Utf8 { err, .. } => format!("not UTF-8: {err}"),
                _ => error.to_string(),
            };
            self.wrong(line as usize, reason)
        })
    }

    fn wrong(&self, line: usize, reason: String) -> TaskError {
        TaskError::Line {
            path: self.path.to_path_buf(),
            line,
            reason,
        }
    }
}

/// The line that a record begins at.
fn line_of(record: &StringRecord) -> usize {
    record.position().map_or(0, |position| position.line() as usize)
}

/// The names of a header, distinct as pandas makes them: `a`, `a.1`, and `Unnamed: 2` where there is none.
fn distinct(header: &StringRecord) -> Vec<String> {
    let mut seen = HashSet::new();
    let name = |(index, name): (usize, &str)| {
        let name = match name {
            "" => format!("Unnamed: {index}"),
            name => name.to_owned(),
        };
        let mut unique = name.clone();
        for copy in 1.. {
            if seen.insert(unique.clone()) {
                break;
            }
            unique = format!("{name}.{copy}");
        }
        unique
    };
    header.iter().enumerate().map(name).collect()
}
