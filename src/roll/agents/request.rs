//! What a worker or a URL gets of an episode: a JSON object.

use serde::Serialize;

use super::Access;
use crate::roll::tasks::Task;

/// An episode that someone else runs.
#[derive(Debug, Serialize)]
pub(super) struct EpisodeRequest<'a> {
    /// Names the episode.
    pub episode_uuid: &'a str,
    task: &'a Task,
    /// For OpenAI's clients.
    base_url: &'a str,
    /// For Anthropic's clients.
    anthropic_base_url: &'a str,
    api_key: &'a str,
    model: &'a str,
    /// The same for a task wherever it is run.
    seed: u32,
}

impl<'a> EpisodeRequest<'a> {
    pub fn new(task: &'a Task, access: &'a Access) -> Self {
        Self {
            episode_uuid: &access.episode_uuid,
            task,
            base_url: access.model.base_url(),
            anthropic_base_url: access.anthropic_base_url(),
            api_key: access.model.api_key(),
            model: &access.model_name,
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
