//! What `roll --json` says of a run.

use serde_json::Value;

use super::plan::{EVAL, Plan};

/// A value of the plan's metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The step.
    pub step: u64,
    /// The value.
    pub value: f64,
}

/// Reads a line; `None` if it has no value of the plan's metric.
pub fn read(line: &str, plan: &Plan) -> Option<Measured> {
    let event: Value = serde_json::from_str(line).ok()?;
    let key = match event.get("event")?.as_str()? {
        "eval" if plan.metric == EVAL => "reward_mean",
        "step" => plan.metric.as_str(),
        _ => return None,
    };
    Some(Measured {
        step: event.get("global_step")?.as_u64()?,
        value: event.get(key)?.as_f64().filter(|value| value.is_finite())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_found_among_the_events() {
        let step = r#"{"event":"step","global_step":3,"reward_mean":0.5,"loss":0.1}"#;
        let eval = r#"{"event":"eval","global_step":4,"reward_mean":0.75}"#;
        for (metric, line, expected) in [
            ("reward_mean", step, Some((3, 0.5))),
            ("loss", step, Some((3, 0.1))),
            ("kl", step, None),
            ("reward_mean", eval, None),
            ("eval_reward", eval, Some((4, 0.75))),
            ("eval_reward", step, None),
            (
                "reward_mean",
                r#"{"event":"step","global_step":3,"reward_mean":null}"#,
                None,
            ),
            ("reward_mean", "no JSON", None),
            ("reward_mean", "", None),
        ] {
            let plan = format!("{{job: j, steps: 9, seeds: [1], variants: [{{name: a}}], metric: {metric}}}");
            let found = read(line, &Plan::parse(&plan).unwrap());
            assert_eq!(
                found.map(|found| (found.step, found.value)),
                expected,
                "{metric} in {line}"
            );
        }
    }
}
