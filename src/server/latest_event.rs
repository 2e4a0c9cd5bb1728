//! The latest event of a stream, for all of its readers: one producer serves them, and none runs without a reader.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// The latest event, while somebody follows the stream.
#[derive(Debug, Default)]
pub struct LatestEvent {
    events: Mutex<Option<watch::Receiver<Bytes>>>,
}

/// A stream of events. A reader that is slow misses events in between, never the last one.
pub struct Follower(watch::Receiver<Bytes>);

impl Follower {
    /// Waits for the next event; `None` when the server ends.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}

impl LatestEvent {
    /// Follows the stream; `produce` starts its producer and is called if none runs. The first event is the current
    /// one.
    pub fn follow(&self, produce: impl FnOnce(watch::Sender<Bytes>)) -> Follower {
        let mut events = self.lock();
        if let Some(running) = events.as_ref().filter(|events| events.has_changed().is_ok()) {
            let mut receiver = running.clone();
            let begun = !receiver.borrow().is_empty();
            if begun {
                receiver.mark_changed();
            }
            return Follower(receiver);
        }
        let (sender, receiver) = watch::channel(Bytes::new());
        *events = Some(receiver.clone());
        produce(sender);
        Follower(receiver)
    }

    /// Stops the producer if nobody follows its events. Under the lock, so that no reader joins meanwhile.
    pub fn end_if_alone(&self, sender: &watch::Sender<Bytes>) -> bool {
        let mut events = self.lock();
        let alone = sender.receiver_count() <= 1;
        if alone {
            *events = None;
        }
        alone
    }

    fn lock(&self) -> MutexGuard<'_, Option<watch::Receiver<Bytes>>> {
        // Poisoning is ignored: the option is assigned as a whole.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
