//! Memory budget of all request bodies together.
//!
//! A body takes memory from the budget as its bytes arrive, and returns it after it was read. When the budget is
//! exhausted, the body that has been arriving for longest is evicted, so that slow senders cannot lock others out.
//! Large bodies can never take the whole budget, so that a few of them sent at once do not block small calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::Error;

/// Maximum memory for bodies, in bytes.
const HELD_BYTES: usize = 1024 * 1024 * 1024;
/// Bytes of each body that are not counted, so that small calls always fit: a connection's buffers hold as much.
const FREE_BYTES: usize = 32 * 1024;
/// Maximum size of a body that may use the last share of the budget.
const SMALL_BYTES: usize = 1024 * 1024;
/// That share is one of this many.
const SMALL_SHARE: usize = 8;
/// Time after which a body that is still arriving may be evicted.
const MIN_AGE: Duration = Duration::from_secs(10);

/// Memory budget of the bodies of all requests.
#[derive(Debug)]
pub struct BodyBudget {
    limit: usize,
    min_age: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    held: usize,
    /// Bodies still arriving that hold memory, oldest first.
    arriving: BTreeMap<u64, Arriving>,
}

#[derive(Debug)]
struct Arriving {
    bytes: usize,
    since: Instant,
    evicted: CancellationToken,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(HELD_BYTES, MIN_AGE)
    }
}

impl BodyBudget {
    fn new(limit: usize, min_age: Duration) -> Self {
        Self {
            limit,
            min_age,
            table: Mutex::default(),
        }
    }

    /// Starts a reservation for a body about to arrive.
    pub fn enter(self: &Arc<Self>) -> BodyReservation {
        let mut table = self.table();
        table.next += 1;
        BodyReservation {
            id: table.next,
            since: Instant::now(),
            free: FREE_BYTES,
            held: 0,
            evicted: CancellationToken::new(),
            budget: Arc::clone(self),
        }
    }

    // Poisoning is ignored: no panic can happen between two changes that belong together.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory reserved by one body, released on drop.
#[derive(Debug)]
pub struct BodyReservation {
    budget: Arc<BodyBudget>,
    id: u64,
    since: Instant,
    /// Rest of [`FREE_BYTES`].
    free: usize,
    held: usize,
    evicted: CancellationToken,
}

impl BodyReservation {
    /// Reserves `bytes` more.
    ///
    /// # Errors
    ///
    /// Fails if the budget is exhausted and no other body may be evicted.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let free = self.free.min(bytes);
        self.free -= free;
        let bytes = bytes - free;
        if bytes == 0 {
            return Ok(());
        }
        let mut table = self.budget.table();
        if self.evicted.is_cancelled() {
            return Err(full());
        }
        let limit = match self.held + bytes > SMALL_BYTES {
            true => self.budget.limit - self.budget.limit / SMALL_SHARE,
            false => self.budget.limit,
        };
        while table.held + bytes > limit {
            let oldest = table
                .arriving
                .first_entry()
                .filter(|oldest| *oldest.key() != self.id && oldest.get().since.elapsed() >= self.budget.min_age);
            let oldest = oldest.ok_or_else(full)?.remove();
            oldest.evicted.cancel();
            table.held -= oldest.bytes;
        }
        table.held += bytes;
        self.held += bytes;
        let (since, evicted) = (self.since, &self.evicted);
        let arriving = table.arriving.entry(self.id).or_insert_with(|| Arriving {
            bytes: 0,
            since,
            evicted: evicted.clone(),
        });
        arriving.bytes = self.held;
        Ok(())
    }

    /// Marks the body as complete: it keeps its memory until it is read.
    pub fn complete(&mut self) {
        self.budget.table().arriving.remove(&self.id);
    }

    /// Waits until this body is evicted.
    ///
    /// # Errors
    ///
    /// Always returns the error for the client.
    pub async fn evicted(&self) -> Error {
        self.evicted.cancelled().await;
        full()
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        let mut table = self.budget.table();
        let is_coming = table.arriving.remove(&self.id).is_some();
        // An evicted body is no longer counted.
        if is_coming || !self.evicted.is_cancelled() {
            table.held -= self.held;
        }
    }
}

fn full() -> Error {
    Error::Busy("the memory for request bodies is exhausted".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(limit: usize, min_age: Duration) -> Arc<BodyBudget> {
        Arc::new(BodyBudget::new(limit, min_age))
    }

    #[test]
    fn room_is_taken_as_bytes_come_and_comes_back() {
        let budget = reservation(100, Duration::MAX);
        let (mut large, mut small) = (budget.enter(), budget.enter());
        large.grow(FREE_BYTES + 60).unwrap();
        large.grow(40).unwrap();
        assert!(matches!(large.grow(1), Err(Error::Busy(_))));
        small.grow(FREE_BYTES).unwrap();
        assert!(matches!(small.grow(1), Err(Error::Busy(_))), "nobody has dawdled");
        large.complete();
        assert_eq!(budget.table().held, 100, "until it is read");
        drop(large);
        small.grow(100).unwrap();
        drop(small);
        assert_eq!(budget.table().held, 0);
    }

    // Seen with sixteen uploads of 64 MiB at once: every call with a long prompt was refused until they had come.
    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        const MIB: usize = 1024 * 1024;
        let budget = reservation(16 * MIB, Duration::MAX);
        let mut large = budget.enter();
        while large.grow(MIB / 4).is_ok() {}
        let held = budget.table().held;
        assert!(held > 13 * MIB && held <= 14 * MIB, "{held}");
        let mut small: Vec<_> = (0..2).map(|_| budget.enter()).collect();
        for body in &mut small {
            body.grow(FREE_BYTES + MIB).unwrap();
            assert!(body.grow(MIB).is_err(), "it is large now");
        }
        assert!(budget.table().held <= 16 * MIB);
        drop((large, small));
        assert_eq!(budget.table().held, 0);
    }

    #[test]
    fn the_oldest_that_still_comes_is_given_up_for_a_new_one() {
        let budget = reservation(100, Duration::ZERO);
        let mut bodies: Vec<_> = (0..4).map(|_| budget.enter()).collect();
        for body in &mut bodies[..3] {
            body.grow(FREE_BYTES + 30).unwrap();
        }
        bodies[0].complete();
        bodies[3].grow(FREE_BYTES + 30).unwrap();
        let evicted: Vec<_> = bodies.iter().map(|body| body.evicted.is_cancelled()).collect();
        assert_eq!(evicted, [false, true, false, false], "what has come stays");
        assert!(bodies[1].grow(1).is_err());
        assert!(bodies[2].grow(90).is_err(), "it is the oldest itself");
        assert_eq!(budget.table().held, 90);
        drop(bodies);
        assert_eq!(budget.table().held, 0);
        assert!(budget.table().arriving.is_empty());
    }
}
