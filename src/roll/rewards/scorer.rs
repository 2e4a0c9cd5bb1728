//! A reward, ready to score, made from a job's configuration.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use indexmap::IndexMap;

use super::answer::{Answer, Score};
use super::command::Command;
use super::compare::Comparison;
use super::error::RewardError;
use super::formula;
use super::json_path::JsonPathMatch;
use super::judge::{GroupJudge, LlmJudge};
use super::regex_match::RegexMatch;
use super::weighted::{self, Weight};
use crate::roll::expression::Expression;
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// Scores answers. Clones share what is expensive: judges, their limits and what they remember.
#[derive(Clone, Debug)]
pub struct Scorer(Arc<Kind>);

#[derive(Debug)]
pub(super) enum Kind {
    FromAgent,
    Compare { how: Comparison, answer: Template },
    Regex(RegexMatch),
    JsonPath(JsonPathMatch),
    Expression(Expression),
    Command(Command),
    LlmJudge(LlmJudge),
    GroupJudge(GroupJudge),
    Weighted { parts: Vec<Part>, success: Option<String> },
}

/// One part of a weighted sum.
#[derive(Debug)]
pub(super) struct Part {
    pub weight: Weight,
    pub scorer: Scorer,
}

impl From<Kind> for Scorer {
    fn from(kind: Kind) -> Self {
        Self(Arc::new(kind))
    }
}

impl Scorer {
    /// Whether answers to one task are compared with each other, so that they have to be scored together.
    pub fn compares(&self) -> bool {
        match &*self.0 {
            Kind::GroupJudge(_) => true,
            Kind::Weighted { parts, .. } => parts.iter().any(|part| part.scorer.compares()),
            _ => false,
        }
    }

    /// Whether it looks at the conversation.
    pub fn reads_messages(&self) -> bool {
        match &*self.0 {
            Kind::Command(_) | Kind::GroupJudge(_) => true,
            Kind::Expression(expression) => expression.mentions("messages"),
            Kind::LlmJudge(judge) => judge.mentions("messages"),
            Kind::Weighted { parts, .. } => parts.iter().any(|part| part.scorer.reads_messages()),
            Kind::FromAgent | Kind::Compare { .. } | Kind::Regex(_) | Kind::JsonPath(_) => false,
        }
    }

    /// Looks at what the reward needs of a task, with an empty answer. Programs and judges are not run.
    ///
    /// # Errors
    /// Fails if a template does not fit the task, or its right answer cannot be compared.
    pub fn verify(&self, task: &Task) -> Result<(), RewardError> {
        let answer = Answer::default();
        let scored = match &*self.0 {
            Kind::Compare { how, answer: wanted } => how.score(&wanted.render(task)?, ""),
            Kind::Regex(regex) => regex.score(task, &answer),
            Kind::JsonPath(path) => path.score(task, &answer),
            Kind::Command(command) => return command.verify(task),
            Kind::Weighted { parts, .. } => return parts.iter().try_for_each(|part| part.scorer.verify(task)),
            Kind::FromAgent | Kind::Expression(_) | Kind::LlmJudge(_) | Kind::GroupJudge(_) => return Ok(()),
        };
        match scored {
            Err(error) if error.is_permanent() => Err(error),
            // It is the answer that is missing.
            _ => Ok(()),
        }
    }

    /// The reward of one answer that is compared with no other.
    ///
    /// # Errors
    /// Fails if it has none; the episode is to be aborted.
    pub async fn score(&self, task: &Task, answer: &Answer) -> Result<Score, RewardError> {
        finite(self.score_alone(task, answer).await)
    }

    /// The rewards of a task's answers, in their order.
    pub async fn score_group(&self, task: &Task, answers: &[Answer]) -> Vec<Result<Score, RewardError>> {
        self.score_together(task, answers)
            .await
            .into_iter()
            .map(finite)
            .collect()
    }

    fn score_alone<'a>(&'a self, task: &'a Task, answer: &'a Answer) -> BoxFuture<'a, Result<Score, RewardError>> {
        async move {
            match &*self.0 {
                Kind::FromAgent => Ok(Score {
                    reward: answer.reward.ok_or(RewardError::Missing)?,
                    is_success: answer.is_success,
                    log_metrics: IndexMap::new(),
                }),
                Kind::Compare { how, answer: wanted } => how.score(&wanted.render(task)?, &answer.output),
                Kind::Regex(regex) => regex.score(task, answer),
                Kind::JsonPath(path) => path.score(task, answer),
                Kind::Expression(expression) => formula::score(expression, task, answer),
                Kind::Command(command) => command.score(task, answer).await,
                Kind::LlmJudge(judge) => judge.score(task, answer).await,
                Kind::GroupJudge(judge) => judge.score_alone(task, answer).await,
                Kind::Weighted { parts, success } => {
                    let scores = join_all(parts.iter().map(|part| part.scorer.score_alone(task, answer))).await;
                    weighted::sum(weights(parts), success.as_deref(), scores)
                }
            }
        }
        .boxed()
    }

    fn score_together<'a>(
        &'a self,
        task: &'a Task,
        answers: &'a [Answer],
    ) -> BoxFuture<'a, Vec<Result<Score, RewardError>>> {
        async move {
            match &*self.0 {
                Kind::GroupJudge(judge) => judge.score_group(task, answers).await,
                Kind::Weighted { parts, success } => {
                    let by_part = join_all(parts.iter().map(|part| part.scorer.score_together(task, answers))).await;
                    let mut by_part: Vec<_> = by_part.into_iter().map(Vec::into_iter).collect();
                    // Each part has a score for each answer.
                    let scores_of_next = |_: &Answer| by_part.iter_mut().filter_map(Iterator::next).collect();
                    let of_answers: Vec<Vec<_>> = answers.iter().map(scores_of_next).collect();
                    let total = |scores| weighted::sum(weights(parts), success.as_deref(), scores);
                    of_answers.into_iter().map(total).collect()
                }
                _ => join_all(answers.iter().map(|answer| self.score_alone(task, answer))).await,
            }
        }
        .boxed()
    }
}

fn weights(parts: &[Part]) -> impl Iterator<Item = &Weight> {
    parts.iter().map(|part| &part.weight)
}

fn finite(score: Result<Score, RewardError>) -> Result<Score, RewardError> {
    score.and_then(|score| match score.reward.is_finite() {
        true => Ok(score),
        false => Err(RewardError::NotFinite(score.reward)),
    })
}
