//! Tasks, and where they come from.

mod command;
mod dataset;
mod error;
mod generated;
mod jsonl;
mod rows;
mod select;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::config::schema::TaskReader;
use crate::protocol::openai::ChatMessage;
pub use error::TaskError;
use select::Selection;

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

/// Names of the readers.
const READERS: [&str; 6] = [
    "jsonl_dataset_file",
    "huggingface_dat_repo",
    "command",
    "random_dummy",
    "arithmetic",
    "reverse_text",
];

/// Reads or makes the tasks of a job.
///
/// # Errors
/// Fails if a file is missing, empty or has an invalid row, or if a generated set is too large.
pub async fn read(reader: &TaskReader) -> Result<TaskSets, TaskError> {
    let selection = Selection::new(reader)?;
    let mut sets = match reader.kind.as_str() {
        "arithmetic" => generated::arithmetic(&reader.arithmetic)?,
        "reverse_text" => generated::reverse_text(&reader.reverse_text)?,
        "random_dummy" => generated::random_dummy(&reader.random_dummy),
        "command" => command::read(&reader.command, &selection).await?,
        _ => read_files(reader.clone(), selection.clone()).await?,
    };
    if ["arithmetic", "reverse_text", "random_dummy"].contains(&reader.kind.as_str()) && !selection.is_everything() {
        sets.warnings.push(format!(
            "ajet.task_reader: limit, filter and columns have no effect on tasks of type {}",
            reader.kind
        ));
    }
    for (what, tasks) in [("training", &sets.training), ("validation", &sets.validation)] {
        sets.warnings.extend(duplicates(what, tasks));
        if reader.kind != "random_dummy" {
            sets.warnings.extend(without_query(what, tasks));
        }
    }
    Ok(sets)
}

/// Reads files, which may take minutes where they are large or come from the hub.
async fn read_files(reader: TaskReader, selection: Selection) -> Result<TaskSets, TaskError> {
    let read = tokio::task::spawn_blocking(move || match reader.kind.as_str() {
        "jsonl_dataset_file" => jsonl::read(&reader.jsonl_dataset_file, &selection),
        "huggingface_dat_repo" => dataset::read(&reader.huggingface_dat_repo, &selection),
        other => Err(TaskError::Kind {
            given: other.to_owned(),
            known: &READERS,
        }),
    });
    read.await
        .unwrap_or_else(|error| Err(TaskError::Thread(error.to_string())))
}

/// A sentence on tasks that ask nothing.
fn without_query(what: &str, tasks: &[Task]) -> Option<String> {
    let asks_nothing = |task: &&Task| task.main_query.is_empty() && task.init_messages.is_empty();
    let count = tasks.iter().filter(asks_nothing).count();
    let first = tasks.iter().find(asks_nothing)?;
    let fields = first.metadata.as_object().filter(|_| !first.task_id.is_empty())?;
    let names: Vec<_> = fields.keys().take(20).map(String::as_str).collect();
    let hint = match column_for(fields) {
        Some(column) => format!("set ajet.task_reader.columns, such as {column}, unless the agent needs none"),
        None => "none of them can be a question; a CSV file separates its values with commas".into(),
    };
    Some(format!(
        "{count} of {} {what} tasks have no main_query; their fields are {}\nhint: {hint}",
        tasks.len(),
        names.join(", ")
    ))
}

/// An entry of `columns` that makes a question of one of these fields: of a conversation, or else of a text, or else of
/// any.
fn column_for(fields: &Map<String, Value>) -> Option<String> {
    let is_name = |name: &&str| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let named = |is_wanted: fn(&Value) -> bool| {
        let mut wanted = fields
            .iter()
            .filter(|(_, value)| is_wanted(value))
            .map(|(name, _)| name.as_str());
        wanted.find(is_name)
    };
    let is_conversation = |value: &Value| value[0]["role"].is_string();
    if let Some(name) = named(is_conversation) {
        return Some(format!("init_messages: \"{{{{ {name} }}}}\""));
    }
    let name = named(Value::is_string).or_else(|| named(|_| true))?;
    Some(format!("main_query: \"{{{{ {name} }}}}\""))
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

    #[tokio::test]
    async fn an_unknown_reader_is_an_error_that_names_the_known_ones() {
        let reader = TaskReader {
            kind: "jsonl".into(),
            ..TaskReader::default()
        };
        let message = read(&reader).await.unwrap_err().to_string();
        assert!(
            message.contains("\"jsonl\" is not one of jsonl_dataset_file"),
            "{message}"
        );
    }

    #[test]
    fn tasks_that_ask_nothing_are_reported_with_what_could_be_asked() {
        let with = |metadata: Value| Task { metadata, ..task("a") };
        let problem = serde_json::json!({"problem": "1+1", "solution": 2});
        let sentence = without_query("training", &[with(problem.clone())]).unwrap();
        assert!(sentence.starts_with("1 of 1 training tasks have no main_query; their fields are problem, solution"));
        assert!(sentence.contains(r#"main_query: "{{ problem }}""#), "{sentence}");
        // Seen with conversations as OpenAI has them, and with a CSV file whose values are separated by semicolons.
        for (fields, hint) in [
            (
                serde_json::json!({"id": 1, "prompt": [{"role": "user", "content": "hi"}]}),
                r#"init_messages: "{{ prompt }}""#,
            ),
            (
                serde_json::json!({"level": 1, "problem": "1+1"}),
                r#"main_query: "{{ problem }}""#,
            ),
            (
                serde_json::json!({"question;answer": "1+1;2"}),
                "separates its values with commas",
            ),
        ] {
            let sentence = without_query("training", &[with(fields)]).unwrap();
            assert!(sentence.contains(hint), "{sentence}");
        }
        let asked = Task {
            main_query: "1+1".into(),
            ..with(problem)
        };
        assert_eq!(without_query("training", &[asked, task("b")]), None);
    }
}
