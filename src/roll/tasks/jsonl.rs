//! Tasks from files with a JSON object a line.

use std::path::Path;

use super::rows::{self, Format, Options};
use super::select::Selection;
use super::{Task, TaskError, TaskSets};
use crate::config::schema::JsonlDatasetFile;

/// Reads both files; the validation file may be left out.
pub fn read(files: &JsonlDatasetFile, selection: &Selection) -> Result<TaskSets, TaskError> {
    if files.training.file_path.is_empty() {
        return Err(TaskError::Missing {
            key: "ajet.task_reader.jsonl_dataset_file.training.file_path",
            what: "the file of tasks, a JSON object a line",
        });
    }
    let validation = match files.validation.file_path.as_str() {
        "" => vec![],
        path => read_file(Path::new(path), selection)?,
    };
    Ok(TaskSets {
        training: read_file(Path::new(&files.training.file_path), selection)?,
        validation,
        warnings: vec![],
    })
}

fn read_file(path: &Path, selection: &Selection) -> Result<Vec<Task>, TaskError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(Format::Csv | Format::Tsv | Format::Parquet) = Format::of_name(&name) {
        return Err(TaskError::NotJsonLines(path.to_path_buf()));
    }
    let mut tasks = selection.begin();
    rows::read(path, Format::JsonLines, &Options::default(), &mut |row| tasks.take(row))?;
    tasks.finish(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::TaskReader;
    use serde_json::json;

    /// The tasks of a file with this text, or what is wrong with it.
    fn parse(text: &[u8]) -> Result<Vec<Task>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.jsonl");
        std::fs::write(&path, text).unwrap();
        let selection = Selection::new(&TaskReader::default()).unwrap();
        read_file(&path, &selection).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_become_tasks() {
        let text = concat!(
            "\u{feff}{\"main_query\": \"1+1\", \"answer\": 2}\n",
            "\n",
            "{\"task_id\": \"t\", \"metadata\": {\"answer\": 3}, \"init_messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\r\n",
            "{\"task_id\": 7, \"env_type\": \"shop\"}\n",
            "{\"question\": \"2+2\", \"main_query\": null}",
        );
        let tasks = parse(text.as_bytes()).unwrap();
        assert_eq!(
            tasks.iter().map(|task| task.task_id.as_str()).collect::<Vec<_>>(),
            ["task_0", "t", "7", "task_3"]
        );
        assert_eq!(tasks[0].main_query, "1+1");
        assert_eq!(tasks[0].metadata, json!({"main_query": "1+1", "answer": 2}));
        assert_eq!(tasks[1].metadata, json!({"answer": 3}));
        assert_eq!(tasks[1].init_messages[0].content, "hi");
        assert_eq!(tasks[2].env_type, "shop");
        assert_eq!(tasks[3].main_query, "2+2");
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
            let tasks = parse(line.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string(&tasks[0].metadata).unwrap(), metadata);
            let tasks = parse(metadata.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string(&tasks[0].metadata).unwrap(), metadata);
            let sent: Task = serde_json::from_str(&serde_json::to_string(&tasks[0]).unwrap()).unwrap();
            assert_eq!(serde_json::to_string(&sent.metadata).unwrap(), metadata);
        }
    }

    #[test]
    fn a_bad_line_is_named_with_file_and_line() {
        for (line, told) in [
            (
                &b"{\"main_query\": \"x\""[..],
                "not JSON: EOF while parsing an object at column",
            ),
            (b"[1, 2]", "not a JSON object: [1, 2]"),
            (b"{\"main_query\": 5}", "main_query is 5, but it must be text"),
            (b"{\"task_id\": \"\"}", "task_id is \"\""),
            (b"{\"init_messages\": [5]}", "init_messages: "),
            (b"{\"a\": \"\xff\"}", "not UTF-8"),
            (b"{'a': 1}", "not JSON: key must be a string at column 2"),
            (b"{\"a\": NaN}", "not JSON: expected value at column"),
        ] {
            let message = parse(&[b"{}\n\n", line, b"\n"].concat()).unwrap_err();
            assert!(message.contains("tasks.jsonl, line 3: "), "{message}");
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn a_missing_or_empty_file_is_named() {
        let selection = Selection::new(&TaskReader::default()).unwrap();
        let parquet = read_file(Path::new("train.parquet"), &selection)
            .unwrap_err()
            .to_string();
        assert!(parquet.contains("dataset_path: train.parquet"), "{parquet}");
        let missing = read_file(Path::new("/nonexistent/none.jsonl"), &selection).unwrap_err();
        assert!(
            missing.to_string().contains("cannot read /nonexistent/none.jsonl"),
            "{missing}"
        );
        assert!(parse(b"\n\n").unwrap_err().contains("tasks.jsonl contains no task"));
    }
}
