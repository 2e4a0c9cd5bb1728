//! Judges from the updates and rewards of a run whether it learns: warnings, and when to stop. Pure.

use std::collections::VecDeque;

use indexmap::IndexMap;

use super::concerns::{self, Concern, FirstRewards, Kind};
use crate::trend::{Direction, LONGEST, Trend};

/// Success rate from which equal rewards are mostly those of solved tasks. In the quickstart, half of the tasks have
/// equal rewards when 0.85 of the episodes succeed.
const SOLVED: f64 = 0.8;

/// Number of the last updates that a concern is about.
const WINDOW: usize = 10;

/// Learning progress of a run.
#[derive(Debug, Default)]
pub(super) struct Learning {
    first_rewards: FirstRewards,
    /// Kinds of concerns that were reported.
    reported: Vec<Kind>,
    /// Metrics of the last updates, at most [`WINDOW`].
    last: VecDeque<IndexMap<String, f64>>,
    /// Mean rewards of the last updates, at most [`LONGEST`].
    rewards: VecDeque<f64>,
    updates: u64,
    has_trained: bool,
    /// Number of consecutive updates that had nothing to learn from.
    idle_updates: u64,
    /// Concerns about the metrics of the last update.
    reasons: String,
}

impl Learning {
    /// Adds the reward of an episode; returns a warning, if any.
    pub fn episode_ended(&mut self, reward: f64) -> Option<String> {
        self.first_rewards.see(reward)
    }

    /// Adds the metrics of an update; returns warnings, of each kind one per run.
    ///
    /// A single batch says little: some tasks are always too easy or too hard. So a concern is reported if it is about
    /// everything in the first update, or about half of what the last [`WINDOW`] updates had.
    pub fn updated(&mut self, metrics: &IndexMap<String, f64>) -> Vec<String> {
        self.updates += 1;
        self.has_trained |= concerns::trained(metrics);
        self.idle_updates = match concerns::is_idle(metrics) {
            true => self.idle_updates + 1,
            false => 0,
        };
        let concerns = concerns::of(metrics);
        let first_lines = concerns.iter().filter_map(|concern| concern.text.lines().next());
        self.reasons = first_lines.collect::<Vec<_>>().join("; ");
        keep_last(&mut self.last, Some(metrics.clone()), WINDOW);
        keep_last(&mut self.rewards, metrics.get("reward_mean").copied(), LONGEST);
        let mut due = self.due(concerns);
        due.retain(|concern| !self.reported.contains(&concern.kind));
        self.reported.extend(due.iter().map(|concern| concern.kind));
        due.into_iter().map(|concern| concern.text).collect()
    }

    /// Returns the concerns to report after an update that has `concerns` itself.
    fn due(&self, concerns: Vec<Concern>) -> Vec<Concern> {
        if self.updates == 1 {
            return concerns.into_iter().filter(|concern| concern.share >= 1.0).collect();
        }
        if self.last.len() < WINDOW {
            return vec![];
        }
        let due = concerns::of(&concerns::together(self.last.iter()));
        due.into_iter()
            .filter(|concern| concern.kind != Kind::SignalFree || !self.advances())
            .map(|concern| Concern {
                text: format!("in the last {WINDOW} updates, {}", concern.text),
                ..concern
            })
            .collect()
    }

    /// Returns whether the rewards rise, or most tasks are solved.
    fn advances(&self) -> bool {
        let rates: Vec<f64> = self
            .last
            .iter()
            .filter_map(|metrics| metrics.get("success_rate").copied())
            .collect();
        let is_solved = !rates.is_empty() && rates.iter().sum::<f64>() >= SOLVED * rates.len() as f64;
        let rewards: Vec<f64> = self.rewards.iter().copied().collect();
        is_solved || Trend::of(&rewards).is_some_and(|trend| trend.direction == Direction::Rising)
    }

    /// The number of the last updates that had nothing to learn from, and why, where there were `limit` or more; 0 is
    /// no limit.
    pub fn is_in_vain(&self, limit: u64) -> Option<(u64, String)> {
        (limit > 0 && self.idle_updates >= limit).then(|| (self.idle_updates, self.reasons.clone()))
    }

    /// Returns why no update changed a weight, if there were updates and none did.
    pub fn untrained(&self) -> Option<&str> {
        (self.updates > 0 && !self.has_trained).then_some(self.reasons.as_str())
    }
}

/// The learning of each model of a run, the one that leads first.
#[derive(Debug)]
pub(super) struct LearningOfModels(Vec<(String, Learning)>);

impl LearningOfModels {
    /// Models of these names; a single model has none.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| (name, Learning::default())).collect())
    }

    /// Takes the reward of an episode. Returns a warning, if there is one.
    pub fn episode_ended(&mut self, reward: f64) -> Option<String> {
        let (_, first) = self.0.first_mut()?;
        first.episode_ended(reward)
    }

    /// Takes the metrics of an update; those of other models than the first begin with their names. Returns warnings.
    pub fn updated(&mut self, metrics: &IndexMap<String, f64>) -> Vec<String> {
        let mut warnings = vec![];
        for (place, (name, learning)) in self.0.iter_mut().enumerate() {
            let own = match place {
                0 => metrics.clone(),
                _ => metrics_of(name, metrics),
            };
            warnings.extend(
                learning
                    .updated(&own)
                    .into_iter()
                    .map(|warning| of_model(name, &warning)),
            );
        }
        warnings
    }

    /// As [`Learning::is_in_vain`], where that is so for all models.
    pub fn is_in_vain(&self, limit: u64) -> Option<(u64, String)> {
        let all: Option<Vec<_>> = self.0.iter().map(|(_, learning)| learning.is_in_vain(limit)).collect();
        all?.into_iter().min_by_key(|(updates, _)| *updates)
    }

    /// As [`Learning::untrained`], of the first model that is.
    pub fn untrained(&self) -> Option<String> {
        let mut untrained = self
            .0
            .iter()
            .filter_map(|(name, learning)| Some((name, learning.untrained()?)));
        untrained.next().map(|(name, reason)| of_model(name, reason))
    }
}

