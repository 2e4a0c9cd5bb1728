//! Training input.

use serde::{Deserialize, Serialize};

use crate::timeline::Row;

/// A finished train episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainEpisode {
    /// Id of the episode.
    pub episode_uuid: String,
    /// Id of its task, which is its group.
    pub task_id: String,
    /// Finite reward.
    pub reward: f64,
    /// Rows, at least one.
    pub rows: Vec<Row>,
}
