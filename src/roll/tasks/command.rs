//! Tasks that a program prints, a JSON object a line.

use std::time::Duration;

use super::rows::parse_line;
use super::select::Selection;
use super::{Task, TaskError, TaskSets};
use crate::config::schema::TaskCommands;
use crate::roll::process::{self, Program};

/// Tells the program which set of tasks is wanted: `training` or `validation`.
const SET_VARIABLE: &str = "AJET_TASK_SET";

/// MiB of tasks that a program may print.
const MAX_OUTPUT_MB: u64 = 1024;

/// Runs both programs; the one for validation may be left out.
pub async fn read(commands: &TaskCommands, selection: &Selection) -> Result<TaskSets, TaskError> {
    if commands.training.is_empty() {
        return Err(TaskError::Missing {
            key: "ajet.task_reader.command.training",
            what: "the program that prints the tasks, and its arguments",
        });
    }
    let timeout = Duration::from_secs_f64(commands.timeout.clamp(0.1, 86_400.0));
    let validation = match commands.validation.as_slice() {
        [] => vec![],
        argv => run("validation", argv, timeout, selection).await?,
    };
    Ok(TaskSets {
        training: run("training", &commands.training, timeout, selection).await?,
        validation,
        warnings: vec![],
    })
}

async fn run(set: &str, argv: &[String], timeout: Duration, selection: &Selection) -> Result<Vec<Task>, TaskError> {
    let program = argv.first().cloned().unwrap_or_default();
    let finished = process::run(Program {
        argv: argv.to_vec(),
        env: vec![(SET_VARIABLE.into(), set.into())],
        timeout,
        max_output_mb: MAX_OUTPUT_MB,
        ..Program::default()
    });
    let stdout = finished.await?.stdout;
    let mut tasks = selection.begin();
    for (index, line) in stdout.lines().enumerate() {
        let wrong = |reason: String| TaskError::Printed {
            program: program.clone(),
            line: index + 1,
            reason,
        };
        if let Some(row) = parse_line(line).map_err(wrong)?
            && tasks.take(row).map_err(wrong)?.is_break()
        {
            break;
        }
    }
    tasks.finish(&format!("what {program:?} printed for {set}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::TaskReader;

    async fn tasks_of(script: &str) -> Result<TaskSets, String> {
        let commands = TaskCommands {
            training: vec!["sh".into(), "-c".into(), script.into()],
            validation: vec!["sh".into(), "-c".into(), script.into()],
            timeout: 20.0,
        };
        let selection = Selection::new(&TaskReader::default()).unwrap();
        read(&commands, &selection).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_program_prints_the_tasks_of_the_set_that_it_is_asked_for() {
        let script = r#"echo "{\"main_query\": \"$AJET_TASK_SET\"}"; echo; echo '{"task_id": "x", "a": 1}'"#;
        let sets = tasks_of(script).await.unwrap();
        assert_eq!(sets.training[0].main_query, "training");
        assert_eq!(sets.validation[0].main_query, "validation");
        assert_eq!((sets.training[1].task_id.as_str(), sets.training.len()), ("x", 2));
    }

    #[tokio::test]
    async fn a_failing_program_is_an_error() {
        for (script, told) in [
            (
                "echo '{}'; echo loading",
                "line 2 of the output of \"sh\" is not a task: not JSON",
            ),
            ("true", "what \"sh\" printed for validation contains no task"),
            ("echo '{}'; echo oh no >&2; exit 3", "oh no"),
        ] {
            let message = tasks_of(script).await.unwrap_err();
            assert!(message.contains(told), "{message}");
        }
        let selection = Selection::new(&TaskReader::default()).unwrap();
        let error = read(&TaskCommands::default(), &selection).await.unwrap_err();
        assert!(error.to_string().contains("command.training is missing"));
    }
}
