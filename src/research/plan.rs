//! Plan files: what a research compares, and how.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::error::ResearchError;
use crate::config;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};

/// Name of the final value that is a run's last evaluation.
pub const EVAL: &str = "eval_reward";
/// Settings that a plan makes itself.
const OWN_KEYS: [&str; 8] = [
    "ajet.experiment_name",
    "ajet.trainer_common.seed",
    "ajet.trainer_common.total_training_steps",
    "roll.seed",
    "roll.steps",
    "roll.epochs",
    "roll.force_restart",
    "roll.sync_code",
];
/// Maximum number of runs of a plan.
const RUNS: usize = 10_000;

/// A plan, read and checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Job file that all runs share, relative to the plan.
    pub job: PathBuf,
    /// What is compared; the first one is the baseline.
    pub variants: Vec<Variant>,
    /// One run of each variant for each seed.
    pub seeds: Vec<u64>,
    /// Weight updates of a run.
    pub steps: u64,
    /// Maximum seconds of a run.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// What is compared: `eval_reward`, a run's last evaluation, or a metric of its updates. Default: `reward_mean`.
    #[serde(default = "default_metric")]
    pub metric: String,
    /// Number of last updates whose metric is averaged. Default: a fifth of `steps`.
    #[serde(default)]
    pub last: Option<usize>,
    /// Whether a smaller value is better.
    #[serde(default)]
    pub lower_is_better: bool,
    /// Probability below which a difference counts as more than noise.
    #[serde(default = "default_significance")]
    pub significance: f64,
    /// Servers that share the runs, one run at a time on each. Default: the job's.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Checkout of ajet-swarm, relative to the plan, whose code the engines of all variants are built from.
    #[serde(default)]
    pub code: Option<PathBuf>,
}

/// One of the compared things.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in the report and in experiment names.
    pub name: String,
    /// Keys of the job and their values.
    #[serde(default)]
    pub set: IndexMap<String, Value>,
    /// Patch of `code`, as `git diff` writes it, relative to the plan.
    #[serde(default)]
    pub patch: Option<PathBuf>,
}

fn default_metric() -> String {
    "reward_mean".into()
}

fn default_significance() -> f64 {
    0.05
}

impl Plan {
    /// Reads a plan; its paths become relative to the current directory.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong.
    pub fn load(path: &Path) -> Result<Self, ResearchError> {
        let text = read_given_text(path, DOCUMENT_BYTES).map_err(|error| ResearchError::file(path, error))?;
        let invalid = |reason: String| ResearchError::Plan {
            path: path.to_owned(),
            reason,
        };
        let mut plan = Self::parse(&text).map_err(invalid)?;
        let dir = path.parent().unwrap_or(Path::new(""));
        plan.job = dir.join(&plan.job);
        plan.code = plan.code.map(|code| dir.join(code));
        for variant in &mut plan.variants {
            variant.patch = variant.patch.take().map(|patch| dir.join(patch));
        }
        Ok(plan)
    }

