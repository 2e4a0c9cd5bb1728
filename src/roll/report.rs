//! Events of a run: the output of `--json`, one JSON object per line.

use indexmap::IndexMap;
use serde::Serialize;

use super::scores::Scores;
pub use super::summary::{EpisodeReport, Summary};
use crate::protocol::checkpoint::BestCheckpoint;

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

/// A weight update.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The step at which its batch was sampled.
    pub global_step: u64,
    /// Summary of the whole batch if the server reports it, or else of this client's episodes.
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
    /// Of repeated tasks, and of groups of tasks.
    #[serde(flatten)]
    pub scores: Scores,
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
    /// Numbers of failed and dropped episodes, by reason.
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
    use crate::roll::summary::test_episode;
    use serde_json::json;

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
        let own = Step::new(3, IndexMap::new(), &[test_episode(Some(1.0), None)], 2.0);
        assert_eq!((own.summary.reward_mean, own.summary.episodes), (Some(1.0), 1));
    }

    #[test]
    fn events_are_named_as_documented() {
        let line = serde_json::to_value(Event::Episode(&test_episode(None, None))).unwrap();
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
