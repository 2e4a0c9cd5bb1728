//! Checks of an episode's outcome before it enters a batch.

use serde_json::Value;

use crate::protocol::swarm::{EndEpisodeRequest, WorkflowOutput};
use crate::server::http::error::Error;

/// Returns the reward if the task ids match and the reward is one finite number.
///
/// # Errors
///
/// [`Error::Invalid`] with the reason; the episode stays claimed.
pub fn checked_reward(request: &EndEpisodeRequest) -> Result<f64, Error> {
    check_task_id(&request.task_id, &request.workflow_output)?;
    let wrong = |got: String| {
        let sentence = format!(
            "workflow_output.reward must be one finite number, got {got}; the episode stays claimed until it is ended, \
             aborted or discarded as idle; hint: return one number from the agent's run, or call abort_episode to free the \
             episode's slot"
        );
        Err(Error::Invalid(sentence))
    };
    match &request.workflow_output.reward {
        Value::Number(number) => match number.as_f64() {
            Some(reward) if reward.is_finite() => Ok(reward),
            _ => wrong(number.to_string().chars().take(40).collect()),
        },
        Value::Array(list) => wrong(format!("a list of {} values", list.len())),
        Value::Object(_) => wrong("an object".into()),
        // The literals NaN and Infinity arrive as strings, see `lenient_json`.
        Value::String(text) => wrong(text.chars().take(40).collect()),
        other => wrong(other.to_string()),
    }
}

fn check_task_id(task_id: &str, output: &WorkflowOutput) -> Result<(), Error> {
    let inner = output.metadata.get("task_id").and_then(Value::as_str).unwrap_or("");
    if task_id.is_empty() || inner.is_empty() {
        return Err(Error::Invalid(format!(
            "task_id and workflow_output.metadata.task_id must not be empty, got {task_id:?} and {inner:?}"
        )));
    }
    if task_id != inner {
        return Err(Error::Invalid(format!(
            "task_id and workflow_output.metadata.task_id must be equal, got {task_id:?} and {inner:?}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn end(reward: Value, task_id: &str, inner: Value) -> EndEpisodeRequest {
        serde_json::from_value(json!({
            "client_uuid": "c", "episode_uuid": "e", "task_id": task_id,
            "workflow_output": {"reward": reward, "metadata": {"task_id": inner}},
        }))
        .unwrap()
    }

    #[test]
    fn finite_numbers_are_rewards() {
        for (given, reward) in [(json!(0.5), 0.5), (json!(1), 1.0), (json!(-3), -3.0)] {
            assert_eq!(checked_reward(&end(given, "t", json!("t"))), Ok(reward));
        }
    }

    #[test]
    fn anything_else_is_refused_by_what_it_is() {
        for (given, said) in [
            (json!(null), "null"),
            (json!([1.0, 0.0]), "a list of 2 values"),
            (json!({"a": 1}), "an object"),
            (json!("NaN"), "NaN"),
            (json!("-Infinity"), "-Infinity"),
            (json!(true), "true"),
            (serde_json::from_str("1e400").unwrap(), "1e+400"),
            (serde_json::from_str("-1E999").unwrap(), "-1e+999"),
            (serde_json::from_str(&"9".repeat(400)).unwrap(), &"9".repeat(40)),
        ] {
            let message = checked_reward(&end(given, "t", json!("t"))).unwrap_err().to_string();
            assert!(
                message.contains(&format!("one finite number, got {said};")),
                "{message}"
            );
            // Clients that drop an episode whose end is refused must hear that it keeps its slot.
            assert!(
                message.contains("the episode stays claimed until") && message.contains("call abort_episode"),
                "{message}"
            );
        }
    }

    #[test]
    fn task_ids_are_set_and_equal() {
        for (outer, inner) in [
            ("", json!("")),
            ("t", json!(null)),
            ("", json!("t")),
            ("t", json!("u")),
            ("7", json!(7)),
        ] {
            let message = checked_reward(&end(json!(1), outer, inner)).unwrap_err().to_string();
            assert!(message.contains("task_id"), "{message}");
        }
    }
}
