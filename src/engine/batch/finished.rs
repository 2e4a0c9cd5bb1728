//! A finished episode as the engine keeps it: what is journaled, pooled, trained on and measured.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::engine::PooledEpisode;
use crate::protocol::swarm::EpisodeType;
use crate::timeline::Row;

/// An episode that ended with at least one LLM call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinishedEpisode {
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// The step whose batch it belongs to; of an eval episode the step at which it was claimed.
    pub global_step: u64,
    /// The episode.
    pub episode_uuid: String,
    /// Its task, which is its group.
    pub task_id: String,
    /// Who ran it.
    pub client_uuid: String,
    /// Finite. Written as text, since JSON parsers may be off by a bit, and a resumed update must not be.
    #[serde(with = "exact_float")]
    pub reward: f64,
    /// Whether the agent reached its goal, where that is known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// `metadata.tag` where the client sent one; rewards are also averaged by it.
    #[serde(default)]
    pub tag: Option<String>,
    /// Training rows; none of an eval episode.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// What was counted while it ran.
    #[serde(default)]
    pub usage: EpisodeUsage,
    /// What its client wants averaged into the step's metrics.
    #[serde(default)]
    pub log_metrics: IndexMap<String, Value>,
}

impl FinishedEpisode {
    /// Its entry in the pool, which says when it entered.
    pub fn pooled(&self) -> PooledEpisode {
        PooledEpisode {
            entered: 0,
            episode_uuid: self.episode_uuid.clone(),
            task_id: self.task_id.clone(),
            client_uuid: self.client_uuid.clone(),
            reward: self.reward,
        }
    }
}

mod exact_float {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|_| D::Error::custom(format!("`{text}` is not a number")))
    }
}

/// What was counted while an episode ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeUsage {
    /// LLM calls that were answered.
    #[serde(default)]
    pub llm_calls: u64,
    /// Tokens fed to the model, over all calls.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Of those, tokens that the prefix cache gave.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Tokens sampled.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Everything else that is counted, by its metric's name, such as `row_cut` or `timeline_splits/edited`.
    #[serde(default)]
    pub counters: IndexMap<String, u64>,
}
