//! What fills a batch.

use crate::config::schema::CollectionMethod;

/// What fills a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Tasks with enough episodes.
    Tasks,
    /// The same, of tasks whose rewards differ.
    NonDummyTasks,
    /// Episodes of any tasks.
    Episodes,
    /// This client's agreement, after a batch of its own episodes.
    Agreement,
    /// Nothing: every episode is given up at its end.
    Never,
}

impl Rule {
    /// The rule of a collection method; an unknown one counts tasks, as Python's server does.
    pub fn of_method(method: &str) -> Self {
        use CollectionMethod::*;
        match CollectionMethod::from_name(method) {
            Some(RolloutUntilFinishEnoughEpisodes) => Self::Episodes,
            Some(RolloutUntilFinishEnoughNonDummyTasks) => Self::NonDummyTasks,
            Some(RolloutUntilAnyClientAgreeSyncWeight | RolloutUntilAllClientsAgreeSyncWeight) => Self::Agreement,
            Some(RolloutUntilFinishEnoughTasks) | None => Self::Tasks,
        }
    }

    /// Whether a batch needs different tasks.
    pub fn counts_tasks(self) -> bool {
        matches!(self, Self::Tasks | Self::NonDummyTasks)
    }
}
