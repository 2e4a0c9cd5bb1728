//! Episodes that were run, and what they amount to.

use std::time::Duration;

use indexmap::IndexMap;
use serde::Serialize;

use super::agents::Rollout;
use super::joint_episode::Models;
use super::rewards::Score;
use crate::protocol::swarm::EpisodeType;

/// An episode that was run.
#[derive(Clone, Debug, Serialize)]
pub struct EpisodeReport {
    /// The episode.
    pub episode_uuid: String,
    /// Its task.
    pub task_id: String,
    /// Train or eval.
    #[serde(rename = "type")]
    pub episode_type: EpisodeType,
    /// Reward; `None` if it did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why it failed or was dropped, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
    /// Whether the goal was reached, where that is known.
    #[serde(skip)]
    pub is_success: Option<bool>,
    /// Where known.
    pub llm_calls: Option<u64>,
    /// Tokens that the model wrote, where known.
    #[serde(skip)]
    pub response_tokens: Option<u64>,
    /// From claim to end.
    pub seconds: f64,
    /// Models whose servers took it; where it was dropped, before another one failed.
    #[serde(skip)]
    pub(super) taken_by: Models,
}

impl EpisodeReport {
    /// An episode of which nothing but the time it took is known yet.
    pub(super) fn new(episode_uuid: String, task_id: &str, episode_type: EpisodeType, took: Duration) -> Self {
        Self {
            episode_uuid,
            task_id: task_id.to_string(),
            episode_type,
            reward: None,
            dropped: None,
            is_success: None,
            llm_calls: None,
            response_tokens: None,
            seconds: took.as_secs_f64(),
            taken_by: Models::default(),
        }
    }

    /// Fills in what came of it.
    pub(super) fn ended(&mut self, rollout: &Rollout, score: &Score) {
        self.reward = Some(score.reward);
        self.is_success = score.is_success;
        self.llm_calls = rollout.llm_calls;
        self.response_tokens = rollout.response_tokens;
    }
}

/// What episodes amount to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// None of no episode.
    pub reward_mean: Option<f64>,
    /// Unbiased; 0 of a single episode.
    pub reward_std: Option<f64>,
    /// Among the episodes that say.
    pub success_rate: Option<f64>,
    /// How many.
    pub episodes: u64,
    /// Tokens that the model wrote in an episode, where known.
    pub response_length_mean: Option<f64>,
}

impl Summary {
    /// Of the episodes that ended.
    pub fn of(episodes: &[EpisodeReport]) -> Self {
        let rewards: Vec<f64> = episodes.iter().filter_map(|episode| episode.reward).collect();
        let ended = || episodes.iter().filter(|episode| episode.reward.is_some());
        let successes: Vec<f64> = ended()
            .filter_map(|episode| episode.is_success)
            .map(f64::from)
            .collect();
        let lengths: Vec<f64> = ended()
            .filter_map(|episode| episode.response_tokens)
            .map(|n| n as f64)
            .collect();
        Self {
            reward_mean: mean(&rewards),
            reward_std: std(&rewards),
            success_rate: mean(&successes),
            episodes: rewards.len() as u64,
            response_length_mean: mean(&lengths),
        }
    }

    /// Returns the summary of an update from its metrics.
    pub fn of_metrics(metrics: &IndexMap<String, f64>) -> Self {
        let value = |name: &str| metrics.get(name).copied();
        Self {
            reward_mean: value("reward_mean"),
            reward_std: value("reward_std"),
            success_rate: value("success_rate"),
            episodes: value("episodes").unwrap_or(0.0) as u64,
            response_length_mean: value("response_length_mean"),
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn std(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1).max(1) as f64).sqrt())
}

/// A train episode that ended with this reward, or was dropped without one.
#[cfg(test)]
pub(super) fn test_episode(reward: Option<f64>, is_success: Option<bool>) -> EpisodeReport {
    EpisodeReport {
        episode_uuid: "e".into(),
        task_id: "t".into(),
        episode_type: EpisodeType::Train,
        reward,
        dropped: reward.is_none().then(|| "agent_failed".into()),
        is_success,
        llm_calls: Some(1),
        response_tokens: Some(4),
        seconds: 0.5,
        taken_by: Models::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_the_episodes_that_ended() {
        let episodes = [
            test_episode(Some(1.0), Some(true)),
            test_episode(Some(0.0), Some(false)),
            test_episode(Some(0.5), None),
            test_episode(None, None),
        ];
        let summary = Summary::of(&episodes);
        assert_eq!((summary.reward_mean, summary.reward_std), (Some(0.5), Some(0.5)));
        assert_eq!((summary.success_rate, summary.episodes), (Some(0.5), 3));
        assert_eq!(summary.response_length_mean, Some(4.0));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&episodes[..1]).reward_std, Some(0.0));
    }
}
