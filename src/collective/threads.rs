//! Ranks that are threads of one process, for tests.

use std::sync::{Arc, Barrier, Mutex};

use super::reduce::sum_in_order;
use super::{Collective, Result};

/// What the ranks share.
struct Shared {
    barrier: Barrier,
    /// What each rank gives to the running collective operation.
    given: Mutex<Vec<Vec<u8>>>,
    size: usize,
}

/// One of the threads.
struct Thread {
    rank: usize,
    shared: Arc<Shared>,
}

/// Runs `work` on `size` ranks. Returns the result of each.
pub fn run<T: Send>(size: usize, work: impl Fn(Arc<dyn Collective>) -> T + Sync) -> Vec<T> {
    let shared = Arc::new(Shared {
        barrier: Barrier::new(size),
        given: Mutex::new(vec![vec![]; size]),
        size,
    });
    let (work, shared) = (&work, &shared);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                scope.spawn(move || {
                    work(Arc::new(Thread {
                        rank,
                        shared: shared.clone(),
                    }))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn values_of(bytes: &[u8]) -> Vec<f32> {
    let value = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
    bytes.chunks_exact(4).map(value).collect()
}

impl Collective for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn reduce(&self, values: &mut [f32], owner: usize) -> Result<()> {
        let gathered = self.all_gather(&bytes_of(values))?;
        assert!(
            gathered.iter().all(|part| part.len() == values.len() * 4),
            "slices of other lengths"
        );
        if owner == self.rank {
            sum_in_order(&values_of(&gathered.concat()), values);
        }
        Ok(())
    }

    fn broadcast(&self, values: &mut [f32], owner: usize) -> Result<()> {
        let gathered = self.all_gather(&bytes_of(values))?;
        values.copy_from_slice(&values_of(&gathered[owner]));
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared.given.lock().unwrap()[self.rank] = mine.to_vec();
        self.shared.barrier.wait();
        let all = self.shared.given.lock().unwrap().clone();
        self.shared.barrier.wait();
        Ok(all)
    }
}
