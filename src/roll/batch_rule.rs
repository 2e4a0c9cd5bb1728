//! Rules by which a batch becomes full.

use crate::config::schema::CollectionMethod;

/// Rule by which a batch becomes full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Number of tasks with enough episodes.
    Tasks,
    /// Number of tasks with enough episodes and different rewards.
    NonDummyTasks,
    /// Number of episodes.
    Episodes,
    /// Agreement of this client, after a batch of its own episodes.
    Agreement,
    /// Never: all episodes are aborted at their end.
    Never,
}

impl Rule {
    /// Returns the rule of a collection method; an unknown one counts tasks, as Python's server does.
    pub fn of_method(method: &str) -> Self {
        use CollectionMethod::*;
        match CollectionMethod::from_name(method) {
            Some(RolloutUntilFinishEnoughEpisodes) => Self::Episodes,
            Some(RolloutUntilFinishEnoughNonDummyTasks) => Self::NonDummyTasks,
            Some(RolloutUntilAnyClientAgreeSyncWeight | RolloutUntilAllClientsAgreeSyncWeight) => Self::Agreement,
            Some(RolloutUntilFinishEnoughTasks) | None => Self::Tasks,
        }
    }

    /// Returns whether a batch requires different tasks.
    pub fn counts_tasks(self) -> bool {
        matches!(self, Self::Tasks | Self::NonDummyTasks)
    }
}
