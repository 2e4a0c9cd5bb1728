//! Signs in the metrics of one or several updates that training learns little or nothing.

use std::fmt::Write as _;

use indexmap::IndexMap;

use crate::counted::counted;
use crate::protocol::swarm::PoolInformation;

/// Minimum share to report.
const SHARE: f64 = 0.5;

/// Episodes after which equal rewards are reported.
const FIRST_EPISODES: usize = 20;

/// Checks the rewards of the first episodes of a run.
#[derive(Debug, Default)]
pub(super) struct FirstRewards {
    seen: usize,
    first: f64,
    differ: bool,
}

impl FirstRewards {
    /// Adds the reward of an episode. Returns a warning once, if the first rewards are all equal.
    pub fn see(&mut self, reward: f64) -> Option<String> {
        if self.seen == 0 {
            self.first = reward;
        }
        self.differ |= reward != self.first;
        self.seen += 1;
        (self.seen == FIRST_EPISODES && !self.differ).then(|| {
            format!(
                "all of the first {FIRST_EPISODES} episodes have the reward {}; equal rewards give no signal\nhint: \
                 `--debug-one` shows an answer and its reward",
                self.first
            )
        })
    }
}

/// Returns whether an update had nothing to learn from: it changed no weights, or all rewards of each task were equal.
pub(super) fn is_idle(metrics: &IndexMap<String, f64>) -> bool {
    let dummy = value(metrics, "dummy_tasks");
    !trained(metrics) || (dummy > 0.0 && dummy >= value(metrics, "tasks"))
}

/// Returns whether an update changed the weights; true if the server does not report it.
pub(super) fn trained(metrics: &IndexMap<String, f64>) -> bool {
    metrics.get("optimizer_steps").is_none_or(|steps| *steps > 0.0)
}

/// A reason why the model learned little.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Concern {
    /// Kind.
    pub kind: Kind,
    /// Share of the rows, tasks or episodes that it is about, from [`SHARE`] to 1.
    pub share: f64,
    /// Sentence, and a hint on a second line.
    pub text: String,
}

/// Kinds of concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows were cut by a length limit.
    Truncated,
    /// All rewards of a task were equal.
    SignalFree,
    /// Episodes did not reach the update.
    Dropped,
    /// The weights did not change.
    Untrained,
}

/// Returns the metrics of several updates as those of one: counts are added, shares averaged.
pub(super) fn together<'a>(updates: impl ExactSizeIterator<Item = &'a IndexMap<String, f64>>) -> IndexMap<String, f64> {
    let number = updates.len() as f64;
    let mut all: IndexMap<String, f64> = IndexMap::new();
    for (name, value) in updates.flatten() {
        let part = if name.ends_with("_share") {
            value / number
        } else {
            *value
        };
        *all.entry(name.clone()).or_default() += part;
    }
    all
}

/// Returns the reasons why the model learned little from the update, at most one of each kind.
pub(super) fn of(metrics: &IndexMap<String, f64>) -> Vec<Concern> {
    let found = [
        truncated(metrics),
        signal_free(metrics),
        dropped(metrics),
        untrained(metrics),
    ];
    found.into_iter().flatten().collect()
}

fn value(metrics: &IndexMap<String, f64>, name: &str) -> f64 {
    metrics.get(name).copied().unwrap_or(0.0)
}

fn truncated(metrics: &IndexMap<String, f64>) -> Option<Concern> {
    let share = value(metrics, "truncated_share");
    (share >= SHARE).then(|| Concern {
        kind: Kind::Truncated,
        share,
        text: format!(
            "{:.0}% of the rows were cut by a length limit; their mean is {:.0} prompt and {:.0} answer tokens\n\
             hint: raise ajet.data.max_prompt_length if prompts are longer than that, ajet.data.max_response_length \
             if answers are, and ajet.rollout.max_model_len where it is set",
            share * 100.0,
            value(metrics, "prompt_tokens") / value(metrics, "rows").max(1.0),
            value(metrics, "response_length_mean"),
        ),
    })
}

