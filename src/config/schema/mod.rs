//! Every configuration key that has an effect, with its default, under AgentJet's names.
//!
//! The doc comment of a field is its documentation: `docs/configuration.md` is generated from these files.

mod context_tracker;
mod model;
mod rollout;
mod task_reader;
mod trainer;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use context_tracker::{CompareLevel, ContextTracker, TimelineMergingPolicy};
pub use model::{Dtype, Engine, Kernels, Lora, Model, Ranks, TargetModules};
pub use rollout::{
    Data, LEAST_TEMPERATURE, MadnessCheck, MultiTurn, OnContextOverflow, Quantization, Rollout, ValKwargs,
};
pub use task_reader::{
    Generated, HuggingfaceDatRepo, JsonlDatasetFile, JsonlFile, RandomDummy, TaskCommands, TaskReader,
};
pub use trainer::{
    AdvEstimator, Algorithm, ImportanceMode, ImportanceSampling, LossAggMode, LrScheduler, Optim, Overlong, PolicyLoss,
    Recompute, SingletonGroup, TrainerCommon,
};

/// A whole configuration: the `ajet:` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ajet {
    /// Name of the project, which groups experiments in loggers.
    pub project_name: String,
    /// Name of the experiment; `read_yaml_name` is replaced by a unique name with a timestamp.
    pub experiment_name: String,
    /// Where checkpoints and metrics go. `auto` is `saved_experiments/<experiment_name>`; a directory that does not
    /// contain the experiment's name is a base for it.
    pub experiment_dir: String,
    /// The model.
    pub model: Model,
    /// Lengths and batch size.
    pub data: Data,
    /// Sampling.
    pub rollout: Rollout,
    /// The weight update.
    pub trainer_common: TrainerCommon,
    /// Low-rank adaptation.
    pub lora: Lora,
    /// How LLM calls become training rows.
    pub context_tracker: ContextTracker,
    /// When a batch is full.
    pub swarm_mode_sample_collection_method: CollectionMethod,
    /// Maximum number of finished episodes in a batch.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub swarm_mode_sample_collection_max_cached_episodes: u64,
    /// Seconds after which ROLLING_POST discards the running episodes.
    #[schemars(range(min = 0.0, max = 31_536_000.0))]
    pub swarm_mode_rolling_post_timeout: f64,
    /// Device and precision of the model's computation.
    pub engine: Engine,
    /// Where tasks come from; read by `roll` only.
    pub task_reader: TaskReader,
}

impl Default for Ajet {
    fn default() -> Self {
        Self {
            project_name: "ajet-swarm".into(),
            experiment_name: "read_yaml_name".into(),
            experiment_dir: "auto".into(),
            model: Model::default(),
            data: Data::default(),
            rollout: Rollout::default(),
            trainer_common: TrainerCommon::default(),
            lora: Lora::default(),
            context_tracker: ContextTracker::default(),
            swarm_mode_sample_collection_method: CollectionMethod::default(),
            swarm_mode_sample_collection_max_cached_episodes: 9999,
            swarm_mode_rolling_post_timeout: 1800.0,
            engine: Engine::default(),
            task_reader: TaskReader::default(),
        }
    }
}

/// When a batch is full. B is `data.train_batch_size`, N is `rollout.num_repeat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CollectionMethod {
    /// B·N episodes.
    #[serde(rename = "rollout_until_finish_enough_episodes")]
    RolloutUntilFinishEnoughEpisodes,
    /// B tasks with N episodes.
    #[default]
    #[serde(rename = "rollout_until_finish_enough_tasks")]
    RolloutUntilFinishEnoughTasks,
    /// B tasks with N episodes and rewards that differ.
    #[serde(rename = "rollout_until_finish_enough_non_dummy_tasks")]
    RolloutUntilFinishEnoughNonDummyTasks,
    /// An active client agreed.
    #[serde(rename = "rollout_until_any_client_agree_sync_weight")]
    RolloutUntilAnyClientAgreeSyncWeight,
    /// All active clients agreed.
    #[serde(rename = "rollout_until_all_clients_agree_sync_weight")]
    RolloutUntilAllClientsAgreeSyncWeight,
}

impl CollectionMethod {
    const ALL: [Self; 5] = [
        Self::RolloutUntilFinishEnoughEpisodes,
        Self::RolloutUntilFinishEnoughTasks,
        Self::RolloutUntilFinishEnoughNonDummyTasks,
        Self::RolloutUntilAnyClientAgreeSyncWeight,
        Self::RolloutUntilAllClientsAgreeSyncWeight,
    ];

    /// Name in the configuration and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::RolloutUntilFinishEnoughEpisodes => "rollout_until_finish_enough_episodes",
            Self::RolloutUntilFinishEnoughTasks => "rollout_until_finish_enough_tasks",
            Self::RolloutUntilFinishEnoughNonDummyTasks => "rollout_until_finish_enough_non_dummy_tasks",
            Self::RolloutUntilAnyClientAgreeSyncWeight => "rollout_until_any_client_agree_sync_weight",
            Self::RolloutUntilAllClientsAgreeSyncWeight => "rollout_until_all_clients_agree_sync_weight",
        }
    }

    /// Method of that name; `None` for one that only another server knows.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collection_methods_have_the_same_name_everywhere() {
        for method in CollectionMethod::ALL {
            assert_eq!(serde_json::to_value(method).unwrap(), method.name());
            assert_eq!(CollectionMethod::from_name(method.name()), Some(method));
        }
        assert_eq!(CollectionMethod::from_name(""), None);
    }
}
