//! One episode: claimed, given to the agent, rewarded, ended; or given up, with a reason.

use std::sync::Arc;
use std::time::Instant;

use super::agents::{Access, Agent, AgentError, Rollout};
use super::error::RollError;
use super::failures::{Failure, Failures};
use super::progress::Progress;
use super::report::EpisodeReport;
use super::rewards::{Reward, RewardError, Score};
use super::tasks::Task;
use crate::client::{BeginEpisode, ClientError, EndOutcome, Episode, SwarmClient};
use crate::protocol::swarm::{EpisodeType, WorkflowOutput};

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self {
            reason: error.reason().into(),
            detail: error.to_string(),
            permanent: error.is_permanent(),
        }
    }
}

impl From<RewardError> for Failure {
    fn from(error: RewardError) -> Self {
        Self {
            reason: error.reason().into(),
            detail: error.to_string(),
            permanent: error.is_permanent(),
        }
    }
}

/// An agent and what its answers are worth.
#[derive(Clone, Debug)]
pub(super) struct Player {
    pub agent: Agent,
    pub reward: Reward,
}

impl Player {
    /// Plays a task on a model: the answer and its worth.
    pub async fn play(&self, task: &Task, access: &Access) -> Result<(Rollout, Score), Failure> {
        let rollout = self.agent.run(task, access).await?;
        let score = self.reward.score(task, &rollout).await?;
        match score.reward.is_finite() {
            true => Ok((rollout, score)),
            false => Err(Failure::passing(
                "bad_reward",
                format!("the reward is {}, which is not a finite number", score.reward),
            )),
        }
    }
}

/// How a job's episodes are run.
#[derive(Debug)]
pub(super) struct Episodes {
    pub swarm: SwarmClient,
    pub player: Player,
    pub model_name: String,
    pub discard_episode_timeout: f64,
    /// Give every episode up at its end, so that nothing is trained.
    pub abort: bool,
    pub progress: Arc<Progress>,
    failures: Failures,
}

impl Episodes {
    pub fn new(swarm: SwarmClient, player: Player, progress: Arc<Progress>, failures: Failures) -> Self {
        Self {
            swarm,
            player,
            model_name: String::new(),
            discard_episode_timeout: BeginEpisode::default().discard_episode_timeout,
            abort: false,
            progress,
            failures,
        }
    }

    /// Claims an episode for a task.
    pub async fn begin(&self, task: &Task, episode_type: EpisodeType) -> Result<Episode, ClientError> {
        // Eval episodes are in no batch, so no other client needs to know their tasks.
        let task_id = match episode_type {
            EpisodeType::Train => task.task_id.clone(),
            EpisodeType::Eval => String::new(),
        };
        let begin = BeginEpisode {
            episode_type,
            discard_episode_timeout: self.discard_episode_timeout,
            task_id,
            throttle: None,
        };
        self.swarm.begin_episode(&begin).await
    }

    /// Runs a claimed episode to its end and tells it.
    ///
    /// # Errors
    /// Going on is in vain: the job is wrong, or too many episodes fail.
    pub async fn run(
        &self,
        episode: Episode,
        task: &Task,
        episode_type: EpisodeType,
    ) -> Result<EpisodeReport, RollError> {
        let claimed = Instant::now();
        let access = Access {
            model: episode.model().clone(),
            model_name: self.model_name.clone(),
            episode_uuid: episode.uuid().to_string(),
        };
        let played = match self.player.play(task, &access).await {
            Ok((rollout, score)) => self.finish(episode, task, rollout, score).await,
            Err(failure) => {
                // The server discards what it cannot be told to; the failure is what matters.
                let _ = episode.abort().await;
                Err(failure)
            }
        };
        let mut report = EpisodeReport::new(access.episode_uuid, &task.task_id, episode_type, claimed.elapsed());
        match played {
            Ok((rollout, score)) => {
                self.failures.ended();
                report.ended(&rollout, &score);
                self.progress.episode(&report, "");
            }
            Err(failure) => {
                report.dropped = Some(failure.reason.to_string());
                self.progress.episode(&report, &failure.detail);
                self.failures.failed(&failure, &task.task_id)?;
            }
        }
        Ok(report)
    }

    async fn finish(
        &self,
        episode: Episode,
        task: &Task,
        rollout: Rollout,
        score: Score,
    ) -> Result<(Rollout, Score), Failure> {
        if self.abort {
            let _ = episode.abort().await;
            return Ok((rollout, score));
        }
        let output = WorkflowOutput {
            reward: score.reward.into(),
            is_success: score.is_success,
            metadata: rollout.metadata.clone(),
            log_metrics: rollout
                .log_metrics
                .iter()
                .chain(&score.log_metrics)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        };
        match episode.end(&task.task_id, output).await {
            Ok(EndOutcome::Accepted) => Ok((rollout, score)),
            Ok(EndOutcome::Dropped(reason)) => Err(Failure::passing(reason.clone(), why_dropped(&reason))),
            Ok(EndOutcome::Lost(detail)) => Err(Failure::passing("episode_lost", detail)),
            Ok(EndOutcome::Expired) => Err(Failure::passing(
                "expired",
                "the episode took longer than eight discard timeouts",
            )),
            Err(error) => Err(Failure::passing("end_refused", error.to_string())),
        }
    }
}

/// Why the server does not train an episode that ended.
fn why_dropped(reason: &str) -> String {
    match reason {
        "no_llm_call" => {
            "the agent never called the model\nhint: it has to call the base URL with the key that it is given \
                          (OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY)"
                .into()
        }
        reason => format!("the server does not train the episode: {reason}"),
    }
}
