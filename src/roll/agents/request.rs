//! What a worker or a URL gets of an episode: a JSON object.

use indexmap::IndexMap;
use serde::Serialize;

use super::{Access, Endpoint};
use crate::roll::tasks::Task;

/// An episode that someone else runs.
#[derive(Debug, Serialize)]
pub(super) struct EpisodeRequest<'a> {
    /// Names the episode.
    pub episode_uuid: &'a str,
    task: &'a Task,
    #[serde(flatten)]
    endpoint: Endpoint<'a>,
    /// Of a job with several models: each of them by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    models: IndexMap<&'a str, Endpoint<'a>>,
    /// The same for a task wherever it is run.
    seed: u32,
}

impl<'a> EpisodeRequest<'a> {
    pub fn new(task: &'a Task, access: &'a Access) -> Self {
        Self {
            episode_uuid: &access.episode_uuid,
            task,
            endpoint: Endpoint::of(access),
            models: access.endpoints(),
            seed: task.seed(),
        }
    }

    /// The object on one line.
    ///
    /// # Errors
    /// None in practice: every part of it is text, a number or JSON.
    pub fn line(&self) -> std::io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}
