//! Why a run ends before its job is done.

use super::job::JobError;
use super::own_server::ServerError;
use super::rewards::SetupError;
use super::tasks::TaskError;
use crate::client::ClientError;
use crate::counted::counted;

/// An error of [`super::run()`] and its kin.
#[derive(Debug, thiserror::Error)]
pub enum RollError {
    /// The job file is invalid.
    #[error(transparent)]
    File(#[from] JobError),
    /// Its tasks cannot be read.
    #[error(transparent)]
    Tasks(#[from] TaskError),
    /// There are no validation tasks.
    #[error(
        "roll.eval requires validation tasks, but the task reader has none\nhint: set a validation set in ajet.task_reader, or remove \
         roll.eval"
    )]
    NoValidation,
    /// The job cannot run with its tasks.
    #[error("the job cannot run: {}", .0.join("\n"))]
    Unfit(Vec<String>),
    /// A call to the server or the engine failed.
    #[error(transparent)]
    Swarm(#[from] ClientError),
    /// The job's own server could not be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The reward cannot be used.
    #[error(transparent)]
    Reward(#[from] SetupError),
    /// Agent or reward do not match the tasks.
    #[error("task {task_id}: {detail}")]
    Job {
        /// The first task that showed it.
        task_id: String,
        /// What is wrong.
        detail: String,
    },
    /// Too many episodes fail.
    #[error(
        "{failed} of the last {episodes} episodes failed ({reasons}), the last one: {detail}\nhint: `--debug-one` shows one \
         episode in full; roll.max_failure_rate, {allowed}, is the share of the last 64 that may fail"
    )]
    TooManyFailures {
        /// How many.
        failed: usize,
        /// Of how many.
        episodes: usize,
        /// Failures by reason.
        reasons: String,
        /// The share that may fail.
        allowed: f64,
        /// Of the last one.
        detail: String,
    },
    /// Every episode of a run failed.
    #[error("all {episodes} episodes failed, the last one: {detail}\nhint: `--debug-one` shows one episode in full")]
    AllFailed {
        /// How many.
        episodes: usize,
        /// Why the last one did.
        detail: String,
    },
    /// Updates ran, but none of them changed a weight.
    #[error("nothing was trained in {}; the last one: {reason}", counted(*updates, "update"))]
    NothingTrained {
        /// How many.
        updates: u64,
        /// Why the last one did nothing.
        reason: String,
    },
    /// Many updates in a row had nothing to learn from.
    #[error(
        "the last {updates} updates had nothing to learn from: {reason}\nhint: `--debug-one` shows an answer and its \
         reward; `roll.max_idle_updates` is the limit, 0 for none"
    )]
    NothingToLearn {
        /// How many.
        updates: u64,
        /// What the last one says.
        reason: String,
    },
    /// No update ran.
    #[error("nothing was trained, because no batch became full: {reason}")]
    NoUpdate {
        /// What is missing, with a hint.
        reason: String,
    },
    /// What the job would join or continue differs from it.
    #[error("{there}:{differences}\nhint: {hint}")]
    Differs {
        /// What it was compared with.
        there: String,
        /// A line for each difference.
        differences: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// Engines of several models have batches of different sizes.
    #[error(
        "the batch at {other} is {} tasks x {} episodes, but that at {first} is {} x {}\nhint: an episode counts in the batch \
         of each model, so they must be equal; `roll.force_restart: true` restarts the engines with the job's configuration",
        other_batch.0, other_batch.1, first_batch.0, first_batch.1
    )]
    UnequalBatches {
        /// The first server.
        first: String,
        /// Its tasks and repeats.
        first_batch: (u64, u64),
        /// Another server.
        other: String,
        /// Its tasks and repeats.
        other_batch: (u64, u64),
    },
    /// `--fresh` where an engine trains.
    #[error(
        "`--fresh` begins a new experiment, but the engine at {0} is training\nhint: `ajet-swarm stop` stops it, \
         `roll.force_restart: true` does so at the start of the job"
    )]
    Busy(String),
    /// A check of the agent failed, such as for its program.
    #[error("{0}")]
    Check(String),
    /// A task of the run panicked.
    #[error("internal error of the run: {0}")]
    Lost(#[from] tokio::task::JoinError),
}
