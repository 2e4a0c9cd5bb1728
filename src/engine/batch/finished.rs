//! Finished episodes as the engine stores, trains on and measures them.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::engine::PooledEpisode;
use crate::protocol::swarm::EpisodeType;
use crate::timeline::Row;

/// A finished episode with at least one LLM call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinishedEpisode {
    /// Train or eval.
    pub episode_type: EpisodeType,
    /// Step of its batch; for an eval episode, the step at which it was claimed.
    pub global_step: u64,
    /// Id of the episode.
    pub episode_uuid: String,
    /// Id of its task, which is its group.
    pub task_id: String,
    /// Id of its client.
    pub client_uuid: String,
    /// Finite reward. Serialised as text, since JSON parsers may change the last bit, and a resumed update must not
    /// differ.
    #[serde(with = "exact_float")]
    pub reward: f64,
    /// Whether the agent reached its goal, if known.
    #[serde(default)]
    pub is_success: Option<bool>,
    /// `metadata.tag` of the client, if any; rewards are also averaged by tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// Training rows; empty for an eval episode.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Counters of its LLM calls.
    #[serde(default)]
    pub usage: EpisodeUsage,
    /// Metrics of its client, averaged into those of the step.
    #[serde(default)]
    pub log_metrics: IndexMap<String, Value>,
}

impl FinishedEpisode {
    /// Returns the episode's entry in the pool, with the time of its entry.
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
            .map_err(|_| D::Error::custom(format!("expected a number, got `{text}`")))
    }
}

/// Counters of an episode's LLM calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeUsage {
    /// Answered LLM calls.
    #[serde(default)]
    pub llm_calls: u64,
    /// Prompt tokens of all calls.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Sampled tokens.
    #[serde(default)]
    pub completion_tokens: u64,
    /// All other counters by metric name, such as `row_cut` or `timeline_splits/edited`.
    #[serde(default)]
    pub counters: IndexMap<String, u64>,
}