/// Adds a value, if there is one, and drops the oldest beyond `most`.
fn keep_last<T>(values: &mut VecDeque<T>, value: Option<T>, most: usize) {
    values.extend(value);
    let excess = values.len().saturating_sub(most);
    values.drain(..excess);
}

fn metrics_of(model: &str, metrics: &IndexMap<String, f64>) -> IndexMap<String, f64> {
    let own = |(name, value): (&String, &f64)| {
        let name = name.strip_prefix(model)?.strip_prefix('/')?;
        Some((name.to_owned(), *value))
    };
    metrics.iter().filter_map(own).collect()
}

fn of_model(name: &str, sentence: &str) -> String {
    match name {
        "" => sentence.to_owned(),
        name => format!("model {name}: {sentence}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(tasks: f64, dummy: f64, steps: f64) -> IndexMap<String, f64> {
        [("tasks", tasks), ("dummy_tasks", dummy), ("optimizer_steps", steps)]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    #[test]
    fn updates_without_a_signal_are_counted_until_one_has_some() {
        let mut learning = Learning::default();
        for _ in 0..4 {
            learning.updated(&metrics(8.0, 8.0, 1.0));
        }
        assert!(learning.is_in_vain(5).is_none() && learning.is_in_vain(0).is_none());
        let (updates, reason) = learning.is_in_vain(4).unwrap();
        assert!(updates == 4 && reason.contains("equal rewards"), "{reason}");
        learning.updated(&metrics(8.0, 7.0, 1.0));
        assert!(learning.is_in_vain(1).is_none());
    }

    #[test]
    fn each_of_several_models_has_to_learn() {
        let mut learning = LearningOfModels::new(["planner".to_owned(), "solver".to_owned()]);
        let both = |solver_steps: f64| {
            let mut both = metrics(8.0, 0.0, 1.0);
            let solver = metrics(8.0, 8.0, solver_steps);
            both.extend(
                solver
                    .into_iter()
                    .map(|(name, value)| (format!("solver/{name}"), value)),
            );
            both
        };
        let warnings = learning.updated(&both(0.0));
        assert!(!warnings.is_empty() && warnings.iter().all(|warning| warning.starts_with("model solver: ")));
        assert!(learning.is_in_vain(1).is_none(), "the planner learns");
        assert!(learning.untrained().unwrap().starts_with("model solver: "));
        learning.updated(&both(1.0));
        assert_eq!(learning.untrained(), None);
    }

    /// Seen in the quickstart, which learns well and was warned of batches with 8 of 16 tasks of equal rewards.
    #[test]
    fn equal_rewards_are_reported_once_and_only_where_they_hinder() {
        type Series = fn(usize) -> f64;
        let growing: Series = |at| (at as f64 / 3.0).min(8.0);
        let cases: [(&str, Series, Series, &[usize]); 7] = [
            ("some batches", |at| if at % 3 == 0 { 5.0 } else { 2.0 }, |_| 0.4, &[]),
            (
                "half of the first batch",
                |at| if at == 0 { 4.0 } else { 2.0 },
                |_| 0.4,
                &[],
            ),
            (
                "all of the first batch",
                |at| if at == 0 { 8.0 } else { 2.0 },
                |_| 0.4,
                &[1],
            ),
            ("half of all", |_| 4.0, |_| 0.4, &[10]),
            ("more and more", growing, |_| 0.4, &[18]),
            ("while the rewards rise", |_| 4.0, |at| 0.01 * at as f64, &[]),
            (
                "of solved tasks",
                growing,
                |at| if at % 2 == 0 { 0.95 } else { 0.75 },
                &[],
            ),
        ];
        for (what, dummy, reward, expected) in cases {
            let mut learning = Learning::default();
            let mut warned = vec![];
            for at in 0..40 {
                let mut update = metrics(8.0, dummy(at), 1.0);
                for name in ["reward_mean", "success_rate"] {
                    update.insert(name.into(), reward(at));
                }
                for warning in learning.updated(&update) {
                    assert!(warning.contains("tasks have equal rewards"), "{warning}");
                    warned.push(at + 1);
                }
            }
            assert_eq!(warned, expected, "{what}");
        }
    }

    #[test]
    fn a_warning_about_several_updates_says_so() {
        let mut learning = Learning::default();
        let told: Vec<_> = (0..20)
            .flat_map(|_| learning.updated(&metrics(8.0, 5.0, 1.0)))
            .collect();
        let [warning] = told.try_into().unwrap();
        let expected = "in the last 10 updates, 50 of 80 tasks have equal rewards";
        assert!(warning.starts_with(expected), "{warning}");
    }

    #[test]
    fn a_run_is_untrained_until_an_update_changes_a_weight() {
        let mut learning = Learning::default();
        assert_eq!(learning.untrained(), None);
        learning.updated(&metrics(8.0, 0.0, 0.0));
        assert!(learning.untrained().unwrap().contains("weights did not change"));
        learning.updated(&metrics(8.0, 0.0, 1.0));
        learning.updated(&metrics(8.0, 0.0, 0.0));
        assert_eq!(learning.untrained(), None);
    }
}
