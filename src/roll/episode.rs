//! One episode: claim, agent, reward and end, or abort with a reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::agents::{Access, Agent, AgentError, ModelAccess, Rollout};
use super::error::RollError;
use super::failures::{Failure, Failures};
use super::fleet::Fleet;
use super::job::Job;
use super::joint_episode::{JointEpisode, Models, NotEnded};
use super::progress::Progress;
use super::report::EpisodeReport;
use super::rewards::{Answer, RewardError, Score, SetupError};
use super::scoring::{Memberships, Part, Scoring};
use super::tasks::Task;
use crate::client::{BeginEpisode, ClientError, ModelApi};
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

/// An agent and the reward of its answers.
#[derive(Clone, Debug)]
pub(super) struct Player {
    pub agent: Agent,
    pub scoring: Scoring,
}

impl Player {
    /// The agent of a job, and its rewards, which compare the answers of groups of `repeats` episodes, if a number is
    /// given.
    ///
    /// # Errors
    /// Fails if a judge's key is not in the environment.
    pub fn new(job: &Job, repeats: Option<u64>) -> Result<Self, SetupError> {
        Ok(Self {
            agent: job.roll.agent.clone(),
            scoring: Scoring::new(job, repeats)?,
        })
    }

    /// Runs a task on the models and scores the answer, which is compared with no other. Returns a score for each
    /// model.
    pub async fn play(&self, task: &Task, access: &Access) -> Result<(Rollout, Vec<Score>), Failure> {
        let (rollout, answers) = self.answer(task, access).await?;
        let scores = self.scoring.scores(task, answers, Memberships::default()).await?;
        Ok((rollout, scores))
    }

    /// Runs a task on the models: what the agent did, and what of it is scored.
    async fn answer(&self, task: &Task, access: &Access) -> Result<(Rollout, Vec<(Part, Answer)>), Failure> {
        let rollout = self.agent.run(task, access).await?;
        if let Some(unknown) = self.scoring.unknown_model(&rollout) {
            let models: Vec<_> = access.models.keys().map(String::as_str).collect();
            let models = models.join(", ");
            let detail =
                format!("the agent's answer has a reward for {unknown:?}, which is no model of roll.swarms ({models})");
            return Err(Failure::passing("bad_reward", detail));
        }
        let mut answers = vec![];
        for part in self.scoring.parts(&rollout) {
            let answer = Answer {
                output: rollout.output.clone(),
                messages: self.messages(&rollout, access, &part).await?,
                reward: part.agents_reward,
                is_success: rollout.is_success,
            };
            answers.push((part, answer));
        }
        Ok((rollout, answers))
    }

