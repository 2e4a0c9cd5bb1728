//! Where in a judge's answer the score stands, and what it is worth.

use regex::Regex;

/// A line that is a score and nothing else, such as `**Score:** 7.5`. `7/10` is not read: of which scale would 7 be?
const SCORE_LINE: &str = r"(?im)^[\s>#*_`-]*score[\s*_`]*[:=][\s*_`]*([-+]?\d+(?:\.\d+)?)[\s*_`.]*$";

/// The scores that a judge may give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The worst; a reward of 0.
    pub min: f64,
    /// The best; a reward of 1.
    pub max: f64,
}

/// How a score is found.
#[derive(Clone, Debug)]
pub struct ScoreFormat {
    pattern: Regex,
    range: ScoreRange,
}

impl ScoreFormat {
    /// Scores as the pattern captures them (group `score`, or the first one); without one, a line `Score: 7`.
    ///
    /// # Errors
    /// Fails with a message if the pattern does not parse or captures nothing, or the range is empty.
    pub fn new(pattern: Option<&str>, range: ScoreRange) -> Result<Self, String> {
        let pattern = Regex::new(pattern.unwrap_or(SCORE_LINE)).map_err(|error| error.to_string())?;
        if pattern.captures_len() < 2 {
            return Err(format!("`{pattern}` has no group that captures the score"));
        }
        let ScoreRange { min, max } = range;
        if !(min.is_finite() && max.is_finite() && min < max) {
            return Err(format!("the score range from {min} to {max} is empty"));
        }
        Ok(Self { pattern, range })
    }

    /// The scores that are allowed.
    pub fn range(&self) -> ScoreRange {
        self.range
    }

    /// The reward in [0, 1] of the last score in a judge's answer.
    ///
    /// # Errors
    /// Fails if there is none, or it is no number of the range: a sentence.
    pub(super) fn reward(&self, text: &str) -> Result<f64, String> {
        let last = self.pattern.captures_iter(text).last();
        let last = last.ok_or_else(|| "there is no score".to_owned())?;
        let score = last.name("score").or_else(|| last.get(1));
        let score = score.map_or("", |score| score.as_str().trim());
        let number: f64 = score
            .parse()
            .map_err(|_| format!("the score {score:?} is not a number"))?;
        let ScoreRange { min, max } = self.range;
        match number.is_finite() && (min..=max).contains(&number) {
            true => Ok((number - min) / (max - min)),
            false => Err(format!("the score {score} is not from {min} to {max}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: ScoreRange = ScoreRange { min: 0.0, max: 10.0 };

    #[test]
    fn the_last_score_counts_and_only_a_whole_one() {
        let format = ScoreFormat::new(None, TEN).unwrap();
        for (text, expected) in [
            ("Score: 7", Ok(0.7)),
            ("It is good.\n**Score:** 7.5", Ok(0.75)),
            ("**Score: 10**", Ok(1.0)),
            ("## SCORE = 0.", Ok(0.0)),
            ("Score: 3\nOn reflection:\nScore: 4\n", Ok(0.4)),
            // Quoted from the answer that is judged.
            ("The answer says `Score: 10` of itself.\nScore: 1", Ok(0.1)),
            ("Score: 7/10", Err("there is no score")),
            ("Score: 7 out of 10", Err("there is no score")),
            ("Score: 7,5", Err("there is no score")),
            ("Score: NaN", Err("there is no score")),
            ("Score: 11", Err("the score 11 is not from 0 to 10")),
            ("Score: -1", Err("the score -1 is not from 0 to 10")),
            ("7", Err("there is no score")),
            ("", Err("there is no score")),
        ] {
            assert_eq!(format.reward(text), expected.map_err(String::from), "{text:?}");
        }
    }

    #[test]
    fn a_pattern_of_ones_own_captures_numbers_only() {
        let format = ScoreFormat::new(Some(r"\[\[(.*?)\]\]"), ScoreRange { min: 1.0, max: 5.0 }).unwrap();
        for (text, expected) in [
            ("[[1]]", Ok(0.0)),
            ("[[ 4 ]]", Ok(0.75)),
            ("[[A]]", Err("the score \"A\" is not a number")),
            ("[[nan]]", Err("the score nan is not from 1 to 5")),
            ("[[inf]]", Err("the score inf is not from 1 to 5")),
            ("[[1e400]]", Err("the score 1e400 is not from 1 to 5")),
        ] {
            assert_eq!(format.reward(text), expected.map_err(String::from), "{text:?}");
        }
        let named = ScoreFormat::new(Some(r"(\w+) gets (?P<score>\d)"), TEN).unwrap();
        assert_eq!(named.reward("it gets 5"), Ok(0.5));
    }

    #[test]
    fn wrong_formats_are_refused() {
        for (pattern, range, told) in [
            (Some(r"\d"), TEN, "no group"),
            (Some("("), TEN, "unclosed"),
            (None, ScoreRange { min: 1.0, max: 1.0 }, "empty"),
            (
                None,
                ScoreRange {
                    min: 0.0,
                    max: f64::NAN,
                },
                "empty",
            ),
        ] {
            let error = ScoreFormat::new(pattern, range).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
