//! The reward of type `command`: what a program prints.

use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::answer::{Answer, Score};
use super::error::RewardError;
use crate::roll::process::{self, Program};
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// `roll.reward` of type `command`.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and arguments.
    pub(super) argv: Vec<Template>,
    /// Where it runs.
    pub(super) cwd: Option<PathBuf>,
    /// How long it may take.
    pub(super) timeout: Duration,
}

impl Command {
    /// Renders the arguments.
    ///
    /// # Errors
    /// Fails if a template does not fit the task.
    pub(super) fn verify(&self, task: &Task) -> Result<(), RewardError> {
        self.argv
            .iter()
            .try_for_each(|argument| argument.render(task).map(drop))?;
        Ok(())
    }

    /// The program gets the task, the output and the conversation as JSON on standard input. `messages` is null where
    /// the conversation is not known.
    pub(super) async fn score(&self, task: &Task, answer: &Answer) -> Result<Score, RewardError> {
        let input = json!({ "task": task, "output": answer.output, "messages": answer.messages });
        let program = Program {
            argv: self
                .argv
                .iter()
                .map(|argument| argument.render(task))
                .collect::<Result<_, _>>()?,
            cwd: self.cwd.clone(),
            stdin: input.to_string().into_bytes(),
            timeout: self.timeout,
            ..Program::default()
        };
        parse_score(&process::run(program).await?.stdout)
    }
}

/// A number, or the last line that is an object with `reward`, `is_success`, `log_metrics`.
fn parse_score(stdout: &str) -> Result<Score, RewardError> {
    let wrong = || RewardError::Output(stdout.trim().chars().take(80).collect());
    let last = stdout.trim().lines().next_back().unwrap_or_default();
    match serde_json::from_str(last).map_err(|_| wrong())? {
        Value::Number(number) => Ok(Score {
            reward: number.as_f64().ok_or_else(wrong)?,
            ..Score::default()
        }),
        Value::Object(fields) => Ok(Score {
            reward: fields.get("reward").and_then(Value::as_f64).ok_or_else(wrong)?,
            is_success: fields.get("is_success").and_then(Value::as_bool),
            log_metrics: match fields.get("log_metrics") {
                Some(Value::Object(metrics)) => metrics.clone().into_iter().collect(),
                _ => IndexMap::new(),
            },
        }),
        _ => Err(wrong()),
    }
}