    /// Reads the text of a plan.
    ///
    /// # Errors
    /// Returns what is wrong, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = config::parse(text).map_err(|error| error.to_string())?;
        let plan: Self = serde_json::from_value(document.to_json()).map_err(|error| error.to_string())?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), String> {
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(plain)
        };
        if self.variants.is_empty() || self.seeds.is_empty() || self.steps == 0 {
            return Err("`variants` and `seeds` need at least one entry, and `steps` must be at least 1".into());
        }
        if self.variants.len().saturating_mul(self.seeds.len()) > RUNS {
            return Err(format!("the plan has more than {RUNS} runs"));
        }
        for (number, variant) in self.variants.iter().enumerate() {
            let name = &variant.name;
            if !is_name(name) {
                return Err(format!(
                    "variant name {name:?} must have 1 to 64 letters, digits, `_`, `-` or `.`"
                ));
            }
            if self.variants[..number].iter().any(|other| other.name == *name) {
                return Err(format!("two variants are named {name:?}"));
            }
            if let Some(key) = variant.set.keys().find(|key| OWN_KEYS.contains(&key.as_str())) {
                return Err(format!("variant {name:?} sets {key}, which the plan sets itself"));
            }
            if variant.patch.is_some() && self.code.is_none() {
                return Err(format!(
                    "variant {name:?} has a patch; hint: name the checkout that it changes as `code`"
                ));
            }
        }
        if (1..self.seeds.len()).any(|at| self.seeds[..at].contains(&self.seeds[at])) {
            return Err("`seeds` has a number twice".into());
        }
        if self
            .seconds
            .is_some_and(|seconds| !(seconds > 0.0 && seconds.is_finite()))
        {
            return Err("`seconds` must be a positive number".into());
        }
        if !(self.significance > 0.0 && self.significance < 1.0) {
            return Err(format!(
                "`significance` must be between 0 and 1, got {}",
                self.significance
            ));
        }
        Ok(())
    }

    /// Number of last updates whose metric is averaged.
    pub fn last(&self) -> usize {
        let fifth = usize::try_from(self.steps.div_ceil(5)).unwrap_or(usize::MAX);
        self.last.unwrap_or(fifth).max(1)
    }

    /// Returns all runs: for each seed, each variant, so that an early report has something of all variants.
    pub fn runs(&self, name: &str) -> Vec<RunSpec> {
        let pairs = self
            .seeds
            .iter()
            .flat_map(|seed| self.variants.iter().map(move |variant| (variant, *seed)));
        pairs.map(|(variant, seed)| self.run(name, variant, seed)).collect()
    }

    fn run(&self, name: &str, variant: &Variant, seed: u64) -> RunSpec {
        let experiment = format!("{name}_{}_seed_{seed}", variant.name);
        let mut settings: Vec<String> = variant
            .set
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        settings.extend([
            format!("ajet.experiment_name={experiment}"),
            format!("ajet.trainer_common.seed={seed}"),
            // One more than `roll.steps`: the engine goes offline at its last update, and an evaluation needs it.
            format!("ajet.trainer_common.total_training_steps={}", self.steps + 1),
            format!("roll.seed={seed}"),
            format!("roll.steps={}", self.steps),
            "roll.epochs=null".into(),
            "roll.force_restart=true".into(),
        ]);
        RunSpec {
            name: format!("{}_seed_{seed}", variant.name),
            variant: variant.name.clone(),
            seed,
            settings,
        }
    }
}

/// One run of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// Name of its files.
    pub name: String,
    /// Its variant.
    pub variant: String,
    /// Its seed.
    pub seed: u64,
    /// Settings over the job, as `KEY=VALUE`.
    pub settings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "
job: job.yaml
steps: 12
seeds: [1, 2]
variants:
  - name: baseline
  - name: no-learning
    set: {ajet.trainer_common.optim.lr: 0, 'roll.agent.user': '{{ main_query }}'}
";

    #[test]
    fn a_plan_has_a_run_of_each_variant_for_each_seed() {
        let plan = Plan::parse(PLAN).unwrap();
        assert_eq!(
            (plan.metric.as_str(), plan.last(), plan.significance),
            ("reward_mean", 3, 0.05)
        );
        let runs = plan.runs("p");
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "baseline_seed_1",
                "no-learning_seed_1",
                "baseline_seed_2",
                "no-learning_seed_2"
            ]
        );
        for setting in [
            "ajet.trainer_common.optim.lr=0",
            "roll.agent.user=\"{{ main_query }}\"",
            "ajet.experiment_name=p_no-learning_seed_1",
            "ajet.trainer_common.seed=1",
            "ajet.trainer_common.total_training_steps=13",
            "roll.steps=12",
        ] {
            assert!(
                runs[1].settings.iter().any(|given| given == setting),
                "{setting}: {:?}",
                runs[1].settings
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, said) in [
            ("steps: 12", "steps: 0", "at least 1"),
            ("steps: 12", "", "missing field `steps`"),
            ("steps: 12", "step: 12", "unknown field `step`"),
            ("seeds: [1, 2]", "seeds: []", "`seeds`"),
            ("seeds: [1, 2]", "seeds: [1, 1]", "twice"),
            ("no-learning", "baseline", "two variants"),
            ("no-learning", "../x", "variant name"),
            (
                "ajet.trainer_common.optim.lr",
                "roll.seed",
                "which the plan sets itself",
            ),
            ("- name: baseline", "- {name: baseline, patch: a.patch}", "has a patch"),
            ("steps: 12", "steps: 12\nsignificance: 2", "between 0 and 1"),
            ("steps: 12", "steps: 12\nseconds: 0", "positive"),
        ] {
            assert!(PLAN.contains(from), "{from}");
            let error = Plan::parse(&PLAN.replace(from, to)).unwrap_err();
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
