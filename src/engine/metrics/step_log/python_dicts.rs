//! Files named by `train_print_to_markdown_file_path` and `val_print_to_markdown_file_path`: one Python dict per line,
//! as AgentJet writes them, for programs that parse them with `ast.literal_eval`.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::{PendingRecords, number};
use crate::engine::metrics::Metrics;
use crate::engine::storage::append_file::AppendFile;
use crate::engine::storage::durable;

/// A file to which lines are appended. It is opened for each line, since its reader may have moved it.
#[derive(Debug)]
pub struct PythonDicts {
    path: PathBuf,
    pending: PendingRecords,
}

impl PythonDicts {
    /// Creates the file and its parent directories. A relative path starts at the server's working directory.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            durable::create_dir(directory)?;
        }
        AppendFile::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            pending: PendingRecords::default(),
        })
    }

    /// Appends a step's metrics. After an error they are written by the next call, or by [`Self::flush`].
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn append(&mut self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let mut line = format!("{{'training/global_step': {global_step}");
        for (name, value) in metrics.iter().filter(|(_, value)| value.is_finite()) {
            // Writing to a string cannot fail.
            let _ = write!(line, ", {}: {}", quoted(name), number(*value));
        }
        line += "}\n";
        self.write(line.as_bytes())
    }

    /// Writes pending records.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write(&[])
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.pending
            .then(line, |lines| AppendFile::open(&self.path)?.append(lines))
    }
}

/// Formats a Python string literal.
fn quoted(text: &str) -> String {
    let mut literal = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => literal.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(literal, "\\u{:04x}", u32::from(c)); // control characters are below 0x100
            }
            c => literal.push(c),
        }
    }
    literal + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_python_dict_and_lines_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/results/train.md");
        let metrics = [
            ("episodes", 8.0),
            ("reward_mean", 0.5),
            ("tiny", 1e-7),
            ("lost", f64::NAN),
            ("it's a \\ tag\n", -1.0),
        ];
        let metrics: Metrics = metrics
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect();
        PythonDicts::open(&path).unwrap().append(1, &metrics).unwrap();
        PythonDicts::open(&path).unwrap().append(2, &Metrics::new()).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{'training/global_step': 1, 'episodes': 8, 'reward_mean': 0.5, 'tiny': 1e-7, 'it\\'s a \\\\ tag\\u000a': -1}\n\
             {'training/global_step': 2}\n"
        );
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(PythonDicts::open(&dir.path().join("file/train.md")).is_err());
    }

    // A pipe without a reader would hold up whoever opens it, and a device is no place for lines.
    #[test]
    fn a_file_that_is_away_gets_its_lines_later_and_a_pipe_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.md");
        let mut dicts = PythonDicts::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        for step in [1, 2] {
            dicts.append(step, &Metrics::new()).unwrap_err();
        }
        std::fs::remove_dir(&path).unwrap();
        dicts.flush().unwrap();
        let lines = "{'training/global_step': 1}\n{'training/global_step': 2}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for special in [pipe.as_path(), Path::new("/dev/full"), Path::new("/dev/null")] {
            let refused = PythonDicts::open(special).unwrap_err().to_string();
            assert!(
                refused.contains("only regular files are used"),
                "{}: {refused}",
                special.display()
            );
        }
    }
}
