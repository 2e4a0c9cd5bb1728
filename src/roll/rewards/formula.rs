//! The reward of type `expression`: the value of an expression over the answer.

use serde_json::Value;

use super::answer::{Answer, Score};
use super::error::RewardError;
use crate::roll::expression::Expression;
use crate::roll::tasks::Task;

/// A finite number is the reward; `true` and `false` are 1 and 0, and whether the goal was reached.
pub(super) fn score(expression: &Expression, task: &Task, answer: &Answer) -> Result<Score, RewardError> {
    match expression.evaluate(&answer.variables(task))? {
        Value::Bool(is_right) => Ok(Score::of(is_right)),
        Value::Number(number) => match number.as_f64().filter(|reward| reward.is_finite()) {
            Some(reward) => Ok(Score {
                reward,
                ..Score::default()
            }),
            None => Err(RewardError::Value(number.to_string())),
        },
        other => Err(RewardError::Value(format!("{:.80}", other.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scored(source: &str) -> Result<Score, RewardError> {
        let expression = Expression::new("roll.reward.expression", source).unwrap();
        let task = Task {
            main_query: "2 + 2?".into(),
            metadata: json!({"answer": 4, "huge": "9".repeat(400).parse::<serde_json::Number>().unwrap()}),
            ..Task::default()
        };
        let answer = Answer {
            output: "4".into(),
            messages: Some(vec![
                json!({"role": "user"}),
                json!({"role": "assistant", "content": "4"}),
            ]),
            reward: Some(0.25),
            is_success: None,
        };
        score(&expression, &task, &answer)
    }

    #[test]
    fn a_number_or_a_truth_is_a_reward() {
        for (source, reward, is_success) in [
            ("output | int == metadata.answer", 1.0, Some(true)),
            ("output == '5'", 0.0, Some(false)),
            ("1 - 0.1 * (messages | length)", 0.8, None),
            ("reward * 2", 0.5, None),
            ("0.5 if task.main_query in '2 + 2?' else 0", 0.5, None),
            ("-3", -3.0, None),
            ("messages[-1].content | length", 1.0, None),
            ("2 ** 70", 2f64.powi(70), None),
        ] {
            let score = scored(source).unwrap();
            assert_eq!((score.reward, score.is_success), (reward, is_success), "{source}");
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for (source, told) in [
            ("output", "is \"4\", which is neither"),
            ("none", "is null"),
            ("[1]", "is [1]"),
            ("1e308 * 1e308", "which JSON does not have"),
            ("1e308 * 1e308 - 1e308 * 1e308", "which JSON does not have"),
            ("metadata.huge", "which is neither a number nor true or false"),
            ("metadata.none + 1", "undefined"),
            ("is_success + 1", "roll.reward.expression"),
        ] {
            let error = scored(source).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert!(error.is_permanent());
        }
    }
}
