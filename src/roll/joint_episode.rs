//! An episode that is claimed on the server of each trained model. It ends on all of them or on none.

use super::failures::{Failure, LOST};
use crate::client::{ClientError, EndOutcome, Episode};
use crate::protocol::swarm::WorkflowOutput;

/// A set of models, by their places in the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Models(u64);

impl Models {
    /// Whether the model at this place is in the set.
    pub fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// The set with another model.
    pub fn with(self, place: usize) -> Self {
        Self(self.0 | 1 << place)
    }

    /// The set without this model.
    pub fn without(self, place: usize) -> Self {
        Self(self.0 & !(1 << place))
    }

    /// The models of both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The episode on one server.
#[derive(Debug)]
pub(super) struct Part {
    /// Name of the model; empty where the job trains one only.
    pub name: String,
    pub episode: Episode,
    /// Whether it is trained on. It is not where the server has this episode's place in the batch filled already.
    pub counts: bool,
}

/// See the module. Dropped before its end, it is aborted everywhere.
#[derive(Debug)]
pub(super) struct JointEpisode {
    /// In the order of the models; at least one.
    pub parts: Vec<Part>,
}

/// An episode that did not end as it should.
#[derive(Debug)]
pub(super) struct NotEnded {
    pub failure: Failure,
    /// Models whose servers had taken it when another one failed.
    pub taken_by: Models,
}

impl From<Failure> for NotEnded {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            taken_by: Models::default(),
        }
    }
}

impl JointEpisode {
    /// The episode's ids, by which each server knows it. The first one names it.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.episode.uuid())
    }

    /// Aborts it everywhere.
    pub async fn abort(self) {
        for part in self.parts {
            // The server discards the episode after its timeout.
            let _ = part.episode.abort().await;
        }
    }

    /// Ends it with an output for each model. Returns the models whose servers took it: those where it counts.
    ///
    /// # Errors
    /// Fails if a server cannot take it. It is then aborted on all servers, or on those that had not taken it yet where
    /// one fails although it was ready.
    pub async fn end(self, task_id: &str, outputs: Vec<WorkflowOutput>) -> Result<Models, NotEnded> {
        if self.parts.len() > 1 {
            for part in self.parts.iter().filter(|part| part.counts) {
                part.is_ready().await?;
            }
        }
        let mut taken_by = Models::default();
        for (place, (part, output)) in self.parts.into_iter().zip(outputs).enumerate() {
            if !part.counts {
                let _ = part.episode.abort().await;
                continue;
            }
            let ended = end_part(part, task_id, output).await;
            ended.map_err(|failure| NotEnded { failure, taken_by })?;
            taken_by = taken_by.with(place);
        }
        Ok(taken_by)
    }
}

impl Part {
    /// Whether its server still has the episode, and the model was called.
    async fn is_ready(&self) -> Result<(), Failure> {
        match self.episode.model().conversations().await {
            Ok(said) if said.llm_calls > 0 => Ok(()),
            Ok(_) => Err(Failure::passing("no_llm_call", why_dropped("no_llm_call", &self.name))),
            // A server that does not record, or one that has lost the episode.
            Err(ClientError::Refused { .. }) => match self.episode.can_continue().await {
                Ok(true) => Ok(()),
                Ok(false) => Err(self.lost("the server has discarded the episode")),
                Err(error) => Err(self.lost(&error.to_string())),
            },
            Err(error) => Err(self.lost(&error.to_string())),
        }
    }

    fn lost(&self, why: &str) -> Failure {
        Failure::passing(LOST, format!("model {}: {why}", self.name))
    }
}

async fn end_part(part: Part, task_id: &str, output: WorkflowOutput) -> Result<(), Failure> {
    let name = part.name;
    match part.episode.end(task_id, output).await {
        Ok(EndOutcome::Accepted) => Ok(()),
        Ok(EndOutcome::Dropped(reason)) => Err(Failure::passing(reason.clone(), why_dropped(&reason, &name))),
        Ok(EndOutcome::Lost(detail)) => Err(Failure::passing(LOST, detail)),
        Ok(EndOutcome::Expired) => Err(Failure::passing(
            "expired",
            "the episode took longer than eight discard timeouts",
        )),
        Err(error) if error.is_unreachable() => Err(Failure::passing(LOST, error.to_string())),
        Err(error) => Err(Failure::passing("end_refused", error.to_string())),
    }
}

/// Why the server does not train an episode that ended.
fn why_dropped(reason: &str, model: &str) -> String {
    match (reason, model) {
        ("no_llm_call", "") => {
            "the agent never called the model\nhint: it has to call the base URL with the key that it is given \
             (OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY)"
                .into()
        }
        ("no_llm_call", model) => format!(
            "the agent never called the model {model}\nhint: it has to call each model of the episode, this one with \
             {name}_BASE_URL and {name}_API_KEY",
            name = model.to_uppercase()
        ),
        (reason, _) => format!("the server does not train the episode: {reason}"),
    }
}
