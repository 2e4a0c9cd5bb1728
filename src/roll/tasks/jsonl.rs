//! Tasks from files with a JSON object a line.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{Task, TaskError, TaskSets};
use crate::config::schema::JsonlDatasetFile;
use crate::config::small_file::{DATASET_BYTES, read_text};
use crate::protocol::openai::ChatMessage;

/// Reads both files; the validation file may be left out.
pub fn read(files: &JsonlDatasetFile) -> Result<TaskSets, TaskError> {
    if files.training.file_path.is_empty() {
        return Err(TaskError::Missing {
            key: "ajet.task_reader.jsonl_dataset_file.training.file_path",
            what: "the file of tasks, a JSON object a line",
        });
    }
    let validation = match files.validation.file_path.as_str() {
        "" => vec![],
        path => read_file(Path::new(path))?,
    };
    Ok(TaskSets {
        training: read_file(Path::new(&files.training.file_path))?,
        validation,
        warnings: vec![],
    })
}

fn read_file(path: &Path) -> Result<Vec<Task>, TaskError> {
    let text = read_text(path, DATASET_BYTES).map_err(|reason| TaskError::File {
        path: path.to_path_buf(),
        reason,
    })?;
    let tasks = parse(path, &text)?;
    match tasks.is_empty() {
        true => Err(TaskError::Empty(path.to_path_buf())),
        false => Ok(tasks),
    }
}

/// The fields that mean something; whatever else a line has is reached through `metadata`.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    task_id: Option<Value>,
    #[serde(default)]
    main_query: Option<String>,
    #[serde(default)]
    init_messages: Option<Vec<ChatMessage>>,
    #[serde(default)]
    env_type: Option<String>,
    #[serde(default)]
    metadata: Option<Value>,
}

/// `path` only names the file in errors.
fn parse(path: &Path, text: &str) -> Result<Vec<Task>, TaskError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .enumerate()
        .map(|(row, (index, line))| {
            task(row, line).map_err(|reason| TaskError::Line {
                path: PathBuf::from(path),
                line: index + 1,
                reason,
            })
        })
        .collect()
}

/// A line's task; `row` counts tasks from 0 and names those without an id.
fn task(row: usize, line: &str) -> Result<Task, String> {
    let object: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {}", without_line(&error)))?;
    if !object.is_object() {
        return Err(format!(
            "not a JSON object: {}",
            line.trim().chars().take(80).collect::<String>()
        ));
    }
    let fields: Line = serde_json::from_str(line).map_err(|error| without_line(&error))?;
    let task_id = match fields.task_id {
        None | Some(Value::Null) => format!("task_{row}"),
        Some(Value::String(id)) if !id.is_empty() => id,
        Some(Value::Number(id)) => id.to_string(),
        Some(other) => return Err(format!("task_id is {other}, but it must be a text that is not empty")),
    };
    Ok(Task {
        task_id,
        main_query: fields.main_query.unwrap_or_default(),
        init_messages: fields.init_messages.unwrap_or_default(),
        env_type: fields.env_type.unwrap_or_default(),
        metadata: fields.metadata.unwrap_or(object),
    })
}

/// serde_json counts lines within the one line that it was given; only the column means something.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_become_tasks() {
        let text = concat!(
            "\u{feff}{\"main_query\": \"1+1\", \"answer\": 2}\n",
            "\n",
            "{\"task_id\": \"t\", \"metadata\": {\"answer\": 3}, \"init_messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\r\n",
            "{\"task_id\": 7, \"env_type\": \"shop\"}",
        );
        let tasks = parse(Path::new("tasks.jsonl"), text).unwrap();
        assert_eq!(
            tasks.iter().map(|task| task.task_id.as_str()).collect::<Vec<_>>(),
            ["task_0", "t", "7"]
        );
        assert_eq!(tasks[0].main_query, "1+1");
        assert_eq!(tasks[0].metadata, json!({"main_query": "1+1", "answer": 2}));
        assert_eq!(tasks[1].metadata, json!({"answer": 3}));
        assert_eq!(tasks[1].init_messages[0].content, "hi");
        assert_eq!(tasks[2].env_type, "shop");
    }

    /// Seen with a big integer, which came out as a float.
    #[test]
    fn metadata_is_what_the_file_says() {
        for metadata in [
            r#"{"n":12345678901234567890123,"m":-98765432109876543210}"#,
            r#"{"x":[1.10,1e+5,-0,2.50e-3,1.0,1e+400],"y":{"b":1,"a":2}}"#,
            r#"{"π":3.14159265358979323846264338327950288}"#,
        ] {
            let line = format!("{{\"metadata\": {metadata}}}");
            let tasks = parse(Path::new("tasks.jsonl"), &line).unwrap();
            assert_eq!(serde_json::to_string(&tasks[0].metadata).unwrap(), metadata);
            let tasks = parse(Path::new("tasks.jsonl"), metadata).unwrap();
            assert_eq!(serde_json::to_string(&tasks[0].metadata).unwrap(), metadata);
            let sent: Task = serde_json::from_str(&serde_json::to_string(&tasks[0]).unwrap()).unwrap();
            assert_eq!(serde_json::to_string(&sent.metadata).unwrap(), metadata);
        }
    }

    #[test]
    fn a_bad_line_is_told_with_file_and_line() {
        for (line, told) in [
            (
                "{\"main_query\": \"x\"",
                "not JSON: EOF while parsing an object at column 18",
            ),
            ("[1, 2]", "not a JSON object: [1, 2]"),
            ("{\"main_query\": 5}", "invalid type"),
            ("{\"task_id\": \"\"}", "task_id is \"\""),
        ] {
            let text = format!("{{}}\n\n{line}\n");
            let message = parse(Path::new("a/tasks.jsonl"), &text).unwrap_err().to_string();
            assert!(message.starts_with("a/tasks.jsonl, line 3: "), "{message}");
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn a_missing_or_empty_file_is_told_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none.jsonl");
        assert!(
            read_file(&missing)
                .unwrap_err()
                .to_string()
                .contains("none.jsonl cannot be read")
        );
        let empty = dir.path().join("empty.jsonl");
        std::fs::write(&empty, "\n\n").unwrap();
        assert!(
            read_file(&empty)
                .unwrap_err()
                .to_string()
                .contains("empty.jsonl holds no task")
        );
    }
}
