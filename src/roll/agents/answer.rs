//! The object that an agent of any kind answers with: `{reward?, rewards?, is_success?, output?, metadata?,
//! log_metrics?}`.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{AgentError, Rollout};

/// What an answer may say. Other fields are ignored.
const FIELDS: [&str; 6] = ["reward", "rewards", "is_success", "output", "metadata", "log_metrics"];

/// The answer in what a program printed: its last line that is a JSON object, or else the text itself.
///
/// # Errors
/// A field has the wrong type, or the last line is meant to be an answer but is not JSON (such as `{"reward": NaN}`).
pub(super) fn in_text(stdout: &str) -> Result<Rollout, AgentError> {
    let last = stdout.trim_end().lines().next_back().unwrap_or_default().trim();
    if let Some(reason) = is_broken(last) {
        return Err(AgentError::Answer(format!(
            "a last line that is not JSON ({reason}): {}",
            short(last)
        )));
    }
    let is_object = |line: &&str| line.trim_start().starts_with('{');
    let mut objects = stdout.lines().rev().filter(is_object);
    match objects.find_map(|line| serde_json::from_str(line.trim()).ok()) {
        Some(fields) => in_object(fields),
        None => Ok(Rollout {
            output: stdout.trim().to_string(),
            ..Rollout::default()
        }),
    }
}

/// The answer to an episode in a line of a worker, or nothing where the line is none. An answer repeats `episode_uuid`,
/// so that neither a line of a log nor a late answer is taken for it.
///
/// # Errors
/// The line is meant to be an answer, but is not JSON or belongs to no or another episode.
pub(super) fn in_line(line: &str, episode_uuid: &str) -> Result<Option<Map<String, Value>>, AgentError> {
    if let Some(reason) = is_broken(line.trim()) {
        return Err(AgentError::Answer(format!(
            "a line that is not JSON ({reason}): {}",
            short(line)
        )));
    }
    let Ok(fields) = serde_json::from_str::<Map<String, Value>>(line) else {
        return Ok(None);
    };
    let is_meant = FIELDS.iter().any(|field| fields.contains_key(*field));
    match fields.get("episode_uuid") {
        Some(uuid) if uuid == episode_uuid => Ok(Some(fields)),
        None if !is_meant => Ok(None),
        None => Err(AgentError::Answer(format!(
            "no `episode_uuid`: {}\nhint: repeat the `episode_uuid` of the line that the worker read",
            short(line)
        ))),
        Some(other) => Err(AgentError::Answer(format!(
            "the `episode_uuid` {other}, but the worker was given {episode_uuid:?}"
        ))),
    }
}

/// Why a line that names a field of an answer, as JSON or as Python prints a dictionary, is no JSON object.
fn is_broken(line: &str) -> Option<String> {
    let names_field = || {
        let names = |quote: char| {
            FIELDS
                .iter()
                .any(|field| line.contains(&format!("{quote}{field}{quote}:")))
        };
        names('"') || names('\'')
    };
    let is_meant = line.starts_with('{') && line.ends_with('}') && names_field();
    let error = serde_json::from_str::<Map<String, Value>>(line).err()?;
    is_meant.then(|| error.to_string())
}

/// The answer that an object is.
///
/// # Errors
/// Fails if a field has the wrong type.
pub(super) fn in_object(mut fields: Map<String, Value>) -> Result<Rollout, AgentError> {
    let mut take = |name: &str| fields.remove(name).filter(|value| !value.is_null());
    let wrong = |name: &str, value: &Value, allowed: &str| {
        AgentError::Answer(format!("{name} {}, which is not {allowed}", short(&value.to_string())))
    };
    let map = |name: &str, value: Option<Value>| match value {
        None => Ok(Default::default()),
        Some(Value::Object(map)) => Ok(map.into_iter().collect()),
        Some(other) => Err(wrong(name, &other, "an object")),
    };
    let reward = match take("reward") {
        None => None,
        Some(value) => Some(finite(&value)?),
    };
    let rewards: IndexMap<String, Value> = map("rewards", take("rewards"))?;
    let rewards = rewards.into_iter().map(|(model, value)| Ok((model, finite(&value)?)));
    let is_success = match take("is_success") {
        None => None,
        Some(Value::Bool(is_success)) => Some(is_success),
        Some(other) => return Err(wrong("is_success", &other, "true or false")),
    };
    Ok(Rollout {
        reward,
        rewards: rewards.collect::<Result<_, AgentError>>()?,
        is_success,
        output: match take("output") {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        },
        metadata: map("metadata", take("metadata"))?,
        log_metrics: map("log_metrics", take("log_metrics"))?,
        ..Rollout::default()
    })
}

