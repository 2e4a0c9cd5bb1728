//! Judges from the updates and rewards of a run whether it learns: warnings, and when to stop. Pure.

use indexmap::IndexMap;

use super::concerns::{self, FirstRewards};

/// Maximum number of equal warnings of a run.
const WARNINGS_OF_A_KIND: u32 = 3;

/// Learning progress of a run.
#[derive(Debug, Default)]
pub(super) struct Learning {
    first_rewards: FirstRewards,
    /// Number of reports of each concern.
    reported: IndexMap<&'static str, u32>,
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

    /// Adds the metrics of an update; returns warnings, of each kind a few per run.
    pub fn updated(&mut self, metrics: &IndexMap<String, f64>) -> Vec<String> {
        self.updates += 1;
        self.has_trained |= concerns::trained(metrics);
        self.idle_updates = match concerns::is_idle(metrics) {
            true => self.idle_updates + 1,
            false => 0,
        };
        let concerns = concerns::of(metrics);
        let first_lines = concerns.iter().filter_map(|(_, sentence)| sentence.lines().next());
        self.reasons = first_lines.collect::<Vec<_>>().join("; ");
        let is_due = |(kind, sentence): (&'static str, String)| {
            let reported = self.reported.entry(kind).or_default();
            *reported += 1;
            (*reported <= WARNINGS_OF_A_KIND).then_some(sentence)
        };
        concerns.into_iter().filter_map(is_due).collect()
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

    #[test]
    fn a_warning_is_repeated_a_few_times() {
        let mut learning = Learning::default();
        let told: usize = (0..9).map(|_| learning.updated(&metrics(8.0, 8.0, 1.0)).len()).sum();
        assert_eq!(told, 3);
    }

    #[test]
    fn a_run_is_untrained_until_an_update_changes_a_weight() {
        let mut learning = Learning::default();
        assert_eq!(learning.untrained(), None);
        learning.updated(&metrics(8.0, 0.0, 0.0));
        assert!(learning.untrained().unwrap().contains("changed no weights"));
        learning.updated(&metrics(8.0, 0.0, 1.0));
        learning.updated(&metrics(8.0, 0.0, 0.0));
        assert_eq!(learning.untrained(), None);
    }
}
