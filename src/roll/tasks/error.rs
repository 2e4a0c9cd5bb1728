//! Why tasks could not be read.

use std::path::PathBuf;

use crate::roll::process::ProgramError;
use crate::roll::template::TemplateError;

/// Why tasks could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No reader of that name.
    #[error("ajet.task_reader.type: {given:?} is not one of {}", .known.join(", "))]
    Kind {
        /// As configured.
        given: String,
        /// The readers there are.
        known: &'static [&'static str],
    },
    /// A key that the reader needs.
    #[error("{key} is missing: {what}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it is for.
        what: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A file that is not what its name says.
    #[error("{} is damaged or not a Parquet file: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The decoder's reason.
        reason: String,
    },
    /// A file of another format, given as JSON lines.
    #[error(
        "{path} is not a JSON Lines file\nhint: ajet.task_reader: {{type: huggingface_dat_repo, huggingface_dat_repo: \
         {{dataset_path: {path}}}}} reads it", path = .0.display()
    )]
    NotJsonLines(PathBuf),
    /// A JSON file without the key that should hold its rows.
    #[error("{} has no field {field:?} with a list of rows", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// As configured.
        field: String,
    },
    /// A line that is not a task.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A row that is not a task.
    #[error("{}, row {row}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Files without a task.
    #[error("{what} contains no task\nhint: add tasks, or name another file or split in ajet.task_reader")]
    Empty {
        /// The file, or the data set and its split.
        what: String,
    },
    /// Rows, but none that the filter keeps.
    #[error("{what}: ajet.task_reader.filter keeps none of {rows} rows\nhint: the filter is `{filter}`")]
    FilteredOut {
        /// The file, or the data set and its split.
        what: String,
        /// Rows that were read.
        rows: usize,
        /// As configured.
        filter: String,
    },
    /// No data set of that name.
    #[error(
        "no file or directory `{path}` found, and cannot download its {file} from the hub: {reason}\n\
         hint: check the path or id and the network (HF_ENDPOINT names a mirror, HF_TOKEN opens gated data sets)"
    )]
    NoDataset {
        /// As configured.
        path: String,
        /// The requested file of the hub.
        file: String,
        /// The hub client's message.
        reason: String,
    },
    /// A path that is neither there nor a hub id.
    #[error(
        "no file or directory `{0}` found\n\
         hint: ajet.task_reader.huggingface_dat_repo.dataset_path must be a directory or file of a data set, or a hub id such as openai/gsm8k"
    )]
    NoSuchPath(String),
    /// A directory that is no data set.
    #[error("{path}: {reason}")]
    Layout {
        /// The data set.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration that the data set does not have.
    #[error(
        "{path} has no configuration {given:?}\nhint: set ajet.task_reader.huggingface_dat_repo.dataset_name to one of \
         {}", .known.join(", ")
    )]
    Config {
        /// The data set.
        path: String,
        /// As configured.
        given: String,
        /// What it has.
        known: Vec<String>,
    },
    /// Several configurations and no choice among them.
    #[error(
        "{path} has several configurations and no default one\n\
         hint: set ajet.task_reader.huggingface_dat_repo.dataset_name to one of {}", .known.join(", ")
    )]
    NoConfig {
        /// The data set.
        path: String,
        /// What it has.
        known: Vec<String>,
    },
    /// A split that the data set does not have.
    #[error(
        "{path} has no split {given:?}\nhint: set ajet.task_reader.huggingface_dat_repo.{key} to one of {}",
        .known.join(", ")
    )]
    Split {
        /// The data set.
        path: String,
        /// The key that names the split.
        key: &'static str,
        /// As configured.
        given: String,
        /// What it has.
        known: Vec<String>,
    },
    /// A template of the task reader that is wrong.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A value of the task reader that is not allowed.
    #[error("{key}: {given:?} is not {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// As configured.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A program that prints tasks failed.
    #[error("the task program failed: {0}")]
    Program(#[from] ProgramError),
    /// A program that prints tasks printed something else.
    #[error("line {line} of the output of {program:?} is not a task: {reason}")]
    Printed {
        /// The program.
        program: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The thread that read the tasks panicked.
    #[error("the thread that reads the tasks failed: {0}")]
    Thread(String),
    /// More distinct tasks than there are.
    #[error(
        "ajet.task_reader.{kind} requires {asked} distinct tasks, but only {exist} exist with lengths from {min_length} to \
         {max_length}"
    )]
    TooMany {
        /// The reader.
        kind: &'static str,
        /// Training and validation tasks.
        asked: usize,
        /// How many there are.
        exist: f64,
        /// Of the configuration.
        min_length: usize,
        /// Of the configuration.
        max_length: usize,
    },
    /// Lengths out of order.
    #[error(
        "ajet.task_reader.{kind}: min_length {min_length} and max_length {max_length} are not a range within 1 to {most}"
    )]
    Lengths {
        /// The reader.
        kind: &'static str,
        /// Of the configuration.
        min_length: usize,
        /// Of the configuration.
        max_length: usize,
        /// Longest that the reader makes.
        most: usize,
    },
}
