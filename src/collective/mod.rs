//! Ranks: processes that hold the same model and train it together. One [`Collective`] is chosen when the engine starts;
//! nothing above this folder knows which.
//!
//! Sums are made in the order of ranks, so that a run with as many ranks repeats exactly.

mod alone;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(any(feature = "mpi", test))]
mod reduce;
#[cfg(test)]
pub mod threads;

pub use alone::Alone;

/// An error of the communication between ranks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// The library that moves the bytes cannot be used.
    #[error("cannot start {library}: {reason}")]
    Start {
        /// Name of the library.
        library: &'static str,
        /// Reason.
        reason: String,
    },
    /// Another rank has ended.
    #[error("rank {rank} has ended")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// Another rank sent what this one does not understand.
    #[error("rank {rank} sent an invalid message: {reason}")]
    Message {
        /// The rank.
        rank: usize,
        /// Reason.
        reason: String,
    },
}

/// Result of this layer.
pub type Result<T> = std::result::Result<T, CollectiveError>;

/// Communication between ranks. All of it is collective: every rank calls the same methods, in the same order and with
/// slices of the same lengths.
pub trait Collective: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Adds up the values of all ranks, element by element, in the order of ranks. The sum replaces the values of the
    /// rank `owner`; those of the others stay as they are.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    fn reduce(&self, values: &mut [f32], owner: usize) -> Result<()>;

    /// Copies the values of the rank `owner` to all ranks.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    fn broadcast(&self, values: &mut [f32], owner: usize) -> Result<()>;

    /// Returns the bytes of every rank, in the order of ranks. For small messages.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Adds up the values of all ranks on every rank.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        self.reduce(values, 0)?;
        self.broadcast(values, 0)
    }

    /// Ends the communication properly, after which the launcher sees no failure. Waits until every rank has called it.
    fn leave(&self) {}

    /// Returns whether this rank is the only one.
    fn is_alone(&self) -> bool {
        self.size() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::threads::run;

    #[test]
    fn sums_are_made_in_the_order_of_ranks_and_stay_with_their_owner() {
        // f32 sums depend on the order: (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0.
        let parts = [1e8_f32, -1e8, 1.0];
        for owner in 0..3 {
            let found = run(3, |ranks| {
                let mut values = [parts[ranks.rank()], ranks.rank() as f32];
                ranks.reduce(&mut values, owner).unwrap();
                values
            });
            for (rank, values) in found.into_iter().enumerate() {
                let expected = if rank == owner {
                    [1.0, 3.0]
                } else {
                    [parts[rank], rank as f32]
                };
                assert_eq!(values, expected, "rank {rank} of owner {owner}");
            }
        }
    }

    #[test]
    fn every_rank_gets_what_it_should() {
        let found = run(4, |ranks| {
            let mut values = [ranks.rank() as f32; 3];
            ranks.broadcast(&mut values, 2).unwrap();
            let gathered = ranks.all_gather(&vec![7; ranks.rank()]).unwrap();
            let mut sum = [1.0, ranks.rank() as f32];
            ranks.all_reduce(&mut sum).unwrap();
            (values, gathered, sum)
        });
        for (values, gathered, sum) in found {
            assert_eq!(values, [2.0; 3]);
            assert_eq!(gathered, [vec![], vec![7], vec![7, 7], vec![7, 7, 7]]);
            assert_eq!(sum, [4.0, 6.0]);
        }
    }
}
