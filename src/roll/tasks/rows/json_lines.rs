//! Files with a JSON object a line.

use std::io::{BufRead, Read};
use std::path::Path;

use serde_json::Value;

use super::bounded::too_long;
use super::{ROW_BYTES, Row, Sink, TaskError};

/// Gives the objects of `reader` to `sink`; `path` names it in errors. Empty lines are skipped.
pub fn read(path: &Path, mut reader: impl BufRead, sink: &mut Sink) -> Result<(), TaskError> {
    let mut line = vec![];
    for number in 1.. {
        let fail = |reason: String| TaskError::Line {
            path: path.to_path_buf(),
            line: number,
            reason,
        };
        line.clear();
        let mut bounded = reader.by_ref().take(ROW_BYTES + 1);
        let read = bounded
            .read_until(b'\n', &mut line)
            .map_err(|error| fail(error.to_string()))?;
        if read == 0 {
            break;
        }
        if read as u64 > ROW_BYTES {
            return Err(fail(too_long().to_string()));
        }
        let text = std::str::from_utf8(&line).map_err(|error| fail(format!("not UTF-8: {error}")))?;
        let text = match number {
            1 => text.strip_prefix('\u{feff}').unwrap_or(text),
            _ => text,
        };
        if let Some(row) = parse_line(text).map_err(fail)?
            && sink(row).map_err(fail)?.is_break()
        {
            break;
        }
    }
    Ok(())
}

/// The object of a line; `None` where it is empty.
///
/// # Errors
/// Fails if it is not a JSON object.
pub fn parse_line(line: &str) -> Result<Option<Row>, String> {
    let text = line.trim();
    if text.is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(row)) => Ok(Some(row)),
        Ok(_) => Err(format!(
            "not a JSON object: {}",
            text.chars().take(80).collect::<String>()
        )),
        Err(error) => Err(format!("not JSON: {}", without_line(&error))),
    }
}

/// serde_json counts lines within the one line that it was given; only the column means something.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => message,
    }
}
