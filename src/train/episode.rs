//! What is trained on.

use serde::{Deserialize, Serialize};

use crate::timeline::Row;

/// A finished train episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainEpisode {
    /// The episode.
    pub episode_uuid: String,
    /// Its group.
    pub task_id: String,
    /// Finite.
    pub reward: f64,
    /// Its rows, at least one.
    pub rows: Vec<Row>,
}
