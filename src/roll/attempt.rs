//! One train episode, from its claim to its end.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::batch_plan::Work;
use super::episode::{Episodes, Purpose};
use super::error::RollError;
use super::report::EpisodeReport;
use super::tasks::Task;
use crate::protocol::swarm::EpisodeType;

/// What became of an attempt to run an episode.
pub(super) enum Attempt {
    /// The batch was over before it was claimed.
    NotBegun,
    Over(EpisodeReport),
}

/// An attempt's ticket and the episode that it claimed.
pub(super) type Claimed = (u64, String);

/// What a finished attempt leaves.
pub(super) type Joined = Result<(u64, Result<Attempt, RollError>), tokio::task::JoinError>;

/// Claims an episode and runs it to its end, unless the gate closes before it is claimed.
pub(super) async fn attempt(
    episodes: Arc<Episodes>,
    tasks: Arc<[Task]>,
    (work, place): (Work, OwnedSemaphorePermit),
    mut gate: watch::Receiver<bool>,
    claims: mpsc::UnboundedSender<Claimed>,
) -> (u64, Result<Attempt, RollError>) {
    let task = &tasks[work.task];
    let attempt = async {
        let episode = tokio::select! {
            biased;
            _ = gate.wait_for(|is_open| !is_open) => return Ok(Attempt::NotBegun),
            episode = episodes.begin(task, EpisodeType::Train) => episode?,
        };
        // Nobody listens any more where the training is over.
        let _ = claims.send((work.ticket, episode.uuid().to_owned()));
        let group = work.group;
        let report = episodes.run(episode, task, Purpose::Train { group, place }).await;
        report.map(Attempt::Over)
    };
    (work.ticket, attempt.await)
}
