//! What a reward is given, and what it gives back.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::roll::tasks::Task;

/// An agent's answer to a task, as rewards see it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The text that the agent ended with.
    pub output: String,
    /// The conversation in OpenAI's form; `None` where it is not known, as without a swarm server.
    pub messages: Option<Vec<Value>>,
    /// The agent's own reward, if it gave one.
    pub reward: Option<f64>,
    /// Whether the agent said that it reached its goal.
    pub is_success: Option<bool>,
}

impl Answer {
    /// The variables of expressions and prompts: the task's fields, and over them `task`, `output`, `reward`,
    /// `is_success` and, where it is known, `messages`.
    pub(super) fn variables(&self, task: &Task) -> Map<String, Value> {
        let task = json!(task);
        let mut variables = task.as_object().cloned().unwrap_or_default();
        variables.insert("task".into(), task);
        variables.insert("output".into(), json!(self.output));
        variables.insert("reward".into(), json!(self.reward));
        variables.insert("is_success".into(), json!(self.is_success));
        match &self.messages {
            Some(messages) => variables.insert("messages".into(), json!(messages)),
            // A field of the task of that name would be taken for the conversation.
            None => variables.remove("messages"),
        };
        variables
    }
}

/// The reward of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Finite.
    pub reward: f64,
    /// Whether the goal was reached, where that is known.
    pub is_success: Option<bool>,
    /// For the step's metrics.
    pub log_metrics: IndexMap<String, Value>,
}

impl Score {
    /// 1 for a right answer, 0 for a wrong one.
    pub(super) fn of(is_right: bool) -> Self {
        Self {
            reward: f64::from(is_right),
            is_success: Some(is_right),
            log_metrics: IndexMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_did_stands_over_fields_of_the_task() {
        let task = Task {
            task_id: "t".into(),
            metadata: json!({"answer": 4}),
            ..Task::default()
        };
        let answer = Answer {
            output: "4".into(),
            reward: Some(0.5),
            ..Answer::default()
        };
        let variables = answer.variables(&task);
        assert_eq!((&variables["output"], &variables["reward"]), (&json!("4"), &json!(0.5)));
        assert_eq!(variables["task"]["metadata"], variables["metadata"]);
        assert!(!variables.contains_key("messages"));
        let known = Answer {
            messages: Some(vec![json!({"role": "user"})]),
            ..answer
        };
        assert_eq!(known.variables(&task)["messages"][0]["role"], "user");
    }
}
