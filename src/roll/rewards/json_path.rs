//! The reward of type `json_path`: a value in the output's JSON, selected by RFC 9535.

use bigdecimal::BigDecimal;
use serde_json::Value;
use serde_json_path::JsonPath;

use super::answer::{Answer, Score};
use super::error::RewardError;
use super::number::{decimal_of, number_in};
use super::text::same;
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// `roll.reward` of type `json_path`.
#[derive(Clone, Debug)]
pub struct JsonPathMatch {
    path: JsonPath,
    answer: Template,
    ignore_case: bool,
    tolerance: Option<BigDecimal>,
}

impl JsonPathMatch {
    /// A reward by the value at `path`. `tolerance` is the largest difference of a number, relative to the answer.
    ///
    /// # Errors
    /// Fails with the error of the path.
    pub fn new(path: &str, answer: Template, ignore_case: bool, tolerance: Option<f64>) -> Result<Self, String> {
        Ok(Self {
            path: JsonPath::parse(path).map_err(|error| error.to_string())?,
            answer,
            ignore_case,
            tolerance: tolerance.and_then(decimal_of),
        })
    }

    /// 1 where the path selects the answer. An output without JSON, or without that value, is a wrong answer; so are
    /// several values of which one is wrong.
    pub(super) fn score(&self, task: &Task, answer: &Answer) -> Result<Score, RewardError> {
        let wanted = self.answer.render(task)?;
        if wanted.trim().is_empty() {
            return Err(RewardError::NoAnswer);
        }
        let Some(document) = document_in(&answer.output) else {
            return Ok(Score::of(false));
        };
        let selected = self.path.query(&document).all();
        let is_right = !selected.is_empty() && selected.into_iter().all(|value| self.is_answer(&wanted, value));
        Ok(Score::of(is_right))
    }

    fn is_answer(&self, wanted: &str, value: &Value) -> bool {
        match value {
            Value::String(text) => same(wanted, text, self.ignore_case),
            Value::Number(number) => self.is_number(wanted, &number.to_string()),
            // Templates print Python's spelling.
            Value::Bool(_) | Value::Null => {
                let python = match value {
                    Value::Bool(true) => "True",
                    Value::Bool(false) => "False",
                    _ => "None",
                };
                [python, &value.to_string()].contains(&wanted.trim())
            }
            Value::Array(_) | Value::Object(_) => {
                serde_json::from_str(wanted).is_ok_and(|wanted| self.is_same(&wanted, value))
            }
        }
    }

    fn is_number(&self, wanted: &str, given: &str) -> bool {
        match (number_in(wanted), number_in(given)) {
            (Some(wanted), Some(given)) => wanted.accepts(&given, self.tolerance.as_ref()),
            _ => false,
        }
    }

    /// Numbers by value, objects in any order, all else as it is.
    fn is_same(&self, wanted: &Value, given: &Value) -> bool {
        match (wanted, given) {
            (Value::Number(wanted), Value::Number(given)) => self.is_number(&wanted.to_string(), &given.to_string()),
            (Value::String(wanted), Value::String(given)) => same(wanted, given, self.ignore_case),
            (Value::Array(wanted), Value::Array(given)) => {
                wanted.len() == given.len()
                    && wanted
                        .iter()
                        .zip(given)
                        .all(|(wanted, given)| self.is_same(wanted, given))
            }
            (Value::Object(wanted), Value::Object(given)) => {
                let has =
                    |(key, wanted): (&String, &Value)| given.get(key).is_some_and(|given| self.is_same(wanted, given));
                wanted.len() == given.len() && wanted.iter().all(has)
            }
            (wanted, given) => wanted == given,
        }
    }
}

/// The output where it is JSON as a whole, or else its last fenced block that says `json` or nothing. A block that is
/// not JSON does not make way for an earlier one.
fn document_in(output: &str) -> Option<Value> {
    serde_json::from_str(output)
        .ok()
        .or_else(|| serde_json::from_str(last_fenced(output)?).ok())
}

