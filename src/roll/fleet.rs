//! The servers of a run, one for each trained model. Episodes are claimed on all of them together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use rand::Rng;

use super::job::Job;
use super::joint_episode::{JointEpisode, Models, Part};
use super::phases::Phases;
use super::swarms::TrainedModel;
use crate::client::{BeginEpisode, ClientError, Episode, SwarmClient};
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, EpisodeType};

/// How long the claims of one episode may take together. Then they are given up and tried again, since another job may
/// hold what this one waits for and the reverse.
const CLAIMS: Duration = Duration::from_secs(20);

/// Pause before the next try, so that two jobs do not meet again.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct Fleet {
    members: Vec<Member>,
    /// Places of the members in the order of their URLs, the same for all jobs: claims cannot wait for each other in a
    /// circle.
    claim_order: Vec<usize>,
    phases: Mutex<Phases>,
}

/// A trained model and its server.
#[derive(Debug)]
pub(super) struct Member {
    /// Name of the model; empty where the job trains one only.
    pub name: String,
    pub swarm: SwarmClient,
    /// The complete configuration.
    pub document: String,
    /// `ajet.model.path`.
    pub model_path: String,
}

/// What the engines of all servers are at.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointStatus {
    /// Step of the batch that is the same for all, as the first server counts.
    pub global_step: u64,
    /// Whether episodes can be claimed.
    pub is_rolling: bool,
    /// Whether an update is yet to be done or under way.
    pub is_updating: bool,
}

impl Fleet {
    /// The servers of a job. Does not connect yet.
    ///
    /// # Errors
    /// Fails if a URL is wrong.
    pub fn new(job: &Job) -> Result<Self, ClientError> {
        let member = |model: &TrainedModel<'_>| {
            Ok(Member {
                name: model.name.to_owned(),
                swarm: SwarmClient::new(model.swarm_url)?,
                document: model.document(),
                model_path: model.ajet.model.path.clone(),
            })
        };
        let members = job
            .models()
            .iter()
            .map(member)
            .collect::<Result<Vec<_>, ClientError>>()?;
        let mut claim_order: Vec<_> = (0..members.len()).collect();
        claim_order.sort_by_key(|at| members[*at].swarm.url().to_string());
        Ok(Self {
            claim_order,
            phases: Mutex::new(Phases::new(&vec![1; members.len()])),
            members,
        })
    }

    /// The server of the first model, which leads.
    pub fn lead(&self) -> &SwarmClient {
        &self.members[0].swarm
    }

    /// The servers, in the order of the models.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The servers' URLs, for a message.
    pub fn urls(&self) -> String {
        let urls: Vec<_> = self
            .members
            .iter()
            .map(|member| member.swarm.url().to_string())
            .collect();
        urls.join(", ")
    }

    /// Not poisoned: nothing in `Phases` panics.
    pub fn phases(&self) -> MutexGuard<'_, Phases> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines the servers up: their present batches are the same one from now on.
    ///
    /// # Errors
    /// Fails if a server does not answer.
    pub async fn line_up(&self) -> Result<u64, ClientError> {
        let statuses = try_join_all(self.members.iter().map(|member| member.swarm.status())).await?;
        *self.phases() = Phases::new(&steps(&statuses));
        Ok(self.phases().common())
    }

    /// Takes the status of each server. Returns what they are at together, and the members that went back to a
    /// checkpoint, without the first one.
    pub fn see(&self, statuses: &[EngineStatusAnswer]) -> (JointStatus, Vec<&Member>) {
        let mut phases = self.phases();
        let back = phases.see(&steps(statuses));
        let is = |test: fn(EngineStatus) -> bool| statuses.iter().map(move |status| test(status.engine_status));
        let status = JointStatus {
            global_step: phases.common(),
            is_rolling: is(|status| status == EngineStatus::Rolling).all(|is_rolling| is_rolling),
            is_updating: is(is_updating).any(|is_updating| is_updating),
        };
        let back = back.into_iter().filter(|at| *at > 0).map(|at| &self.members[at]);
        (status, back.collect())
    }

    /// Waits until all engines are ROLLING.
    ///
    /// # Errors
    /// As of [`SwarmClient::wait_until_rolling`].
    pub async fn wait_until_rolling(&self) -> Result<(), ClientError> {
        for member in &self.members {
            member.swarm.wait_until_rolling(|_| {}).await?;
        }
        Ok(())
    }

    /// Claims an episode on every server. `taken_by` are the models whose servers have its place in the batch filled.
    ///
    /// # Errors
    /// As of [`SwarmClient::begin_episode`].
    pub async fn begin(&self, begin: &BeginEpisode, taken_by: Models) -> Result<JointEpisode, ClientError> {
        let episodes = match self.members.as_slice() {
            [only] => vec![only.swarm.begin_episode(begin).await?],
            _ => self.claim_all(begin).await?,
        };
        let phases = self.phases();
        let is_eval = begin.episode_type == EpisodeType::Eval;
        let part = |(place, episode): (usize, Episode)| Part {
            name: self.members[place].name.clone(),
            episode,
            counts: is_eval || phases.is_at_common(place) && !taken_by.has(place),
        };
        Ok(JointEpisode {
            parts: episodes.into_iter().enumerate().map(part).collect(),
        })
    }

    /// Claims on every server or on none. What is dropped here is aborted.
    async fn claim_all(&self, begin: &BeginEpisode) -> Result<Vec<Episode>, ClientError> {
        loop {
            self.wait_until_rolling().await?;
            let claims = async {
                let mut episodes = vec![];
                for &place in &self.claim_order {
                    episodes.push((place, self.members[place].swarm.begin_episode(begin).await?));
                }
                Ok(episodes)
            };
            if let Ok(claimed) = tokio::time::timeout(CLAIMS, claims).await {
                let mut episodes: Vec<(usize, Episode)> = claimed?;
                episodes.sort_by_key(|(place, _)| *place);
                return Ok(episodes.into_iter().map(|(_, episode)| episode).collect());
            }
            let pause = PAUSE.mul_f64(rand::rng().random_range(1.0..2.0));
            tokio::time::sleep(pause).await;
        }
    }

    /// Agrees to an update on every server. Returns whether all accepted it.
    ///
    /// # Errors
    /// As of [`SwarmClient::agree_sync_weight`].
    pub async fn agree(&self) -> Result<bool, ClientError> {
        let agreed = try_join_all(self.members.iter().map(|member| member.swarm.agree_sync_weight())).await?;
        Ok(agreed.into_iter().all(|is_accepted| is_accepted))
    }

    /// Waits for the aborts of all dropped episodes.
    pub async fn settle(&self) {
        join_all(self.members.iter().map(|member| member.swarm.settle())).await;
    }
}

fn steps(statuses: &[EngineStatusAnswer]) -> Vec<u64> {
    statuses.iter().map(|status| status.global_step.max(1)).collect()
}

/// Whether a batch is complete and its update is yet to be done or under way.
fn is_updating(status: EngineStatus) -> bool {
    matches!(
        status,
        EngineStatus::RollingPost | EngineStatus::WeightSyncing | EngineStatus::WeightExporting
    )
}
