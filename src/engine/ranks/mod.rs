//! An engine of several ranks. The first one is the engine that the server speaks to; the others follow its orders: they
//! sample some of the episodes, and make the same updates at the same time.
//!
//! Orders and sampled tokens go over TCP connections ([`link`]), on which a rank that has nothing to do waits without
//! using a processor. The numbers of updates go by the [`Collective`], inside of the trainer.

mod first;
mod follower;
mod link;
mod local;
mod placement;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use first::FirstRank;
pub use follower::follow;

use super::model_thread::SamplingLoad;
use crate::collective::{Collective, CollectiveError};
use crate::inference::{SampleEvent, SamplingParams};
use crate::train::TrainEpisode;

/// An error between the ranks of an engine.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The ranks cannot be connected.
    #[error(
        "cannot connect the ranks over TCP at {address}: {source}\nhint: set {} to an address of the first rank's machine \
         that the others reach",
        link::ADDRESS_VARIABLE
    )]
    Connect {
        /// Address of the first rank.
        address: String,
        /// Reason.
        source: std::io::Error,
    },
    /// A rank has ended or cannot be reached any more.
    #[error("rank {rank} has ended")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A rank failed.
    #[error("rank {rank}: {reason}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Its error.
        reason: String,
    },
    /// The ranks do not understand each other: they are different builds.
    #[error("rank {rank} sent an invalid message: {reason}\nhint: all ranks must run the same build")]
    Message {
        /// The rank.
        rank: usize,
        /// Reason.
        reason: String,
    },
    /// The ranks cannot exchange numbers.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// An order of the first rank to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Load the model, with this configuration as JSON, and the directory of the checkpoint to resume from.
    Boot {
        config: String,
        checkpoint: Option<PathBuf>,
    },
    /// Sample an answer.
    Sample {
        id: u64,
        group: String,
        prompt: Vec<u32>,
        params: SamplingParams,
        forced_tokens: Vec<u32>,
    },
    /// Stop sampling an answer.
    Cancel { id: u64 },
    /// Take part in an update.
    Update {
        global_step: u64,
        episodes: Vec<TrainEpisode>,
    },
    /// Take part in writing a checkpoint into this directory.
    Save { dir: PathBuf },
}

/// What a rank says to the first one.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Answer {
    /// The model is loaded.
    Booted,
    /// Events of requests, in their order, and the load after them.
    Events {
        events: Vec<(u64, SampleEvent)>,
        load: SamplingLoad,
    },
    /// The rank is about to end.
    Failed(String),
}

/// Joins the ranks of this launch.
///
/// # Errors
/// Fails if this program was built without MPI, or MPI cannot start.
pub fn join() -> Result<Arc<dyn Collective>, CollectiveError> {
    #[cfg(feature = "mpi")]
    return Ok(Arc::new(crate::collective::mpi::Mpi::join()?));
    #[cfg(not(feature = "mpi"))]
    Err(CollectiveError::Start {
        library: "MPI",
        reason: "this program was built without it\nhint: build it with `cargo build --release --features mpi`".into(),
    })
}
