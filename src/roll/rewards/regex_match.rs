//! The reward of type `regex`: what a pattern finds in the output.

use regex::{Captures, Regex, RegexBuilder};

use super::answer::{Answer, Score};
use super::error::RewardError;
use super::text::same;
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// Maximum size of a compiled pattern in bytes.
const MAX_COMPILED: usize = 10 << 20;

/// `roll.reward` of type `regex`.
#[derive(Clone, Debug)]
pub struct RegexMatch {
    pattern: Regex,
    answer: Option<Template>,
    ignore_case: bool,
}

/// How a pattern reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Upper and lower case are the same, in the pattern and in the comparison with the answer.
    pub ignore_case: bool,
    /// `^` and `$` match at the ends of lines.
    pub multi_line: bool,
    /// `.` matches a newline.
    pub dot_all: bool,
}

impl RegexMatch {
    /// A reward by this pattern; with an answer, by what the pattern captures.
    ///
    /// # Errors
    /// Fails with the error of the pattern.
    pub fn new(pattern: &str, flags: Flags, answer: Option<Template>) -> Result<Self, String> {
        let pattern = RegexBuilder::new(pattern)
            .case_insensitive(flags.ignore_case)
            .multi_line(flags.multi_line)
            .dot_matches_new_line(flags.dot_all)
            .size_limit(MAX_COMPILED)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            pattern,
            answer,
            ignore_case: flags.ignore_case,
        })
    }

    /// Without an answer, 1 where the pattern matches. With one, 1 where the last match captured it.
    pub(super) fn score(&self, task: &Task, answer: &Answer) -> Result<Score, RewardError> {
        let Some(wanted) = &self.answer else {
            return Ok(Score::of(self.pattern.is_match(&answer.output)));
        };
        let wanted = wanted.render(task)?;
        if wanted.trim().is_empty() {
            return Err(RewardError::NoAnswer);
        }
        // The last one: a model that corrects itself, or tries several answers, is held to its last word.
        let last = self.pattern.captures_iter(&answer.output).last();
        let given = last.as_ref().and_then(|captures| self.captured(captures));
        Ok(Score::of(
            given.is_some_and(|given| same(&wanted, given, self.ignore_case)),
        ))
    }

    /// The group `answer`, or else the first group, or else the whole match.
    fn captured<'a>(&self, captures: &Captures<'a>) -> Option<&'a str> {
        let is_named = self.pattern.capture_names().any(|name| name == Some("answer"));
        let group = match (is_named, self.pattern.captures_len()) {
            (true, _) => captures.name("answer"),
            (false, 1) => captures.get(0),
            (false, _) => captures.get(1),
        };
        group.map(|group| group.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reward(pattern: &str, flags: Flags, answer: Option<&str>, output: &str) -> Result<f64, RewardError> {
        let answer = answer.map(|answer| Template::new("roll.reward.answer", answer).unwrap());
        let task = Task {
            metadata: json!({"answer": "42"}),
            ..Task::default()
        };
        let given = Answer {
            output: output.into(),
            ..Answer::default()
        };
        let score = RegexMatch::new(pattern, flags, answer).unwrap().score(&task, &given)?;
        assert_eq!(score.is_success, Some(score.reward == 1.0));
        Ok(score.reward)
    }

    #[test]
    fn a_pattern_matches_or_captures_the_answer() {
        let plain = Flags::default();
        let ignore_case = Flags {
            ignore_case: true,
            ..plain
        };
        let multi_line = Flags {
            multi_line: true,
            ..plain
        };
        let dot_all = Flags { dot_all: true, ..plain };
        const ANSWER: &str = "{{ metadata.answer }}";
        for (pattern, flags, answer, output, expected) in [
            (r"^\d+$", plain, None, "42", 1.0),
            (r"^\d+$", plain, None, "it is 42", 0.0),
            (r"^\d+$", plain, None, "a\n42\nb", 0.0),
            (r"^\d+$", multi_line, None, "a\n42\nb", 1.0),
            ("yes", plain, None, "YES", 0.0),
            ("yes", ignore_case, None, "YES", 1.0),
            ("<a>.*</a>", plain, None, "<a>\n</a>", 0.0),
            ("<a>.*</a>", dot_all, None, "<a>\n</a>", 1.0),
            (
                r"<answer>(.*?)</answer>",
                plain,
                Some(ANSWER),
                "<answer> 42 </answer>",
                1.0,
            ),
            // The last match counts, so trying several answers does not help.
            (
                r"<answer>(.*?)</answer>",
                plain,
                Some(ANSWER),
                "<answer>42</answer><answer>7</answer>",
                0.0,
            ),
            (
                r"<answer>(.*?)</answer>",
                plain,
                Some(ANSWER),
                "<answer>7</answer><answer>42</answer>",
                1.0,
            ),
            (r"<answer>(.*?)</answer>", plain, Some(ANSWER), "42", 0.0),
            // Part of an answer is not the answer.
            (r"(\d+)", plain, Some(ANSWER), "421", 0.0),
            (r"(\w+) is (?P<answer>\d+)", plain, Some(ANSWER), "it is 42", 1.0),
            (r"(\d+) is (?P<answer>\d+)", plain, Some(ANSWER), "42 is 7", 0.0),
            // A group that took no part in the match captured nothing.
            (r"x|(\d+)", plain, Some(ANSWER), "42 x", 0.0),
            (r"\d+", plain, Some(ANSWER), "it is 42.", 1.0),
            ("(?:city: )(.*)", ignore_case, Some("Paris"), "CITY: paris", 1.0),
            ("(?:city: )(.*)", plain, Some("Paris"), "city: paris", 0.0),
        ] {
            let given = reward(pattern, flags, answer, output).unwrap();
            assert_eq!(given, expected, "{pattern} with {answer:?} of {output:?}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_compared_is_an_error() {
        let plain = Flags::default();
        let error = reward("(.*)", plain, Some("  "), "").unwrap_err();
        assert!(matches!(error, RewardError::NoAnswer), "{error}");
        let error = reward("(.*)", plain, Some("{{ metadata.none }}"), "").unwrap_err();
        assert!(matches!(error, RewardError::Template(_)), "{error}");
        for wrong in ["(", "a{1000000}{1000000}", r"(?P<a>.)(?P<a>.)"] {
            assert!(!RegexMatch::new(wrong, plain, None).unwrap_err().is_empty());
        }
    }
}
