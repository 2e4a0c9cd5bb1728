//! How many bytes of request bodies are held at one time.
//!
//! Room is taken as bytes come and given back when they have been read. When there is none left, the body that has been
//! coming for longest is given up, so that those who send slowly cannot keep others out. Large bodies never take all of
//! the room, so that those who send a few of them at once do not keep out everyone's calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::Error;

/// Bytes of bodies that are held at one time.
const HELD_BYTES: usize = 1024 * 1024 * 1024;
/// Bytes of every body that are not counted, so that small calls need no room: a connection's buffers hold as much.
const FREE_BYTES: usize = 32 * 1024;
/// Largest body that may take the last of the room.
const SMALL_BYTES: usize = 1024 * 1024;
/// Share of the room that is kept for such bodies.
const SMALL_SHARE: usize = 8;
/// How long a body may be coming before it can be given up for another.
const PATIENCE: Duration = Duration::from_secs(10);

/// Room for the bodies of all requests together.
#[derive(Debug)]
pub struct BodyRoom {
    limit: usize,
    patience: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    held: usize,
    /// Bodies that are still coming and have taken room, the oldest first.
    coming: BTreeMap<u64, Coming>,
}

#[derive(Debug)]
struct Coming {
    bytes: usize,
    since: Instant,
    given_up: CancellationToken,
}

impl Default for BodyRoom {
    fn default() -> Self {
        Self::new(HELD_BYTES, PATIENCE)
    }
}

impl BodyRoom {
    fn new(limit: usize, patience: Duration) -> Self {
        Self {
            limit,
            patience,
            table: Mutex::default(),
        }
    }

    /// Room for a body that begins to come.
    pub fn enter(self: &Arc<Self>) -> Room {
        let mut table = self.table();
        table.next += 1;
        Room {
            id: table.next,
            since: Instant::now(),
            free: FREE_BYTES,
            held: 0,
            given_up: CancellationToken::new(),
            whole: Arc::clone(self),
        }
    }

    /// A panic leaves the table consistent: nothing in it can panic between two of its changes.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The room that one body has taken, free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    whole: Arc<BodyRoom>,
    id: u64,
    since: Instant,
    /// What is left of [`FREE_BYTES`].
    free: usize,
    held: usize,
    given_up: CancellationToken,
}

impl Room {
    /// Takes room for `bytes` more.
    ///
    /// # Errors
    ///
    /// There is none, and no other body has been coming for too long.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let free = self.free.min(bytes);
        self.free -= free;
        let bytes = bytes - free;
        if bytes == 0 {
            return Ok(());
        }
        let mut table = self.whole.table();
        if self.given_up.is_cancelled() {
            return Err(full());
        }
        let limit = match self.held + bytes > SMALL_BYTES {
            true => self.whole.limit - self.whole.limit / SMALL_SHARE,
            false => self.whole.limit,
        };
        while table.held + bytes > limit {
            let oldest = table
                .coming
                .first_entry()
                .filter(|oldest| *oldest.key() != self.id && oldest.get().since.elapsed() >= self.whole.patience);
            let oldest = oldest.ok_or_else(full)?.remove();
            oldest.given_up.cancel();
            table.held -= oldest.bytes;
        }
        table.held += bytes;
        self.held += bytes;
        let (since, given_up) = (self.since, &self.given_up);
        let coming = table.coming.entry(self.id).or_insert_with(|| Coming {
            bytes: 0,
            since,
            given_up: given_up.clone(),
        });
        coming.bytes = self.held;
        Ok(())
    }

    /// The body has come: it keeps its room until it is read.
    pub fn complete(&mut self) {
        self.whole.table().coming.remove(&self.id);
    }

    /// Waits until the body is given up for another.
    ///
    /// # Errors
    ///
    /// Always, then.
    pub async fn given_up(&self) -> Error {
        self.given_up.cancelled().await;
        full()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut table = self.whole.table();
        let is_coming = table.coming.remove(&self.id).is_some();
        // What was given up is not counted any more.
        if is_coming || !self.given_up.is_cancelled() {
            table.held -= self.held;
        }
    }
}

fn full() -> Error {
    Error::Busy("it holds as many request bodies as it may".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(limit: usize, patience: Duration) -> Arc<BodyRoom> {
        Arc::new(BodyRoom::new(limit, patience))
    }

    #[test]
    fn room_is_taken_as_bytes_come_and_comes_back() {
        let whole = room(100, Duration::MAX);
        let (mut large, mut small) = (whole.enter(), whole.enter());
        large.grow(FREE_BYTES + 60).unwrap();
        large.grow(40).unwrap();
        assert!(matches!(large.grow(1), Err(Error::Busy(_))));
        small.grow(FREE_BYTES).unwrap();
        assert!(matches!(small.grow(1), Err(Error::Busy(_))), "nobody has dawdled");
        large.complete();
        assert_eq!(whole.table().held, 100, "until it is read");
        drop(large);
        small.grow(100).unwrap();
        drop(small);
        assert_eq!(whole.table().held, 0);
    }

    // Seen with sixteen uploads of 64 MiB at once: every call with a long prompt was refused until they had come.
    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        const MIB: usize = 1024 * 1024;
        let whole = room(16 * MIB, Duration::MAX);
        let mut large = whole.enter();
        while large.grow(MIB / 4).is_ok() {}
        let held = whole.table().held;
        assert!(held > 13 * MIB && held <= 14 * MIB, "{held}");
        let mut small: Vec<_> = (0..2).map(|_| whole.enter()).collect();
        for body in &mut small {
            body.grow(FREE_BYTES + MIB).unwrap();
            assert!(body.grow(MIB).is_err(), "it is large now");
        }
        assert!(whole.table().held <= 16 * MIB);
        drop((large, small));
        assert_eq!(whole.table().held, 0);
    }

    #[test]
    fn the_oldest_that_still_comes_is_given_up_for_a_new_one() {
        let whole = room(100, Duration::ZERO);
        let mut bodies: Vec<_> = (0..4).map(|_| whole.enter()).collect();
        for body in &mut bodies[..3] {
            body.grow(FREE_BYTES + 30).unwrap();
        }
        bodies[0].complete();
        bodies[3].grow(FREE_BYTES + 30).unwrap();
        let given_up: Vec<_> = bodies.iter().map(|body| body.given_up.is_cancelled()).collect();
        assert_eq!(given_up, [false, true, false, false], "what has come stays");
        assert!(bodies[1].grow(1).is_err());
        assert!(bodies[2].grow(90).is_err(), "it is the oldest itself");
        assert_eq!(whole.table().held, 90);
        drop(bodies);
        assert_eq!(whole.table().held, 0);
        assert!(whole.table().coming.is_empty());
    }
}