fn last_fenced(output: &str) -> Option<&str> {
    let mut last = None;
    let mut rest = output;
    while let Some((_, fenced)) = rest.split_once("```") {
        let (language, body) = fenced.split_once('\n').unwrap_or(("", fenced));
        let (body, after) = body.split_once("```").unwrap_or((body, ""));
        if matches!(language.trim().to_ascii_lowercase().as_str(), "json" | "") {
            last = Some(body);
        }
        rest = after;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reward(path: &str, answer: &str, output: &str) -> f64 {
        scored(JsonPathMatch::new(path, template(answer), false, None).unwrap(), output).unwrap()
    }

    fn template(answer: &str) -> Template {
        Template::new("roll.reward.answer", answer).unwrap()
    }

    fn scored(reward: JsonPathMatch, output: &str) -> Result<f64, RewardError> {
        let task = Task {
            metadata: json!({"n": 42, "ok": true, "list": [1, 2.0], "nothing": null, "city": "Paris", "big": 1e3}),
            ..Task::default()
        };
        let answer = Answer {
            output: output.into(),
            ..Answer::default()
        };
        reward.score(&task, &answer).map(|score| score.reward)
    }

    #[test]
    fn the_value_at_a_path_is_compared_by_its_kind() {
        for (path, answer, output, expected) in [
            ("$.a", "{{ metadata.n }}", r#"{"a": 42}"#, 1.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": 42.0}"#, 1.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": 4.2e1}"#, 1.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": 41}"#, 0.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": "42"}"#, 1.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": "42 or 43"}"#, 0.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": 420}"#, 0.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": true}"#, 0.0),
            ("$.a", "{{ metadata.n }}", r#"{"a": [42]}"#, 0.0),
            ("$.a", "9007199254740993", r#"{"a": 9007199254740992}"#, 0.0),
            ("$.a", "{{ metadata.city }}", r#"{"a": " Paris"}"#, 1.0),
            ("$.a", "{{ metadata.city }}", r#"{"a": "paris"}"#, 0.0),
            ("$.a", "{{ metadata.city }}", r#"{"a": 5}"#, 0.0),
            ("$.a", "{{ metadata.ok }}", r#"{"a": true}"#, 1.0),
            ("$.a", "{{ metadata.ok }}", r#"{"a": false}"#, 0.0),
            ("$.a", "{{ metadata.nothing }}", r#"{"a": null}"#, 1.0),
            ("$.a", "{{ metadata.nothing }}", r#"{"a": false}"#, 0.0),
            ("$.a", "{{ metadata.list | tojson }}", r#"{"a": [1.0, 2]}"#, 1.0),
            ("$.a", "{{ metadata.list | tojson }}", r#"{"a": [2, 1]}"#, 0.0),
            ("$.a", r#"{"x": 1, "y": "z"}"#, r#"{"a": {"y": "z", "x": 1}}"#, 1.0),
            ("$.a", r#"{"x": 1}"#, r#"{"a": {"y": "z", "x": 1}}"#, 0.0),
            (
                "$.steps[-1].result",
                "7",
                r#"{"steps": [{"result": 1}, {"result": 7}]}"#,
                1.0,
            ),
            ("$", "5", "5", 1.0),
            // Several values are right only if all are.
            ("$..a", "42", r#"[{"a": 42}, {"a": 42}]"#, 1.0),
            ("$..a", "42", r#"[{"a": 42}, {"a": 7}]"#, 0.0),
            ("$.b", "42", r#"{"a": 42}"#, 0.0),
            ("$.a", "42", "42", 0.0),
            ("$.a", "42", "no JSON", 0.0),
            ("$.a", "42", r#"{"a": 42"#, 0.0),
        ] {
            assert_eq!(reward(path, answer, output), expected, "{path} = {answer} in {output}");
        }
    }

    #[test]
    fn json_may_stand_in_a_fence_of_which_the_last_counts() {
        for (output, expected) in [
            ("So:\n```json\n{\"a\": 42}\n```\nDone.", 1.0),
            ("```JSON\n{\"a\": 42}\n```", 1.0),
            ("```\n{\"a\": 42}\n```", 1.0),
            ("```python\n{\"a\": 42}\n```", 0.0),
            ("```json\n{\"a\": 42}\n```\n```json\n{\"a\": 7}\n```", 0.0),
            ("```json\n{\"a\": 42}\n```\n```json\nno\n```", 0.0),
            ("```json\n{\"a\": 42}\n```\n```sh\nls\n```", 1.0),
            ("```json\n{\"a\": 42}", 1.0),
            ("{\"a\": 42} is it", 0.0),
            ("```", 0.0),
        ] {
            assert_eq!(reward("$.a", "42", output), expected, "{output:?}");
        }
    }

    #[test]
    fn a_tolerance_is_relative_and_case_may_be_ignored() {
        let near = JsonPathMatch::new("$.a", template("200"), false, Some(0.01)).unwrap();
        for (output, expected) in [(r#"{"a": 201.9}"#, 1.0), (r#"{"a": 203}"#, 0.0)] {
            assert_eq!(scored(near.clone(), output).unwrap(), expected);
        }
        let any_case = JsonPathMatch::new("$.a", template("PARIS"), true, None).unwrap();
        assert_eq!(scored(any_case, r#"{"a": "paris"}"#).unwrap(), 1.0);
    }

    #[test]
    fn wrong_paths_and_empty_answers_are_errors() {
        assert!(JsonPathMatch::new("a.b", template("x"), false, None).is_err());
        let empty = JsonPathMatch::new("$.a", template(" "), false, None).unwrap();
        assert!(matches!(scored(empty, "{}").unwrap_err(), RewardError::NoAnswer));
    }
}
