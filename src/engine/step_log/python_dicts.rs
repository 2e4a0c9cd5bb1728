//! What `train_print_to_markdown_file_path` and `val_print_to_markdown_file_path` name: as from AgentJet, a file with a
//! Python dict a line, for programs that read them with `ast.literal_eval`.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::number;
use crate::engine::metrics::Metrics;

/// A file that lines are appended to.
#[derive(Debug)]
pub struct PythonDicts(PathBuf);

impl PythonDicts {
    /// Makes the file and the directories above it. A relative path begins at the working directory of the server.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let file = Self(path.to_owned());
        file.appended()?;
        Ok(file)
    }

    /// Appends the metrics of a step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&self, global_step: u64, metrics: &Metrics) -> io::Result<()> {
        let mut line = format!("{{'training/global_step': {global_step}");
        for (name, value) in metrics.iter().filter(|(_, value)| value.is_finite()) {
            // Writing to a string cannot fail.
            let _ = write!(line, ", {}: {}", quoted(name), number(*value));
        }
        line += "}\n";
        self.appended()?.write_all(line.as_bytes())
    }

    /// Opened for each line: whoever reads the file may have moved it away.
    fn appended(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).open(&self.0)
    }
}

/// A Python string literal.
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
}
