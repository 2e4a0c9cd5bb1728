//! Ranks of an MPI launcher (`mpirun`, `srun`), by the C library that the program was built with.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Root};

use super::reduce::sum_in_order;
use super::{Collective, CollectiveError, Result};

/// Values that go over at once: 4 MB.
const CHUNK: usize = 1 << 20;

type Call = Box<dyn FnOnce(&SimpleCommunicator) + Send>;

/// All ranks of a launch. A rank that ends without the others makes the launcher end them all, which is MPI's default;
/// so nothing here waits for a rank that is gone.
pub struct Mpi {
    rank: usize,
    size: usize,
    /// Calls for the thread that started MPI, the only one that may call it. `None` after the end.
    calls: Mutex<Option<(Sender<Call>, JoinHandle<()>)>>,
}

impl Mpi {
    /// Joins the launch.
    ///
    /// # Errors
    /// Fails if MPI was started before in this process, or no thread can be started.
    pub fn join() -> Result<Self> {
        let failed = |reason: String| CollectiveError::Start { library: "MPI", reason };
        let (calls, inbox) = channel::<Call>();
        let (started, start) = sync_channel(1);
        let work = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
                return; // `started` is dropped
            };
            let world = universe.world();
            if started.send((number(world.rank()), number(world.size()))).is_ok() {
                inbox.into_iter().for_each(|call| call(&world));
            }
        };
        let thread = std::thread::Builder::new().name("mpi".into()).spawn(work);
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let (rank, size) = start
            .recv()
            .map_err(|_| failed("it was started before in this process".into()))?;
        Ok(Self {
            rank,
            size,
            calls: Mutex::new(Some((calls, thread))),
        })
    }

    /// Runs `call` on MPI's thread and waits for what it returns.
    fn on_thread<T: Send + 'static>(&self, call: impl FnOnce(&SimpleCommunicator) -> T + Send + 'static) -> Result<T> {
        let gone = || CollectiveError::Gone { rank: self.rank };
        let (done, result) = sync_channel(1);
        let call: Call = Box::new(move |world| {
            let _ = done.send(call(world)); // the caller waits
        });
        {
            let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let (calls, _) = calls.as_ref().ok_or_else(gone)?;
            calls.send(call).map_err(|_| gone())?;
        }
        result.recv().map_err(|_| gone())
    }
}

/// Ranks and sizes that MPI gives are not negative.
fn number(rank: mpi::Rank) -> usize {
    rank as usize
}

/// Ranks of this program come from MPI and fit its type.
fn rank_of(number: usize) -> mpi::Rank {
    number as mpi::Rank
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn reduce(&self, values: &mut [f32], owner: usize) -> Result<()> {
        let size = self.size;
        for chunk in values.chunks_mut(CHUNK) {
            let mut mine = chunk.to_vec();
            if self.rank != owner {
                self.on_thread(move |world| world.process_at_rank(rank_of(owner)).gather_into(&mine[..]))?;
                continue;
            }
            let sum = self.on_thread(move |world| {
                let mut gathered = vec![0.0; mine.len() * size];
                let root = world.process_at_rank(rank_of(owner));
                root.gather_into_root(&mine[..], &mut gathered[..]);
                sum_in_order(&gathered, &mut mine);
                mine
            })?;
            chunk.copy_from_slice(&sum);
        }
        Ok(())
    }

    fn broadcast(&self, values: &mut [f32], owner: usize) -> Result<()> {
        for chunk in values.chunks_mut(CHUNK) {
            let mut copy = chunk.to_vec();
            let copy = self.on_thread(move |world| {
                world.process_at_rank(rank_of(owner)).broadcast_into(&mut copy[..]);
                copy
            })?;
            chunk.copy_from_slice(&copy);
        }
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mine, own, size) = (mine.to_vec(), self.rank, self.size);
        self.on_thread(move |world| {
            let from = |rank: usize| {
                let root = world.process_at_rank(rank_of(rank));
                let mut length = mine.len() as u64;
                root.broadcast_into(&mut length);
                let mut bytes = match rank == own {
                    true => mine.clone(),
                    false => vec![0; usize::try_from(length).unwrap_or(usize::MAX)],
                };
                bytes.chunks_mut(4 * CHUNK).for_each(|chunk| root.broadcast_into(chunk));
                bytes
            };
            (0..size).map(from).collect()
        })
    }

    fn leave(&self) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((calls, thread)) = calls {
            drop(calls);
            let _ = thread.join(); // a panic of MPI's thread has been printed
        }
    }
}
