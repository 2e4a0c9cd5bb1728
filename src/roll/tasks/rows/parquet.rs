//! Parquet files, row group by row group and page by page.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};

use super::parquet_column::Column;
use super::parquet_record::{Columns, Node};
use super::{Needed, Sink, TaskError, parquet_footer};
use crate::config::small_file::open_regular;

/// Gives the rows of a file to `sink`; only the columns that `needed` names.
pub fn read(path: &Path, needed: Option<&Needed>, sink: &mut Sink) -> Result<(), TaskError> {
    caught(path, || read_rows(path, needed, sink))
}

/// The number of rows that a file says it has.
pub fn count(path: &Path) -> Result<u64, TaskError> {
    caught(path, || {
        let rows = open(path)?.metadata().file_metadata().num_rows();
        rows.try_into()
            .map_err(|_| damaged(path, format!("it says that it has {rows} rows")))
    })
}

/// What `read` gives; the decoder panics on some damaged pages.
fn caught<T>(path: &Path, read: impl FnOnce() -> Result<T, TaskError>) -> Result<T, TaskError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("it gave no reason");
        Err(damaged(path, format!("the decoder failed: {message}")))
    })
}

fn damaged(path: &Path, reason: impl ToString) -> TaskError {
    TaskError::Damaged {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, TaskError> {
    let mut file = open_regular(path).map_err(|reason| TaskError::File {
        path: path.to_path_buf(),
        reason,
    })?;
    parquet_footer::check(&mut file).map_err(|reason| damaged(path, reason))?;
    SerializedFileReader::new(file).map_err(|error| damaged(path, error))
}

fn read_rows(path: &Path, needed: Option<&Needed>, sink: &mut Sink) -> Result<(), TaskError> {
    let reader = open(path)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let fields = schema.root_schema().get_fields();
    let has = |name: &String| fields.iter().any(|field| field.name() == name);
    // Without any column, nothing would bound the number of rows.
    let needed = needed.filter(|needed| !needed.named.is_empty() && needed.named.iter().all(has));
    let is_needed =
        |name: &str| needed.is_none_or(|needed| needed.named.iter().chain(&needed.optional).any(|known| known == name));
    let tree = Node::root(schema.root_schema(), is_needed);
    let tree = tree.map_err(|reason| damaged(path, reason))?;
    let mut is_read = vec![false; schema.num_columns()];
    tree.each_column(&mut |column| is_read[column] = true);
    if !is_read.contains(&true) {
        return Err(damaged(path, "it has no column"));
    }
    let mut row = 0;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(|error| damaged(path, error))?;
        let mut columns = Columns(vec![]);
        for (column, is_read) in is_read.iter().enumerate() {
            columns.0.push(match is_read {
                true => {
                    let values = group.get_column_reader(column).map_err(|error| damaged(path, error))?;
                    Some(Column::new(values, &schema.column(column)))
                }
                false => None,
            });
        }
        for _ in 0..group.metadata().num_rows() {
            row += 1;
            let fail = |reason: String| TaskError::Row {
                path: path.to_path_buf(),
                row,
                reason,
            };
            columns.begin_row().map_err(fail)?;
            let flow = sink(tree.row(&mut columns).map_err(fail)?).map_err(fail)?;
            if flow.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
