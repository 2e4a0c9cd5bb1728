//! Train episodes under way, each from its claim to its end.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::batch_plan::Work;
use super::episode::{Episodes, Purpose};
use super::error::RollError;
use super::report::EpisodeReport;
use super::tasks::Task;
use crate::protocol::swarm::{EpisodeType, PoolInformation};

/// Result of an attempt to run an episode.
pub(super) enum Attempt {
    /// The batch ended before the episode was claimed.
    NotBegun,
    Over(EpisodeReport),
}

/// An attempt's ticket and the ids of the episode that it claimed, one of each server.
type Claimed = (u64, Vec<String>);

/// Outcome of a finished attempt.
pub(super) type Joined = Result<(u64, Result<Attempt, RollError>), tokio::task::JoinError>;

/// The attempts of a training.
pub(super) struct Attempts {
    running: JoinSet<(u64, Result<Attempt, RollError>)>,
    /// Those of the present batch by ticket: how to end them, and the episode's first id once it is claimed.
    of_batch: HashMap<u64, (AbortHandle, Option<String>)>,
    /// The first id of each episode of the present batch by its other ids.
    first_ids: HashMap<String, String>,
    claims: mpsc::UnboundedSender<Claimed>,
    claimed: mpsc::UnboundedReceiver<Claimed>,
}

impl Attempts {
    pub fn new() -> Self {
        let (claims, claimed) = mpsc::unbounded_channel();
        Self {
            running: JoinSet::new(),
            of_batch: HashMap::new(),
            first_ids: HashMap::new(),
            claims,
            claimed,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Claims an episode and runs it to its end, unless the gate closes first.
    pub fn spawn(
        &mut self,
        episodes: Arc<Episodes>,
        tasks: Arc<[Task]>,
        (work, place): (Work, OwnedSemaphorePermit),
        gate: watch::Receiver<bool>,
    ) {
        let attempt = attempt(episodes, tasks, (work, place), gate, self.claims.clone());
        let handle = self.running.spawn(attempt);
        self.of_batch.insert(work.ticket, (handle, None));
    }

    /// Waits for the end of an attempt; none if none runs.
    pub async fn join_next(&mut self) -> Option<Joined> {
        self.running.join_next().await
    }

    /// An attempt that has ended already.
    pub fn try_join_next(&mut self) -> Option<Joined> {
        self.running.try_join_next()
    }

    /// Takes an attempt that has ended out of the present batch. Returns whether it was in it.
    pub fn settle(&mut self, ticket: u64) -> bool {
        self.of_batch.remove(&ticket).is_some()
    }

    /// Gives up the present batch's, claimed or not. Returns their tickets.
    pub fn give_up(&mut self) -> Vec<u64> {
        let given_up = self.of_batch.drain().map(|(ticket, (attempt, _))| {
            attempt.abort();
            ticket
        });
        given_up.collect()
    }

    /// Drops what still runs, which aborts it, and waits for that.
    pub async fn shut_down(&mut self) {
        self.running.shutdown().await;
    }

    /// Begins another batch.
    pub fn forget_ids(&mut self) {
        self.first_ids.clear();
    }

    /// Learns which episodes were claimed.
    pub fn take_claims(&mut self) {
        while let Ok((ticket, ids)) = self.claimed.try_recv() {
            let mut ids = ids.into_iter();
            let Some(first) = ids.next() else { continue };
            self.first_ids.extend(ids.map(|other| (other, first.clone())));
            if let Some((_, claimed)) = self.of_batch.get_mut(&ticket) {
                *claimed = Some(first);
            }
        }
    }

    /// Whether an attempt of the present batch has claimed the episode with this first id.
    pub fn has_claimed(&self, id: &str) -> bool {
        let mut claimed = self.of_batch.values().filter_map(|(_, claimed)| claimed.as_deref());
        claimed.any(|claimed| claimed == id)
    }

    /// Calls the episodes of a server's pool by their first ids.
    pub fn rename(&self, pool: &mut PoolInformation) {
        for id in pool.completed_tasks_details.values_mut().flatten() {
            if let Some(first) = self.first_ids.get(id) {
                id.clone_from(first);
            }
        }
    }
}

async fn attempt(
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
            episode = episodes.begin(task, EpisodeType::Train, work.taken_by) => episode?,
        };
        // The receiver is gone if the training is over.
        let _ = claims.send((work.ticket, episode.uuids().map(str::to_owned).collect()));
        let group = work.group;
        let report = episodes.run(episode, task, Purpose::Train { group, place }).await;
        report.map(Attempt::Over)
    };
    (work.ticket, attempt.await)
}
