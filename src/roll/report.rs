//! What a run tells: the events of `--json`, one JSON object a line.

use std::time::Duration;

use indexmap::IndexMap;
use serde::Serialize;

use super::agents::Rollout;
use super::joint_episode::Models;
use super::rewards::Score;
use crate::protocol::checkpoint::BestCheckpoint;
use crate::protocol::swarm::EpisodeType;

/// One line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// The first line.
    Start {
        /// The job's file.
        job: &'a str,
        /// The server, without its token.
        server: &'a str,
        /// `ajet.model.path`, or the model that the server trains.
        model: &'a str,
    },
    /// A weight update.
    Step(&'a Step),
    /// An evaluation.
    Eval(&'a Evaluation),
    /// An episode.
    Episode(&'a EpisodeReport),
    /// The last line.
    End(&'a End),
}

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
    /// Where it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why it came to nothing, where it did.
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
    /// Where it was dropped: models whose servers had taken it before another one failed.
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

    /// Of an update, as its metrics tell.
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

/// A weight update.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The step at which its batch was sampled.
    pub global_step: u64,
    /// Of the whole batch where the server tells, else of this client's episodes.
    #[serde(flatten)]
    pub summary: Summary,
    /// Since the update before, or since the run began.
    pub seconds: f64,
    /// What the server measured, by the names of `metrics.jsonl`; those of the summary aside.
    #[serde(flatten)]
    pub metrics: IndexMap<String, f64>,
}

impl Step {
    /// An update of which the server told `metrics`, empty from a Python server, and this client ran `episodes`.
    pub fn new(global_step: u64, mut metrics: IndexMap<String, f64>, episodes: &[EpisodeReport], seconds: f64) -> Self {
        let summary = match metrics.contains_key("episodes") {
            true => Summary::of_metrics(&metrics),
            false => Summary::of(episodes),
        };
        const TOLD: [&str; 7] = [
            "global_step",
            "reward_mean",
            "reward_std",
            "success_rate",
            "episodes",
            "response_length_mean",
            "seconds",
        ];
        metrics.retain(|name, _| !TOLD.contains(&name.as_str()));
        Self {
            global_step,
            summary,
            seconds,
            metrics,
        }
    }
}

/// An evaluation.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// The step whose weights were evaluated.
    pub global_step: u64,
    /// Of the episodes that ended.
    #[serde(flatten)]
    pub summary: Summary,
    /// What it took.
    pub seconds: f64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The job is done.
    Done,
    /// The user stopped it.
    Interrupted,
}

/// The end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct End {
    /// How.
    pub outcome: Outcome,
    /// Weight updates that this run saw.
    pub steps: u64,
    /// Mean reward before the first update that this run saw.
    pub eval_before: Option<Summary>,
    /// Mean reward at the end.
    pub eval_after: Option<Summary>,
    /// Where the model is, on the server's machine.
    pub checkpoint: Option<String>,
    /// The best checkpoint of the experiment, where the server is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
    /// The same of the other models of `roll.swarms`, by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub other_checkpoints: IndexMap<String, String>,
    /// Episodes that came to nothing, by reason.
    pub dropped: IndexMap<String, u64>,
}

impl End {
    /// Of a run that has seen nothing yet.
    pub(super) fn new() -> Self {
        Self {
            outcome: Outcome::Done,
            steps: 0,
            eval_before: None,
            eval_after: None,
            checkpoint: None,
            best: None,
            other_checkpoints: IndexMap::new(),
            dropped: IndexMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn episode(reward: Option<f64>, is_success: Option<bool>) -> EpisodeReport {
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

    #[test]
    fn a_summary_is_of_the_episodes_that_ended() {
        let episodes = [
            episode(Some(1.0), Some(true)),
            episode(Some(0.0), Some(false)),
            episode(Some(0.5), None),
            episode(None, None),
        ];
        let summary = Summary::of(&episodes);
        assert_eq!((summary.reward_mean, summary.reward_std), (Some(0.5), Some(0.5)));
        assert_eq!((summary.success_rate, summary.episodes), (Some(0.5), 3));
        assert_eq!(summary.response_length_mean, Some(4.0));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&episodes[..1]).reward_std, Some(0.0));
    }

    #[test]
    fn a_step_is_told_by_the_server_or_else_by_our_own_episodes() {
        let metrics: IndexMap<String, f64> = [
            ("reward_mean", 0.25),
            ("episodes", 8.0),
            ("loss", 0.1),
            ("global_step", 3.0),
        ]
        .map(|(n, v)| (n.into(), v))
        .into();
        let told = Step::new(3, metrics, &[], 2.0);
        let line = serde_json::to_value(Event::Step(&told)).unwrap();
        assert_eq!(
            line,
            json!({
                "event": "step", "global_step": 3, "reward_mean": 0.25, "reward_std": null, "success_rate": null,
                "episodes": 8, "response_length_mean": null, "seconds": 2.0, "loss": 0.1,
            })
        );
        let own = Step::new(3, IndexMap::new(), &[episode(Some(1.0), None)], 2.0);
        assert_eq!((own.summary.reward_mean, own.summary.episodes), (Some(1.0), 1));
    }

    #[test]
    fn events_are_named_as_documented() {
        let line = serde_json::to_value(Event::Episode(&episode(None, None))).unwrap();
        assert_eq!(
            line,
            json!({
                "event": "episode", "episode_uuid": "e", "task_id": "t", "type": "train", "dropped": "agent_failed",
                "llm_calls": 1, "seconds": 0.5,
            })
        );
        let end = End {
            outcome: Outcome::Done,
            steps: 2,
            eval_before: None,
            eval_after: Some(Summary::default()),
            checkpoint: Some("/x".into()),
            best: None,
            other_checkpoints: IndexMap::new(),
            dropped: IndexMap::new(),
        };
        let line = serde_json::to_value(Event::End(&end)).unwrap();
        assert_eq!(
            (&line["outcome"], &line["steps"], &line["checkpoint"]),
            (&json!("done"), &json!(2), &json!("/x"))
        );
    }
}
