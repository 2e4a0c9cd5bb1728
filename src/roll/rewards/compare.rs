//! Rewards that compare the output with the right answer as text or as a number.

use super::answer::Score;
use super::error::RewardError;
use super::number::{decimal_of, number_in};
use super::text;

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

impl Comparison {
    /// Compares an output with the right answer.
    pub(super) fn score(self, answer: &str, output: &str) -> Result<Score, RewardError> {
        if answer.trim().is_empty() {
            return Err(RewardError::NoAnswer);
        }
        Ok(match self {
            Self::Exact { ignore_case } => Score::of(text::same(answer, output, ignore_case)),
            Self::Contains { ignore_case } => Score::of(text::contains(answer, output, ignore_case)),
            Self::Number { tolerance } => {
                let wanted = number_in(answer).ok_or_else(|| RewardError::NoNumber(answer.to_string()))?;
                let tolerance = tolerance.and_then(decimal_of);
                Score::of(number_in(output).is_some_and(|given| wanted.accepts(&given, tolerance.as_ref())))
            }
            Self::Similarity => Score {
                reward: text::similarity(answer, output),
                ..Score::of(text::same(answer, output, false))
            },
        })
    }
}