fn signal_free(metrics: &IndexMap<String, f64>) -> Option<Concern> {
    let dummy = value(metrics, "dummy_tasks");
    let tasks = value(metrics, "tasks").max(dummy);
    (dummy > 0.0 && dummy >= SHARE * tasks).then(|| Concern {
        kind: Kind::SignalFree,
        share: dummy / tasks,
        text: format!(
            "{dummy} of {tasks} tasks have equal rewards in all of their episodes, which gives no signal\n\
             hint: take tasks that are neither too easy nor too hard, or a reward of finer steps"
        ),
    })
}

fn dropped(metrics: &IndexMap<String, f64>) -> Option<Concern> {
    let reasons = metrics
        .iter()
        .filter_map(|(name, count)| Some((name.strip_prefix("dropped/")?, *count)));
    let reasons: Vec<_> = reasons.filter(|(_, count)| *count > 0.0).collect();
    let dropped: f64 = reasons.iter().map(|(_, count)| count).sum();
    // These were in the batch, and are counted with its episodes.
    let in_batch = value(metrics, "dropped/truncated") + value(metrics, "dropped/non_finite");
    let begun = dropped - in_batch + value(metrics, "episodes").max(in_batch);
    let name = |(reason, count): &(&str, f64)| match *reason {
        "no_response" => {
            format!("{count} no_response (prompts leave no room for an answer: raise ajet.data.max_prompt_length)")
        }
        reason => format!("{count} {reason}"),
    };
    (dropped > 0.0 && dropped >= SHARE * begun).then(|| Concern {
        kind: Kind::Dropped,
        share: dropped / begun,
        text: format!(
            "{dropped} of {begun} episodes were not trained on: {}",
            reasons.iter().map(name).collect::<Vec<_>>().join(", ")
        ),
    })
}

fn untrained(metrics: &IndexMap<String, f64>) -> Option<Concern> {
    (!trained(metrics)).then(|| Concern {
        kind: Kind::Untrained,
        share: 1.0,
        text: "the weights did not change".into(),
    })
}

