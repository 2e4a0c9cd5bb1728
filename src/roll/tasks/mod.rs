//! Tasks, and where they come from.

mod generated;
mod jsonl;

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::schema::TaskReader;
use crate::protocol::openai::ChatMessage;

/// One task. Templates see its fields by these names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Groups the episodes of the task.
    pub task_id: String,
    /// The question, where it is one text.
    pub main_query: String,
    /// The conversation so far, where there is one.
    pub init_messages: Vec<ChatMessage>,
    /// Kind of environment, for agents that know several.
    pub env_type: String,
    /// Anything else, such as the answer.
    pub metadata: Value,
}

impl Task {
    /// A number that is the same wherever and whenever the task is run, for games that need a random start.
    pub fn seed(&self) -> u32 {
        let hash = Sha256::digest(self.task_id.as_bytes());
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    }
}

/// What a job's task reader gives.
#[derive(Clone, Debug, Default)]
pub struct TaskSets {
    /// To train on.
    pub training: Vec<Task>,
    /// To evaluate on; may be empty.
    pub validation: Vec<Task>,
    /// Sentences for the log, such as ids that occur twice.
    pub warnings: Vec<String>,
}

/// Why tasks could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No reader of that name.
    #[error("ajet.task_reader.type: {0:?} is not one of jsonl_dataset_file, arithmetic, reverse_text")]
    Kind(String),
    /// A key that the reader needs.
    #[error("{key} is missing: {what}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it is for.
        what: &'static str,
    },
    /// A file that cannot be read.
    #[error("the task file {} cannot be read: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A file without tasks.
    #[error("the task file {} holds no task", .0.display())]
    Empty(PathBuf),
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
    /// More distinct tasks than there are.
    #[error(
        "ajet.task_reader.{kind} is asked for {asked} distinct tasks, but only {exist} exist with lengths from {min_length} to {max_length}"
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
    #[error("ajet.task_reader.{kind}: lengths from {min_length} to {max_length} are not a range within 1 to {most}")]
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

/// Reads or makes the tasks of a job.
///
/// # Errors
/// A file that is missing, empty or has a bad line, told with file and line; a generated set that is too large.
pub fn read(reader: &TaskReader) -> Result<TaskSets, TaskError> {
    let mut sets = match reader.kind.as_str() {
        "jsonl_dataset_file" => jsonl::read(&reader.jsonl_dataset_file)?,
        "arithmetic" => generated::arithmetic(&reader.arithmetic)?,
        "reverse_text" => generated::reverse_text(&reader.reverse_text)?,
        other => return Err(TaskError::Kind(other.to_string())),
    };
    for (what, tasks) in [("training", &sets.training), ("validation", &sets.validation)] {
        sets.warnings.extend(duplicates(what, tasks));
    }
    Ok(sets)
}

/// A sentence on ids that occur more than once, since their episodes would be one group.
fn duplicates(what: &str, tasks: &[Task]) -> Option<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for task in tasks {
        *counts.entry(&task.task_id).or_default() += 1;
    }
    let twice: Vec<_> = tasks
        .iter()
        .filter(|task| counts.remove(task.task_id.as_str()) > Some(1))
        .collect();
    let first = twice.first()?;
    Some(format!(
        "{} task ids occur more than once among the {what} tasks, such as {:?}; episodes of equal ids form one group",
        twice.len(),
        first.task_id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> Task {
        Task {
            task_id: id.into(),
            ..Task::default()
        }
    }

    #[test]
    fn equal_ids_are_reported_once() {
        let tasks = ["a", "b", "a", "c", "c", "a"].map(task);
        let sentence = duplicates("training", &tasks).unwrap();
        assert!(sentence.starts_with("2 task ids occur more than once"), "{sentence}");
        assert!(sentence.contains("\"a\""), "{sentence}");
        assert_eq!(duplicates("training", &tasks[..2]), None);
    }

    #[test]
    fn the_seed_of_a_task_never_changes() {
        assert_eq!(task("task_1").seed(), task("task_1").seed());
        assert_ne!(task("task_1").seed(), task("task_2").seed());
        assert_eq!(task("").seed(), 0xe3b0_c442);
    }

    #[test]
    fn an_unknown_reader_is_an_error_that_names_the_known_ones() {
        let reader = TaskReader {
            kind: "jsonl".into(),
            ..TaskReader::default()
        };
        let message = read(&reader).unwrap_err().to_string();
        assert!(
            message.contains("\"jsonl\" is not one of jsonl_dataset_file"),
            "{message}"
        );
    }
}
