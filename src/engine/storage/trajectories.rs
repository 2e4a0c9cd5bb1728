//! Conversations of finished episodes as JSON files, for people and other programs
//! (`ajet.trainer_common.save_trajectory_as_json_file`).

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::durable;
use crate::engine::batch::finished::FinishedEpisode;
use crate::protocol::swarm::EpisodeType;
use crate::timeline::{Call, branches};

/// Directory in the experiment directory, with subdirectories for train and eval and for each step.
const DIR_NAME: &str = "trajectories";

/// Writer of trajectories, if enabled.
#[derive(Clone, Debug)]
pub struct Trajectories {
    dir: Option<PathBuf>,
}

impl Trajectories {
    /// Creates the writer of an experiment; writes nothing unless `wanted`.
    pub fn new(experiment_dir: &Path, wanted: bool) -> Self {
        Self {
            dir: wanted.then(|| experiment_dir.join(DIR_NAME)),
        }
    }

    /// Writes `<train or eval>/step_<n>/<episode>.json`. Waits for the disk.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, episode: &FinishedEpisode, calls: &[Call]) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let kind = match episode.episode_type {
            EpisodeType::Train => "train",
            EpisodeType::Eval => "eval",
        };
        let dir = dir.join(kind).join(format!("step_{}", episode.global_step));
        durable::create_dir(&dir)?;
        let file = dir.join(format!("{}.json", file_name(&episode.episode_uuid)));
        durable::write(&file, format!("{:#}\n", trajectory(episode, calls)).as_bytes())
    }
}

/// Returns an episode's outcome and conversations.
fn trajectory(episode: &FinishedEpisode, calls: &[Call]) -> Value {
    json!({
        "episode_uuid": episode.episode_uuid,
        "task_id": episode.task_id,
        "client_uuid": episode.client_uuid,
        "global_step": episode.global_step,
        "reward": episode.reward,
        "is_success": episode.is_success,
        "tag": episode.tag,
        "usage": episode.usage,
        "log_metrics": episode.log_metrics,
        "conversations": conversations(calls),
    })
}

/// Returns the calls' conversations in OpenAI's format, each with the model's last answer.
fn conversations(calls: &[Call]) -> Vec<Value> {
    let told = branches(calls).into_iter().filter_map(|branch| {
        let last = calls.get(*branch.calls.last()?)?;
        Some(json!({"model": last.agent, "tools": last.conversation.tools, "messages": branch.messages(calls)}))
    });
    told.collect()
}

/// Returns a file name for an id from the wire, without slashes or leading dots.
fn file_name(episode_uuid: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    episode_uuid.chars().take(200).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Conversation, TurnEnd};

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    fn call(messages: Vec<Value>, answer: &str) -> Call {
        Call {
            conversation: Conversation {
                messages,
                ..Conversation::default()
            },
            rendered: String::new(),
            prompt: vec![],
            sampled: vec![],
            logprobs: vec![],
            sampled_text: String::new(),
            end: TurnEnd::EndToken,
            answer: message("assistant", answer),
            agent: "m".into(),
            weight_version: 0,
            begun: 0.0,
            ended: 0.0,
        }
    }

    #[test]
    fn a_conversation_is_told_once_with_all_its_turns() {
        let (ask, again) = (message("user", "2 + 2?"), message("user", "and 3 + 3?"));
        let first = call(vec![ask.clone()], "4");
        let second = call(vec![ask.clone(), first.answer.clone(), again], "6");
        let other = call(vec![ask], "5");
        let told = conversations(&[first, second, other]);
        let contents = |at: usize| -> Vec<&str> {
            let messages = told[at]["messages"].as_array().unwrap();
            messages.iter().map(|m| m["content"].as_str().unwrap()).collect()
        };
        assert_eq!(told.len(), 2);
        assert_eq!(contents(0), ["2 + 2?", "4", "and 3 + 3?", "6"]);
        assert_eq!(contents(1), ["2 + 2?", "5"]);
    }

    #[test]
    fn files_are_written_only_where_wanted_and_never_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let episode = FinishedEpisode {
            episode_uuid: "../../e:1".into(),
            global_step: 3,
            reward: 0.5,
            ..FinishedEpisode::default()
        };
        let calls = [call(vec![message("user", "hi")], "ho")];
        Trajectories::new(dir.path(), false).save(&episode, &calls).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        Trajectories::new(dir.path(), true).save(&episode, &calls).unwrap();
        let text = std::fs::read_to_string(dir.path().join("trajectories/train/step_3/______e_1.json")).unwrap();
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&told["reward"], &told["conversations"][0]["messages"][1]["content"]),
            (&json!(0.5), &json!("ho"))
        );
    }
}