/// Returns why no batch became full, for a job with `work` tasks and batches of `batch`, from the state of the server
/// and the failed episodes here.
pub(super) fn of_no_update(
    pool: &PoolInformation,
    failed: &IndexMap<String, u64>,
    work: Option<u64>,
    batch: u64,
) -> String {
    let mut reason = format!(
        "of a batch of {}, {} are complete, {} of them with different rewards, by {}",
        counted(batch, "task"),
        pool.completed_tasks,
        pool.completed_non_dummy_tasks,
        counted(pool.completed_episodes, "episode")
    );
    let counts = |of: &IndexMap<String, u64>| {
        let told = of.iter().filter(|(_, count)| **count > 0);
        told.map(|(name, count)| format!("{count} {name}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    for (what, counts) in [
        ("failed episodes", counts(failed)),
        ("dropped by the server", counts(&pool.dropped_episodes)),
    ] {
        if !counts.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(reason, "; {what}: {counts}");
        }
    }
    let is_dummy = pool.completed_tasks > pool.completed_non_dummy_tasks;
    let hint = match work {
        Some(work) if work < batch => {
            format!(
                "the job has {}: lower ajet.data.train_batch_size, or raise roll.epochs",
                counted(work, "task")
            )
        }
        _ if !failed.is_empty() || !pool.dropped_episodes.is_empty() => {
            "`--debug-one` shows one episode in full".into()
        }
        _ if is_dummy => "take tasks that are neither too easy nor too hard, or a reward of finer steps".into(),
        _ => "ajet.swarm_mode_sample_collection_method says when a batch is full".into(),
    };
    reason + "\nhint: " + &hint
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with an `epochs: 1` job of fewer tasks than a batch: "done after 0 updates", exit 0.
    #[test]
    fn a_batch_that_never_fills_is_explained() {
        let counts = |name: &str, count| IndexMap::from([(name.to_owned(), count)]);
        let pool = |tasks, non_dummy, dropped| PoolInformation {
            completed_tasks: tasks,
            completed_non_dummy_tasks: non_dummy,
            completed_episodes: 9,
            dropped_episodes: dropped,
            ..PoolInformation::default()
        };
        for (pool, failed, work, told, hint) in [
            (
                pool(3, 3, IndexMap::new()),
                IndexMap::new(),
                Some(3),
                "of 8 tasks, 3 are complete",
                "3 tasks: lower",
            ),
            (
                pool(0, 0, IndexMap::new()),
                counts("agent_failed", 12),
                Some(9),
                "failed episodes: 12 agent_failed",
                "`--debug-one`",
            ),
            (
                pool(0, 0, counts("no_llm_call", 7)),
                IndexMap::new(),
                None,
                "dropped by the server: 7 no_llm_call",
                "`--debug-one`",
            ),
            (
                pool(9, 0, IndexMap::new()),
                IndexMap::new(),
                None,
                "0 of them with different rewards",
                "too easy",
            ),
            (
                pool(0, 0, IndexMap::new()),
                IndexMap::new(),
                Some(9),
                "by 9 episodes",
                "collection_method",
            ),
        ] {
            let reason = of_no_update(&pool, &failed, work, 8);
            let (sentence, given) = reason.split_once("\nhint: ").unwrap();
            assert!(sentence.contains(told) && given.contains(hint), "{reason}");
        }
    }

    #[test]
    fn equal_rewards_are_reported_once() {
        let told = |rewards: &mut dyn Iterator<Item = f64>| {
            let mut first = FirstRewards::default();
            rewards.filter_map(|reward| first.see(reward)).collect::<Vec<_>>()
        };
        let equal = told(&mut std::iter::repeat_n(0.5, 100));
        assert!(equal.len() == 1 && equal[0].contains("reward 0.5"), "{equal:?}");
        assert!(told(&mut (0..100).map(|at| f64::from(at % 7 == 0))).is_empty());
        assert!(told(&mut std::iter::repeat_n(0.5, 19)).is_empty());
    }

    #[test]
    fn an_update_without_a_signal_is_idle() {
        for (metrics, expected) in [
            (vec![("tasks", 8.0), ("dummy_tasks", 7.0)], false),
            (vec![("tasks", 8.0), ("dummy_tasks", 8.0)], true),
            (vec![("tasks", 0.0), ("dummy_tasks", 8.0)], true),
            (vec![("tasks", 8.0), ("optimizer_steps", 0.0)], true),
            (vec![], false),
        ] {
            let metrics = metrics
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect();
            assert_eq!(is_idle(&metrics), expected, "{metrics:?}");
        }
    }

    /// Seen with `mask_truncated` and rows that were all cut: the run reported success.
    #[test]
    fn what_keeps_a_model_from_learning_has_a_kind_and_a_share() {
        use Kind::*;
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
            (vec![("truncated_share", 1.0)], vec![(Truncated, 1.0)]),
            (vec![("tasks", 8.0), ("dummy_tasks", 6.0)], vec![(SignalFree, 0.75)]),
            (
                vec![("tasks", 2.0), ("dummy_tasks", 6.0), ("optimizer_steps", 1.0)],
                vec![(SignalFree, 1.0)],
            ),
            (
                vec![("episodes", 4.0), ("dropped/idle", 2.0), ("dropped/truncated", 1.0)],
                vec![(Dropped, 0.5)],
            ),
            (
                vec![("truncated_share", 1.0), ("optimizer_steps", 0.0)],
                vec![(Truncated, 1.0), (Untrained, 1.0)],
            ),
            (vec![("episodes", 5.0), ("dropped/truncated", 2.0)], vec![]),
            (vec![], vec![]),
        ] {
            let metrics: IndexMap<_, _> = metrics
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect();
            let found: Vec<_> = of(&metrics).into_iter().map(|c| (c.kind, c.share)).collect();
            assert_eq!(found, kinds, "{metrics:?}");
        }
    }

    #[test]
    fn several_updates_add_up() {
        let update =
            |tasks, share| IndexMap::from([("dummy_tasks".to_owned(), tasks), ("truncated_share".to_owned(), share)]);
        let updates = [update(3.0, 0.2), update(5.0, 0.4), IndexMap::new(), update(0.0, 0.2)];
        let all = together(updates.iter());
        assert!(
            all["dummy_tasks"] == 8.0 && (all["truncated_share"] - 0.2).abs() < 1e-12,
            "{all:?}"
        );
    }
}
