//! Why an answer has no reward.

use std::sync::Arc;

use super::judge::JudgeError;
use crate::roll::process::ProgramError;
use crate::roll::template::TemplateError;

/// Why an answer has no reward. The episode is aborted; it never counts as a reward of 0.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RewardError {
    /// A template does not fit the task.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The program failed.
    #[error("the reward's program failed: {0}")]
    Program(Arc<ProgramError>),
    /// The agent returned none.
    #[error("the agent returned no reward\nhint: its last line of output must be a JSON object with `reward`")]
    Missing,
    /// The reference answer of a task contains no number.
    #[error("the task's answer {0:?} contains no number to compare with")]
    NoNumber(String),
    /// The reference answer of a task is empty, so that every output would contain it.
    #[error("the task's answer is empty")]
    NoAnswer,
    /// The program printed something else.
    #[error("the reward's program printed {0:?}, which is neither a number nor a JSON object with `reward`")]
    Output(String),
    /// An expression's value is not a reward.
    #[error("the value of roll.reward.expression is {0}, which is neither a number nor true or false")]
    Value(String),
    /// NaN or infinity.
    #[error("the reward is {0}, which is not a finite number")]
    NotFinite(f64),
    /// The judge returned no score.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// Only one answer of the group is left, and a rank needs two.
    #[error("the group judge has nothing to compare this answer with: no other answer to the task is left")]
    Alone,
    /// The run ended before the group was scored.
    #[error("the run ended before the answers to the task were judged")]
    GivenUp,
    /// A part of a weighted sum has no reward.
    #[error("part `{name}` of the reward: {error}")]
    Part {
        /// The part.
        name: String,
        /// Why.
        error: Box<RewardError>,
    },
}

impl From<ProgramError> for RewardError {
    fn from(error: ProgramError) -> Self {
        Self::Program(Arc::new(error))
    }
}

impl RewardError {
    /// The name under which such episodes are counted.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "no_reward",
            Self::NotFinite(_) => "bad_reward",
            Self::Judge(_) => "judge_error",
            Self::Alone => "no_comparison",
            Self::Part { error, .. } => error.reason(),
            _ => "reward_error",
        }
    }

    /// Whether the job is wrong, so that no further try can succeed.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Template(_) | Self::NoNumber(_) | Self::NoAnswer | Self::Value(_) => true,
            Self::Program(error) => matches!(**error, ProgramError::Start { .. }),
            Self::Judge(error) => error.is_permanent(),
            Self::Part { error, .. } => error.is_permanent(),
            Self::Missing | Self::Output(_) | Self::NotFinite(_) | Self::Alone | Self::GivenUp => false,
        }
    }
}
