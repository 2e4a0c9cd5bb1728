//! What an update's metrics say of a training that learns little or nothing.

use indexmap::IndexMap;

/// From this share on, something is told.
const SHARE: f64 = 0.5;

/// Whether an update changed the weights. A server that does not say has done so.
pub(super) fn trained(metrics: &IndexMap<String, f64>) -> bool {
    metrics.get("optimizer_steps").is_none_or(|steps| *steps > 0.0)
}

/// Why the update taught the model little, by kind; each a sentence.
pub(super) fn of(metrics: &IndexMap<String, f64>) -> Vec<(&'static str, String)> {
    let value = |name: &str| metrics.get(name).copied().unwrap_or(0.0);
    let mut found = vec![];
    let truncated = value("truncated_share");
    if truncated >= SHARE {
        found.push((
            "truncated",
            format!(
                "{:.0}% of the rows were cut by a length limit\nhint: raise ajet.data.max_response_length and \
                 ajet.rollout.max_model_len",
                truncated * 100.0
            ),
        ));
    }
    let dummy = value("dummy_tasks");
    let tasks = value("tasks").max(dummy);
    if dummy > 0.0 && dummy >= SHARE * tasks {
        found.push((
            "signal-free",
            format!(
                "{dummy} of {tasks} tasks have equal rewards in all of their episodes, which gives no signal\n\
                 hint: take tasks that are neither too easy nor too hard, or a reward of finer steps"
            ),
        ));
    }
    let reasons: Vec<_> = metrics
        .iter()
        .filter_map(|(name, count)| Some((name.strip_prefix("dropped/")?, *count)))
        .filter(|(_, count)| *count > 0.0)
        .collect();
    let dropped: f64 = reasons.iter().map(|(_, count)| count).sum();
    // These were in the batch, and are counted with its episodes.
    let in_batch = value("dropped/truncated") + value("dropped/non_finite");
    let begun = dropped - in_batch + value("episodes").max(in_batch);
    if dropped > 0.0 && dropped >= SHARE * begun {
        let reasons: Vec<_> = reasons
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        found.push((
            "dropped",
            format!(
                "{dropped} of {begun} episodes were not trained on: {}",
                reasons.join(", ")
            ),
        ));
    }
    if !trained(metrics) {
        found.push(("untrained", "the update changed no weights".into()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with `mask_truncated` and rows that were all cut: the run reported success.
    #[test]
    fn what_keeps_a_model_from_learning_is_told_from_the_first_update_on() {
        for (metrics, kinds) in [
            (
                vec![
                    ("truncated_share", 0.2),
                    ("tasks", 8.0),
                    ("dummy_tasks", 1.0),
                    ("episodes", 64.0),
                ],
                vec![],
            ),
            (vec![("truncated_share", 1.0)], vec!["truncated"]),
            (
                vec![("tasks", 2.0), ("dummy_tasks", 6.0), ("optimizer_steps", 1.0)],
                vec!["signal-free"],
            ),
            (
                vec![("episodes", 3.0), ("dropped/idle", 2.0), ("dropped/truncated", 1.0)],
                vec!["dropped"],
            ),
            (
                vec![("truncated_share", 1.0), ("optimizer_steps", 0.0)],
                vec!["truncated", "untrained"],
            ),
            (vec![("episodes", 5.0), ("dropped/truncated", 2.0)], vec![]),
            (vec![], vec![]),
        ] {
            let metrics: IndexMap<_, _> = metrics
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect();
            let found: Vec<_> = of(&metrics).into_iter().map(|(kind, _)| kind).collect();
            assert_eq!(found, kinds, "{metrics:?}");
        }
    }
}
