//! One episode: claimed, given to the agent, rewarded, ended; or given up, with a reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::agents::{Access, Agent, AgentError, Rollout};
use super::error::RollError;
use super::failures::{Failure, Failures};
use super::groups::{Groups, Member};
use super::progress::Progress;
use super::report::EpisodeReport;
use super::rewards::{Answer, RewardError, Score, Scorer};
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
    pub scorer: Scorer,
}

impl Player {
    /// Runs a task on a model and scores the answer, which is compared with no other.
    pub async fn play(&self, task: &Task, access: &Access) -> Result<(Rollout, Score), Failure> {
        let (rollout, answer) = self.answer(task, access).await?;
        let score = self.scorer.score(task, &answer).await?;
        Ok((rollout, score))
    }

    /// Runs a task on a model: what the agent did, and what of it is scored.
    async fn answer(&self, task: &Task, access: &Access) -> Result<(Rollout, Answer), Failure> {
        let rollout = self.agent.run(task, access).await?;
        let answer = Answer {
            output: rollout.output.clone(),
            messages: self.messages(&rollout, access).await?,
            reward: rollout.reward,
            is_success: rollout.is_success,
        };
        Ok((rollout, answer))
    }

    /// The conversation, where the reward looks at it: the server's record, or the agent's own where there is none.
    async fn messages(&self, rollout: &Rollout, access: &Access) -> Result<Option<Vec<Value>>, Failure> {
        if !self.scorer.reads_messages() {
            return Ok(None);
        }
        if access.is_recorded {
            match access.model.conversations().await {
                Ok(told) => return Ok(Some(told.into_main().unwrap_or_default())),
                // A server that does not record.
                Err(ClientError::Refused { status: 404, .. }) => {}
                Err(error) => return Err(Failure::passing("no_conversation", error.to_string())),
            }
        }
        let own = rollout.messages.iter().map(|message| json!(message)).collect();
        Ok((!rollout.messages.is_empty()).then_some(own))
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
    /// Where answers are compared with each other: those of train episodes that are not scored yet.
    pub groups: Option<Arc<Groups>>,
    failures: Failures,
}

/// What an episode is run for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Training, as one of the episodes of a group. The place is given back as soon as the agent has answered, so that
    /// another one can run while the answer waits for its score.
    Train { group: u64, place: OwnedSemaphorePermit },
    /// Evaluation.
    Eval,
}

impl Purpose {
    fn episode_type(&self) -> EpisodeType {
        match self {
            Self::Train { .. } => EpisodeType::Train,
            Self::Eval => EpisodeType::Eval,
        }
    }
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
            groups: None,
            failures,
        }
    }

    /// Waits until an answer begins to wait for others of its group, by which another agent may run.
    pub async fn place_freed(&self) {
        match &self.groups {
            Some(groups) => groups.answered().await,
            None => std::future::pending().await,
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
    pub async fn run(&self, episode: Episode, task: &Task, purpose: Purpose) -> Result<EpisodeReport, RollError> {
        let (claimed, episode_type) = (Instant::now(), purpose.episode_type());
        let access = Access {
            model: episode.model().clone(),
            model_name: self.model_name.clone(),
            episode_uuid: episode.uuid().to_string(),
            is_recorded: true,
        };
        let played = match self.play(task, &access, purpose).await {
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

    async fn play(&self, task: &Task, access: &Access, purpose: Purpose) -> Result<(Rollout, Score), Failure> {
        // Dropped where the agent fails, so that the others of its group do not wait for it.
        let (member, place) = match purpose {
            Purpose::Train { group, place } => {
                (self.groups.as_ref().map(|groups| groups.join(group, task)), Some(place))
            }
            Purpose::Eval => (None, None),
        };
        let (rollout, answer) = self.player.answer(task, access).await?;
        drop(place);
        let score = self.score(task, access, answer, member).await?;
        Ok((rollout, score))
    }

    /// The score of an answer. The server discards idle episodes; while this one waits for its score, it is kept.
    async fn score(
        &self,
        task: &Task,
        access: &Access,
        answer: Answer,
        member: Option<Member>,
    ) -> Result<Score, RewardError> {
        let score = async {
            match member {
                Some(member) => member.score(answer).await,
                None => self.player.scorer.score(task, &answer).await,
            }
        };
        let keep = async {
            let period = Duration::try_from_secs_f64(self.discard_episode_timeout / 3.0).unwrap_or(Duration::MAX);
            loop {
                tokio::time::sleep(period).await;
                // Looking at an episode is activity. Where it is gone already, its end will say so.
                let _ = access.model.conversations().await;
            }
        };
        tokio::select! { score = score => score, never = keep => never }
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
