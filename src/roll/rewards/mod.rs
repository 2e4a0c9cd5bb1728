//! Rewards: what an answer is worth.

mod context;
mod number;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::agents::Rollout;
use super::process::{self, Program, ProgramError};
use super::tasks::Task;
use super::template::{Template, TemplateError};
use number::{decimal_of, number_in};

/// `roll.reward`: what an answer is worth.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a job has one")]
pub enum Reward {
    /// The reward that the agent itself gives.
    FromAgent,
    /// 1 for the same text, white space at the ends aside, else 0.
    ExactMatch(TextMatch),
    /// 1 where the answer occurs in the output, else 0.
    Contains(TextMatch),
    /// 1 for the same number, else 0.
    NumberMatch(NumberMatch),
    /// From 0 to 1 by edit distance.
    Similarity(Similarity),
    /// The reward that a program gives.
    Command(Command),
}

/// Texts that are compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextMatch {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
    /// Take upper and lower case as the same.
    #[serde(default)]
    ignore_case: bool,
}

/// Numbers that are compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberMatch {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
    /// Largest difference, relative to the right answer. Default: half a unit of the last decimal of the right answer, and
    /// none for whole numbers.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e6))]
    tolerance: Option<f64>,
}

/// Texts whose edit distance is measured.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
}

/// A program that scores.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments, templates over the task.
    #[schemars(length(min = 1))]
    argv: Vec<Template>,
    /// Working directory. Default: that of `roll`.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Maximum seconds, after which its processes are killed.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
}

fn default_timeout() -> f64 {
    60.0
}

/// How an output is compared with the right answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    /// 1 for the same text, white space at the ends aside.
    Exact {
        /// Upper and lower case are the same.
        ignore_case: bool,
    },
    /// 1 where the answer occurs in the output.
    Contains {
        /// Upper and lower case are the same.
        ignore_case: bool,
    },
    /// 1 for the same number.
    Number {
        /// Largest difference, relative to the right answer. Without one, decimals may differ by half a unit of the
        /// right answer's last digit, and whole numbers not at all.
        tolerance: Option<f64>,
    },
    /// From 0 to 1 by edit distance.
    Similarity,
}

/// What an answer is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Finite.
    pub reward: f64,
    /// Whether the goal was reached, where that is known.
    pub is_success: Option<bool>,
    /// For the step's metrics.
    pub log_metrics: IndexMap<String, Value>,
}

/// Why an answer has no reward. The episode is aborted.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// A template does not fit the task.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The program failed.
    #[error("the reward's program failed: {0}")]
    Program(#[from] ProgramError),
    /// The agent was to bring it.
    #[error("the agent gave no reward\nhint: its last line of output has to be a JSON object with `reward`")]
    Missing,
    /// The right answer of a task is no number.
    #[error("the task's answer {0:?} has no number that can be compared")]
    NoNumber(String),
    /// The right answer of a task is empty, so that every output would contain it.
    #[error("the task's answer is empty")]
    NoAnswer,
    /// The program printed something else.
    #[error("the reward's program printed {0:?}, which is neither a number nor a JSON object with `reward`")]
    Output(String),
}

impl RewardError {
    /// The name under which such episodes are counted.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "no_reward",
            _ => "reward_error",
        }
    }

    /// Whether it is the job that is wrong, so that trying again is in vain.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Template(_) | Self::NoNumber(_) | Self::NoAnswer | Self::Program(ProgramError::Start { .. })
        )
    }
}

impl Reward {
    /// What the agent's answer to the task is worth.
    ///
    /// # Errors
    /// There is no telling; the episode is to be aborted.
    pub async fn score(&self, task: &Task, rollout: &Rollout) -> Result<Score, RewardError> {
        match self {
            Self::FromAgent => Ok(Score {
                reward: rollout.reward.ok_or(RewardError::Missing)?,
                is_success: rollout.is_success,
                log_metrics: IndexMap::new(),
            }),
            Self::ExactMatch(TextMatch { answer, ignore_case }) => {
                let how = Comparison::Exact {
                    ignore_case: *ignore_case,
                };
                how.score(&answer.render(task)?, &rollout.output)
            }
            Self::Contains(TextMatch { answer, ignore_case }) => {
                let how = Comparison::Contains {
                    ignore_case: *ignore_case,
                };
                how.score(&answer.render(task)?, &rollout.output)
            }
            Self::NumberMatch(NumberMatch { answer, tolerance }) => {
                let how = Comparison::Number { tolerance: *tolerance };
                how.score(&answer.render(task)?, &rollout.output)
            }
            Self::Similarity(Similarity { answer }) => {
                Comparison::Similarity.score(&answer.render(task)?, &rollout.output)
            }
            Self::Command(command) => command.score(task, rollout).await,
        }
    }
}

