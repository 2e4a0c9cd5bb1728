//! Rewards: what an answer is worth.

mod context;
mod number;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::agents::Rollout;
use super::process::{self, Program, ProgramError};
use super::section::Section;
use super::tasks::Task;
use super::template::{Template, TemplateError};
use number::{decimal_of, number_in};

/// Seconds that a reward's program may take unless the job says otherwise.
const TIMEOUT_S: f64 = 60.0;

/// A reward that a job names.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a job has one")]
pub enum Reward {
    /// The agent's own.
    FromAgent,
    /// An answer that is compared.
    Compare {
        /// How.
        how: Comparison,
        /// With what.
        answer: Template,
    },
    /// A program's.
    Command {
        /// Program and arguments.
        argv: Vec<Template>,
        /// Where it runs.
        cwd: Option<PathBuf>,
        /// How long it may.
        timeout: Duration,
    },
}

/// How an output is compared with the right answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Comparison {
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
    /// Reads `roll.reward`.
    pub(super) fn read(mut section: Section) -> Option<Self> {
        const KINDS: [&str; 6] = [
            "from_agent",
            "exact_match",
            "number_match",
            "contains",
            "similarity",
            "command",
        ];
        let kind = section.choice("type", &KINDS);
        let kind = section.require("type", kind, "what an answer is worth, such as `number_match`")?;
        let reward = match kind {
            "from_agent" => Some(Self::FromAgent),
            "command" => Self::read_command(&mut section),
            _ => {
                let answer = section.template("answer");
                let answer = section.require("answer", answer, "the right answer, such as \"{{ metadata.answer }}\"");
                let ignore_case =
                    matches!(kind, "exact_match" | "contains") && section.flag("ignore_case").unwrap_or(false);
                let how = match kind {
                    "exact_match" => Comparison::Exact { ignore_case },
                    "contains" => Comparison::Contains { ignore_case },
                    "number_match" => Comparison::Number {
                        tolerance: section.positive("tolerance"),
                    },
                    _ => Comparison::Similarity,
                };
                answer.map(|answer| Self::Compare { how, answer })
            }
        };
        section.finish();
        reward
    }

    fn read_command(section: &mut Section) -> Option<Self> {
        let argv = section.templates("argv").filter(|argv| !argv.is_empty());
        let argv = section.require("argv", argv, "the program and its arguments, as a list");
        let cwd = section.text("cwd").map(PathBuf::from);
        let timeout = section.positive("timeout").unwrap_or(TIMEOUT_S);
        Some(Self::Command {
            argv: argv?,
            cwd,
            timeout: Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX),
        })
    }

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
            Self::Compare { how, answer } => how.score(&answer.render(task)?, &rollout.output),
            Self::Command { argv, cwd, timeout } => {
                let input = json!({ "task": task, "output": rollout.output, "messages": rollout.messages });
                let program = Program {
                    argv: argv
                        .iter()
                        .map(|argument| argument.render(task))
                        .collect::<Result<_, _>>()?,
                    cwd: cwd.clone(),
                    stdin: input.to_string().into_bytes(),
                    timeout: *timeout,
                    ..Program::default()
                };
                parse_score(&process::run(program).await?.stdout)
            }
        }
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
    use std::rc::Rc;

    use super::*;

    fn reward(yaml: &str) -> Reward {
        let problems = Rc::default();
        let reward = Reward::read(Section::new(
            "roll.reward",
            &serde_yaml::from_str(yaml).unwrap(),
            &problems,
        ));
        assert!(problems.borrow().is_empty(), "{problems:?}");
        reward.unwrap()
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
