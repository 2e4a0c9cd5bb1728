//! Checkpoints: their layout on disk, which the engine writes and the server reads, and their listing on the wire.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Directory of checkpoints in an experiment directory.
pub const DIR_NAME: &str = "checkpoints";
/// File in it with the name of the checkpoint to resume from.
pub const LATEST: &str = "latest";
/// File in it with the best checkpoint, a [`BestCheckpoint`] as JSON.
pub const BEST: &str = "best";
/// File of a checkpoint that lists the others.
pub const MANIFEST: &str = "manifest.json";
/// Directory of the trainer's state in a checkpoint.
pub const TRAINER_DIR: &str = "trainer";
/// File by which a LoRA adapter is known.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
const STEP_PREFIX: &str = "global_step_";

/// Contents of a checkpoint. `Run` identifies the run; only the engine interprets it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest<Run = serde_json::Value> {
    /// Version of the layout.
    pub format: u32,
    /// Last step whose update is included.
    pub global_step: u64,
    /// Identity of the run.
    pub run: Run,
    /// Sizes in bytes by path relative to the checkpoint.
    pub files: IndexMap<String, u64>,
    /// SHA-256 in hexadecimal by path; empty in checkpoints of older versions.
    #[serde(default)]
    pub sha256: IndexMap<String, String>,
}

impl<Run> Manifest<Run> {
    /// Returns the total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.values().fold(0, |total, size| total.saturating_add(*size))
    }
}

/// Content of the file `best`: which checkpoint is the best one, and by what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestCheckpoint {
    /// Its step; its directory is `global_step_<step>`.
    pub step: u64,
    /// Metric by which it is the best, such as `eval/reward_mean`; higher is better.
    pub metric: String,
    /// Value of the metric, measured with the checkpoint's weights.
    pub value: f64,
    /// Number of episodes that were measured.
    pub episodes: u64,
}

impl BestCheckpoint {
    /// Returns whether this one takes the place of `present`: it is better, or a new measurement of the same
    /// checkpoint, or by another metric. A measurement of less than half as many episodes says too little.
    pub fn replaces(&self, present: &Self) -> bool {
        let is_comparable = self.metric == present.metric && self.step != present.step;
        !is_comparable || self.value > present.value && self.episodes.saturating_mul(2) >= present.episodes
    }
}

/// Answer of `GET /checkpoints`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointsAnswer {
    /// Name of the experiment's directory.
    #[serde(default)]
    pub experiment: String,
    /// Complete checkpoints, ascending by step.
    #[serde(default)]
    pub checkpoints: Vec<CheckpointInfo>,
}

/// A checkpoint of the server's experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointInfo {
    /// What it contains.
    pub kind: CheckpointKind,
    /// Whether a resume starts from it.
    #[serde(default)]
    pub is_latest: bool,
    /// Whether the best evaluation so far is of it.
    #[serde(default)]
    pub is_best: bool,
    /// Its files.
    pub manifest: Manifest,
}

/// Kind of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointKind {
    /// A complete model.
    Model,
    /// A LoRA adapter.
    Adapter,
}

impl CheckpointKind {
    /// Returns the kind of a checkpoint with these files.
    pub fn of<Run>(manifest: &Manifest<Run>) -> Self {
        match manifest.files.contains_key(ADAPTER_CONFIG) {
            true => Self::Adapter,
            false => Self::Model,
        }
    }
}

/// Returns the name of the checkpoint directory of a step.
pub fn directory_name(step: u64) -> String {
    format!("{STEP_PREFIX}{step}")
}

/// Returns the step of a checkpoint directory's name.
pub fn parse_step(name: &str) -> Option<u64> {
    name.strip_prefix(STEP_PREFIX)?.parse().ok()
}

/// Returns whether a file name in a manifest stays below the checkpoint's directory.
pub fn is_below(file: &str) -> bool {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..");
    file.split('/').all(is_plain) && !file.contains(['\0', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_steps() {
        assert_eq!(directory_name(40), "global_step_40");
        for (name, step) in [
            ("global_step_40", Some(40)),
            ("global_step_", None),
            ("global_step_-1", None),
            ("latest", None),
            (".unfinished-40", None),
        ] {
            assert_eq!(parse_step(name), step, "{name}");
        }
    }

    #[test]
    fn file_names_stay_below_their_directory() {
        for file in ["config.json", "trainer/state.json", "a/b/c", "..a", "a b"] {
            assert!(is_below(file), "{file}");
        }
        for file in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "a\0b",
            "a\\b",
        ] {
            assert!(!is_below(file), "{file}");
        }
    }

    #[test]
    fn a_better_checkpoint_of_as_good_a_measurement_takes_the_place() {
        let best = |step, metric: &str, value, episodes| BestCheckpoint {
            step,
            metric: metric.into(),
            value,
            episodes,
        };
        let present = best(20, "eval/reward_mean", 0.5, 50);
        for (candidate, expected) in [
            (best(40, "eval/reward_mean", 0.6, 50), true),
            (best(40, "eval/reward_mean", 0.6, 25), true),
            (best(40, "eval/reward_mean", 1.0, 24), false),
            (best(40, "eval/reward_mean", 0.5, 50), false),
            (best(40, "eval/reward_mean", 0.4, 500), false),
            (best(20, "eval/reward_mean", 0.4, 3), true),
            (best(40, "reward_mean", 0.1, 8), true),
        ] {
            assert_eq!(candidate.replaces(&present), expected, "{candidate:?}");
        }
    }
}
