//! One episode: claimed, given to the agent, rewarded, ended; or given up, with a reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::agents::{Access, Agent, AgentError, Rollout};
use super::error::RollError;
use super::progress::Progress;
use super::report::EpisodeReport;
use super::rewards::{Reward, RewardError, Score};
use super::tasks::Task;
use crate::client::{BeginEpisode, ClientError, EndOutcome, Episode, SwarmClient};
use crate::protocol::swarm::{EpisodeType, WorkflowOutput};

/// Why an episode came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    /// The name under which it is counted.
    pub reason: &'static str,
    /// The sentence.
    pub detail: String,
    /// It would come to nothing every time.
    pub permanent: bool,
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self {
            reason: error.reason(),
            detail: error.to_string(),
            permanent: error.is_permanent(),
        }
    }
}

impl From<RewardError> for Failure {
    fn from(error: RewardError) -> Self {
        Self {
            reason: error.reason(),
            detail: error.to_string(),
            permanent: error.is_permanent(),
        }
    }
}

impl Failure {
    fn passing(reason: &'static str, detail: impl Into<String>) -> Self {
        let (detail, permanent) = (detail.into(), false);
        Self {
            reason,
            detail,
            permanent,
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
                "no_reward",
                format!("the reward is {}, no finite number", score.reward),
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
    /// Episodes in a row that came to nothing.
    failures: AtomicUsize,
    /// That many are too many.
    most_failures: usize,
}

impl Episodes {
    pub fn new(swarm: SwarmClient, player: Player, progress: Arc<Progress>, most_failures: usize) -> Self {
        Self {
            swarm,
            player,
            model_name: String::new(),
            discard_episode_timeout: BeginEpisode::default().discard_episode_timeout,
            abort: false,
            progress,
            failures: AtomicUsize::new(0),
            most_failures,
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
    /// Going on is in vain: the job is wrong, or nothing ever comes to an end.
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
                self.failures.store(0, Ordering::Relaxed);
                report.ended(&rollout, &score);
                self.progress.episode(&report, "");
                Ok(report)
            }
            Err(failure) => {
                report.dropped = Some(failure.reason.into());
                self.progress.episode(&report, &failure.detail);
                let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
                match failure {
                    Failure {
                        permanent: true,
                        detail,
                        ..
                    } => Err(RollError::Job {
                        task_id: task.task_id.clone(),
                        detail,
                    }),
                    Failure { detail, .. } if failures >= self.most_failures => {
                        Err(RollError::NothingEnds { failures, detail })
                    }
                    _ => Ok(report),
                }
            }
        }
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
            Ok(EndOutcome::Lost(detail)) => Err(Failure::passing("episode_lost", detail)),
            Ok(EndOutcome::Expired) => Err(Failure::passing(
                "expired",
                "the episode took longer than eight discard timeouts",
            )),
            Err(error) => Err(Failure::passing("end_refused", error.to_string())),
        }
    }
}