/// A reward; one that is not a finite number is never taken as 0.
fn finite(value: &Value) -> Result<f64, AgentError> {
    let reward = value.as_f64().filter(|reward| reward.is_finite());
    reward.ok_or_else(|| AgentError::Reward(short(&value.to_string())))
}

/// The beginning of a text, as an error shows it.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 80;
    let mut short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_json_object_is_the_answer() {
        let text = "log\n{\"reward\": 0}\n{\"reward\": 0.5, \"is_success\": true, \"output\": [1]}\n{bad\n";
        let answer = in_text(text).unwrap();
        assert_eq!((answer.reward, answer.is_success), (Some(0.5), Some(true)));
        assert_eq!(answer.output, "[1]");
        let text = in_text(" 42\n").unwrap();
        assert_eq!((text.output.as_str(), text.reward), ("42", None));
    }

    #[test]
    fn text_that_only_looks_like_an_answer_stays_text() {
        for text in [
            "\\frac{1}{2}",
            "{x}",
            "{'a': 1}",
            "f(x) = {reward}",
            "",
            "\u{fffd}\u{0}{",
        ] {
            let answer = in_text(text).unwrap();
            assert_eq!((answer.output.as_str(), answer.reward), (text.trim(), None), "{text:?}");
        }
    }

    #[test]
    fn a_line_of_a_worker_is_an_answer_to_its_episode_only() {
        for (line, is_answer) in [
            (r#"{"episode_uuid": "e", "reward": 1}"#, true),
            (r#" {"episode_uuid": "e"}"#, true),
            ("loading…", false),
            (r#"{"level": "info", "message": "hi"}"#, false),
            ("[1]", false),
            ("", false),
        ] {
            assert_eq!(in_line(line, "e").unwrap().is_some(), is_answer, "{line}");
        }
        for (line, message) in [
            (r#"{"reward": 1}"#, "no `episode_uuid`"),
            (
                r#"{"episode_uuid": "d", "reward": 1}"#,
                "the `episode_uuid` \"d\", but the worker was given \"e\"",
            ),
            (r#"{"episode_uuid": "d"}"#, "the `episode_uuid` \"d\""),
            (r#"{"episode_uuid": "e", "reward": NaN}"#, "not JSON"),
        ] {
            let error = in_line(line, "e").unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.reason(), "bad_answer");
        }
    }

    #[test]
    fn a_wrong_answer_is_an_error_with_its_reason() {
        for (stdout, reason, message) in [
            (
                r#"{"reward": "high"}"#,
                "bad_reward",
                r#"the reward "high", which is not a finite number"#,
            ),
            (r#"{"reward": "1"}"#, "bad_reward", r#"the reward "1""#),
            (r#"{"reward": true}"#, "bad_reward", "the reward true"),
            (r#"{"reward": -1e400}"#, "bad_reward", "the reward -1e+400"),
            (r#"{"rewards": {"solver": null}}"#, "bad_reward", "the reward null"),
            (
                r#"{"reward": 1, "rewards": [1]}"#,
                "bad_answer",
                "rewards [1], which is not an object",
            ),
            (
                r#"{"is_success": 1}"#,
                "bad_answer",
                "is_success 1, which is not true or false",
            ),
            (
                r#"{"metadata": [1]}"#,
                "bad_answer",
                "metadata [1], which is not an object",
            ),
            // Seen with Python, which prints NaN: all of the text became the output, and could be rewarded.
            (
                "{\"reward\": NaN, \"output\": \"4\"}\n",
                "bad_answer",
                "a last line that is not JSON",
            ),
            (
                "{\"reward\": 0}\n{\"reward\": Infinity}",
                "bad_answer",
                "a last line that is not JSON",
            ),
            (
                "{'reward': 1.0, 'is_success': True}",
                "bad_answer",
                "a last line that is not JSON",
            ),
        ] {
            let error = in_text(stdout).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.reason(), reason, "{stdout}");
        }
    }
}
