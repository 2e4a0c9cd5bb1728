//! What an answer is worth to each trained model of an episode.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::agents::Rollout;
use super::groups::{Groups, Member};
use super::job::Job;
use super::rewards::{Answer, RewardError, Score, Scorer, SetupError};
use super::tasks::Task;

/// The rewards of a job: the one that models share, and those that models have of their own.
#[derive(Clone, Debug)]
pub(super) struct Scoring {
    /// Name and reward of each model, the latter as a place in `rewards`.
    models: Vec<(String, usize)>,
    rewards: Vec<Reward>,
}

#[derive(Clone, Debug)]
struct Reward {
    scorer: Scorer,
    /// Where answers are compared with each other: those of train episodes that are not scored yet.
    groups: Option<Arc<Groups>>,
}

/// The groups that a train episode belongs to, one for each reward that compares. Dropped, the episode failed.
#[derive(Debug, Default)]
pub(super) struct Memberships(Vec<Option<Member>>);

/// Models for which an answer is scored once.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// Their places; the first one's conversation is what the reward sees.
    pub models: Vec<usize>,
    /// What the agent itself says that its answer is worth to them.
    pub agents_reward: Option<f64>,
    reward: usize,
}

impl Scoring {
    /// The rewards of a job whose groups have `repeats` episodes; without a number, no answers are compared.
    ///
    /// # Errors
    /// Fails if a judge's key is not in the environment.
    pub fn new(job: &Job, repeats: Option<u64>) -> Result<Self, SetupError> {
        let reward = |scorer: Scorer| Reward {
            groups: repeats
                .filter(|_| scorer.compares())
                .map(|repeats| Groups::new(scorer.clone(), usize::try_from(repeats).unwrap_or(usize::MAX))),
            scorer,
        };
        let (mut models, mut rewards, mut shared) = (vec![], vec![], None);
        for model in job.models() {
            let own = job.roll.swarms.get(model.name).and_then(|swarm| swarm.reward.as_ref());
            let place = match (own, shared) {
                (None, Some(shared)) => shared,
                (Some(own), _) => {
                    rewards.push(reward(own.scorer(&format!("roll.swarms.{}.reward", model.name))?));
                    rewards.len() - 1
                }
                (None, None) => {
                    rewards.push(reward(job.roll.scorer()?));
                    shared = Some(rewards.len() - 1);
                    rewards.len() - 1
                }
            };
            models.push((model.name.to_owned(), place));
        }
        Ok(Self { models, rewards })
    }

    /// Enters a train episode into the groups of its task.
    pub fn join(&self, group: u64, task: &Task) -> Memberships {
        let join = |reward: &Reward| reward.groups.as_ref().map(|groups| groups.join(group, task));
        Memberships(self.rewards.iter().map(join).collect())
    }

    /// Waits until an answer begins to wait for others of its group.
    pub async fn answered(&self) {
        let groups = self.rewards.iter().filter_map(|reward| reward.groups.as_ref());
        let mut waits: Vec<_> = groups.map(|groups| Box::pin(groups.answered())).collect();
        match waits.len() {
            0 => std::future::pending().await,
            1 => waits.remove(0).await,
            _ => drop(futures_util::future::select_all(waits).await),
        }
    }

    /// The scorings of an answer: models of one reward share one, unless the agent rewards them differently. Answers
    /// that are compared are compared once.
    pub fn parts(&self, rollout: &Rollout) -> Vec<Part> {
        let mut parts: Vec<Part> = vec![];
        for (place, (name, reward)) in self.models.iter().enumerate() {
            let agents_reward = rollout.rewards.get(name).copied().or(rollout.reward);
            let compares = self.rewards[*reward].scorer.compares();
            let is_same =
                |part: &&mut Part| part.reward == *reward && (compares || part.agents_reward == agents_reward);
            match parts.iter_mut().find(is_same) {
                Some(part) => part.models.push(place),
                None => parts.push(Part {
                    models: vec![place],
                    agents_reward,
                    reward: *reward,
                }),
            }
        }
        parts
    }

    /// A model that the agent gives a reward for and that the job does not train.
    pub fn unknown_model<'a>(&self, rollout: &'a Rollout) -> Option<&'a str> {
        let is_known = |name: &str| self.models.iter().any(|(model, _)| model == name);
        let mut names = rollout.rewards.keys().map(String::as_str);
        names.find(|name| !is_known(name))
    }

    /// Whether the reward of a part looks at the conversation.
    pub fn reads_messages(&self, part: &Part) -> bool {
        self.rewards[part.reward].scorer.reads_messages()
    }

    /// The score of each model, in their order. Waits for the others of a group where answers are compared.
    ///
    /// # Errors
    /// Fails if one of the answers has no reward.
    pub async fn scores(
        &self,
        task: &Task,
        answers: Vec<(Part, Answer)>,
        memberships: Memberships,
    ) -> Result<Vec<Score>, RewardError> {
        let mut members = memberships.0;
        members.resize_with(self.rewards.len(), || None);
        let mut scorings = vec![];
        for (part, answer) in answers {
            let member = members[part.reward].take();
            let scorer = &self.rewards[part.reward].scorer;
            scorings.push(async move {
                let score = match member {
                    Some(member) => member.score(answer).await,
                    None => scorer.score(task, &answer).await,
                };
                score.map(|score| (part.models, score))
            });
        }
        let mut scores = vec![Score::default(); self.models.len()];
        for (models, score) in try_join_all(scorings).await? {
            for model in models {
                scores[model] = score.clone();
            }
        }
        Ok(scores)
    }
}
