//! Parquet files, row group by row group and page by page.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::parquet_column::Column;
use super::parquet_record::{Columns, Node};
use super::{Sink, TaskError, parquet_footer};
use crate::config::small_file::open_regular;

/// Gives the rows of a file to `sink`; only the columns that `needed` names.
pub fn read(path: &Path, needed: Option<&[String]>, sink: &mut Sink) -> Result<(), TaskError> {
    // The decoder panics on some damaged pages.
    let read = catch_unwind(AssertUnwindSafe(|| read_rows(path, needed, sink)));
    read.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(TaskError::Damaged {
            path: path.to_path_buf(),
            reason: format!("the decoder failed: {}", message.unwrap_or("it gave no reason")),
        })
    })
}

fn read_rows(path: &Path, needed: Option<&[String]>, sink: &mut Sink) -> Result<(), TaskError> {
    let damaged = |reason: String| TaskError::Damaged {
        path: path.to_path_buf(),
        reason,
    };
    let mut file = open_regular(path).map_err(|reason| TaskError::File {
        path: path.to_path_buf(),
        reason,
    })?;
    parquet_footer::check(&mut file).map_err(damaged)?;
    let told = |error: ParquetError| damaged(error.to_string());
    let reader = SerializedFileReader::new(file).map_err(told)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let is_needed = |name: &str| needed.is_none_or(|needed| needed.iter().any(|known| known == name));
    let tree = Node::root(schema.root_schema(), is_needed).map_err(damaged)?;
    let mut is_read = vec![false; schema.num_columns()];
    tree.each_column(&mut |column| is_read[column] = true);
    let mut row = 0;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(told)?;
        let mut columns = Columns(vec![]);
        for (column, is_read) in is_read.iter().enumerate() {
            columns.0.push(match is_read {
                true => Some(Column::new(
                    group.get_column_reader(column).map_err(told)?,
                    &schema.column(column),
                )),
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