impl Command {
    async fn score(&self, task: &Task, rollout: &Rollout) -> Result<Score, RewardError> {
        let input = json!({ "task": task, "output": rollout.output, "messages": rollout.messages });
        let argv = self.argv.iter().map(|argument| argument.render(task));
        let program = Program {
            argv: argv.collect::<Result<_, _>>()?,
            cwd: self.cwd.clone(),
            stdin: input.to_string().into_bytes(),
            timeout: Duration::from_secs_f64(self.timeout),
            ..Program::default()
        };
        parse_score(&process::run(program).await?.stdout)
    }
}

impl Comparison {
    /// Compares an output with the right answer.
    fn score(self, answer: &str, output: &str) -> Result<Score, RewardError> {
        if answer.trim().is_empty() {
            return Err(RewardError::NoAnswer);
        }
        let (reward, is_success) = match self {
            Self::Exact { ignore_case } => right(text::same(answer, output, ignore_case)),
            Self::Contains { ignore_case } => right(text::contains(answer, output, ignore_case)),
            Self::Number { tolerance } => {
                let wanted = number_in(answer).ok_or_else(|| RewardError::NoNumber(answer.to_string()))?;
                let tolerance = tolerance.and_then(decimal_of);
                right(number_in(output).is_some_and(|given| wanted.accepts(&given, tolerance.as_ref())))
            }
            Self::Similarity => (text::similarity(answer, output), text::same(answer, output, false)),
        };
        Ok(Score {
            reward,
            is_success: Some(is_success),
            log_metrics: IndexMap::new(),
        })
    }
}

fn right(is_right: bool) -> (f64, bool) {
    (f64::from(is_right), is_right)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roll::job::test_section;

    fn reward(yaml: &str) -> Reward {
        test_section("roll.reward", yaml)
    }

    async fn score(yaml: &str, output: &str) -> Result<Score, RewardError> {
        let task = Task {
            metadata: json!({ "answer": "42" }),
            ..Task::default()
        };
        let rollout = Rollout {
            output: output.into(),
            ..Rollout::default()
        };
        reward(yaml).score(&task, &rollout).await
    }

    #[tokio::test]
    async fn each_kind_scores() {
        for (yaml, output, expected, success) in [
            (
                "{type: exact_match, answer: '{{ metadata.answer }}'}",
                " 42\n",
                1.0,
                Some(true),
            ),
            (
                "{type: exact_match, answer: '{{ metadata.answer }}'}",
                "it is 42",
                0.0,
                Some(false),
            ),
            (
                "{type: exact_match, answer: Yes, ignore_case: true}",
                "yes",
                1.0,
                Some(true),
            ),
            (
                "{type: contains, answer: '{{ metadata.answer }}'}",
                "it is 42",
                1.0,
                Some(true),
            ),
            (
                "{type: number_match, answer: '{{ metadata.answer }}'}",
                "it is 42.0 apples.",
                1.0,
                Some(true),
            ),
            (
                "{type: number_match, answer: '{{ metadata.answer }}'}",
                "no idea",
                0.0,
                Some(false),
            ),
            (
                "{type: similarity, answer: '{{ metadata.answer }}'}",
                "41",
                0.5,
                Some(false),
            ),
            (
                "{type: command, argv: [sh, -c, 'cat > /dev/null; echo note; echo 0.25']}",
                "",
                0.25,
                None,
            ),
            (
                "{type: command, argv: [sh, -c, 'echo \"{\\\"reward\\\": 1, \\\"is_success\\\": true}\"']}",
                "",
                1.0,
                Some(true),
            ),
        ] {
            let score = score(yaml, output).await.unwrap();
            assert_eq!(
                (score.reward, score.is_success),
                (expected, success),
                "{yaml} of {output:?}"
            );
        }
    }

    #[tokio::test]
    async fn no_reward_is_an_error_never_a_zero() {
        for (yaml, told) in [
            ("type: from_agent", "the agent gave no reward"),
            ("{type: number_match, answer: many}", "\"many\" has no number"),
            (
                "{type: number_match, answer: '\\sqrt{2}'}",
                "has no number that can be compared",
            ),
            ("{type: contains, answer: ' '}", "the task's answer is empty"),
            ("{type: exact_match, answer: '{{ metadata.none }}'}", "metadata.none"),
            ("{type: command, argv: [echo, good]}", "printed \"good\""),
            ("{type: command, argv: ['false']}", "exit status: 1"),
        ] {
            let message = score(yaml, "1").await.unwrap_err().to_string();
            assert!(message.contains(told), "{message}");
        }
    }
}