    /// Returns the conversation if the reward uses it: the server's record, or the agent's own if there is none.
    async fn messages(&self, rollout: &Rollout, access: &Access, part: &Part) -> Result<Option<Vec<Value>>, Failure> {
        if !self.scoring.reads_messages(part) {
            return Ok(None);
        }
        if access.is_recorded {
            let model = part.models.first().and_then(|place| access.models.get_index(*place));
            let model = model.map_or(&access.model, |(_, model)| &model.api);
            match model.conversations().await {
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

/// Settings of a job's episodes.
#[derive(Debug)]
pub(super) struct Episodes {
    pub fleet: Arc<Fleet>,
    pub player: Player,
    /// Of each model.
    pub model_names: Vec<String>,
    pub discard_episode_timeout: f64,
    /// Whether to abort all episodes at their end, so that nothing is trained.
    pub abort: bool,
    pub progress: Arc<Progress>,
    pub failures: Failures,
}

/// Purpose of an episode.
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
    /// Waits until an answer begins to wait for others of its group, by which another agent may run.
    pub async fn place_freed(&self) {
        self.player.scoring.answered().await;
    }

    /// Claims an episode for a task. `taken_by` are the models whose servers have its place in the batch filled
    /// already.
    pub async fn begin(
        &self,
        task: &Task,
        episode_type: EpisodeType,
        taken_by: Models,
    ) -> Result<JointEpisode, ClientError> {
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
        self.fleet.begin(&begin, taken_by).await
    }

    /// Runs a claimed episode to its end and reports it.
    ///
    /// # Errors
    /// Fails if the job is wrong, or too many episodes fail.
    pub async fn run(&self, episode: JointEpisode, task: &Task, purpose: Purpose) -> Result<EpisodeReport, RollError> {
        let (claimed, episode_type) = (Instant::now(), purpose.episode_type());
        let access = access(&episode, &self.model_names);
        let played = match self.play(task, &access, purpose).await {
            Ok((rollout, scores)) => self.finish(episode, task, rollout, scores).await,
            Err(failure) => {
                episode.abort().await;
                Err(failure.into())
            }
        };
        let mut report = EpisodeReport::new(access.episode_uuid, &task.task_id, episode_type, claimed.elapsed());
        match played {
            Ok((rollout, score, taken_by)) => {
                self.failures.ended();
                report.taken_by = taken_by;
                report.ended(&rollout, &score);
                self.progress.episode(&report, "");
            }
            Err(NotEnded { failure, taken_by }) => {
                report.dropped = Some(failure.reason.to_string());
                report.taken_by = taken_by;
                self.progress.episode(&report, &failure.detail);
                self.failures.failed(&failure, &task.task_id)?;
            }
        }
        Ok(report)
    }

    async fn play(&self, task: &Task, access: &Access, purpose: Purpose) -> Result<(Rollout, Vec<Score>), Failure> {
        // Dropped where the agent fails, so that the others of its groups do not wait for it.
        let (memberships, place) = match purpose {
            Purpose::Train { group, place } => (self.player.scoring.join(group, task), Some(place)),
            Purpose::Eval => (Memberships::default(), None),
        };
        let play = async {
            let (rollout, answers) = self.player.answer(task, access).await?;
            drop(place);
            let scores = self.player.scoring.scores(task, answers, memberships);
            let scores = self.kept(scores, access.apis()).await?;
            Ok((rollout, scores))
        };
        // While one model is called, the others are idle.
        let others = access.apis().filter(|_| access.models.len() > 1);
        self.kept(play, others).await
    }

    /// The result of `work`. The server discards idle episodes; those that these APIs belong to are kept meanwhile.
    async fn kept<T>(&self, work: impl Future<Output = T>, models: impl Iterator<Item = &ModelApi>) -> T {
        let models: Vec<_> = models.collect();
        let keep = async {
            let period = Duration::try_from_secs_f64(self.discard_episode_timeout / 3.0).unwrap_or(Duration::MAX);
            loop {
                tokio::time::sleep(period).await;
                for model in &models {
                    // Looking at an episode is activity. Where it is gone already, its end will say so.
                    let _ = model.conversations().await;
                }
            }
        };
        tokio::select! { done = work => done, never = keep => never }
    }

    /// Ends an episode. Returns the first model's score, and the models whose servers took it.
    async fn finish(
        &self,
        episode: JointEpisode,
        task: &Task,
        rollout: Rollout,
        scores: Vec<Score>,
    ) -> Result<(Rollout, Score, Models), NotEnded> {
        let outputs = scores.iter().map(|score| output(&rollout, score)).collect();
        let taken_by = match self.abort {
            true => {
                episode.abort().await;
                Models::default()
            }
            false => episode.end(&task.task_id, outputs).await?,
        };
        Ok((rollout, scores.into_iter().next().unwrap_or_default(), taken_by))
    }
}

/// What a server gets at an episode's end.
fn output(rollout: &Rollout, score: &Score) -> WorkflowOutput {
    WorkflowOutput {
        reward: score.reward.into(),
        is_success: score.is_success,
        metadata: rollout.metadata.clone(),
        log_metrics: rollout
            .log_metrics
            .iter()
            .chain(&score.log_metrics)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    }
}

/// What an agent gets of a claimed episode; `model_names` are those to ask for.
pub(super) fn access(episode: &JointEpisode, model_names: &[String]) -> Access {
    let models = episode.parts.iter().zip(model_names).map(|(part, model_name)| {
        let access = ModelAccess {
            api: part.episode.model().clone(),
            model_name: model_name.clone(),
        };
        (part.name.clone(), access)
    });
    let mut models: IndexMap<_, _> = models.collect();
    // There is at least one.
    let first = &episode.parts[0];
    Access {
        model: first.episode.model().clone(),
        model_name: model_names.first().cloned().unwrap_or_default(),
        episode_uuid: first.episode.uuid().to_string(),
        is_recorded: true,
        max_completion_tokens: None,
        models: match first.name.is_empty() {
            true => IndexMap::new(),
            false => std::mem::take(&mut models),
        },
    }
}
