//! The status for streams: computed once per change for all of them, and not at all while nobody listens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::shared::Shared;
use super::swarm::core::without_ages;
use crate::protocol::status::Status;

/// Interval at which to look for a change.
const INTERVAL: Duration = Duration::from_millis(220);
/// Time after which a status is sent though only its ages changed.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// The latest status as a server-sent event, while a stream follows it.
#[derive(Debug, Default)]
pub struct Feed {
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

impl Feed {
    /// Follows the status, starting its producer if none runs. The first event is the current status.
    pub fn follow(&self, shared: &Arc<Shared>) -> Follower {
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
        tokio::spawn(produce(Arc::clone(shared), sender));
        Follower(receiver)
    }

    /// Stops the producer if only this feed still holds its events. Under the lock, so that nobody joins meanwhile.
    fn end_if_alone(&self, sender: &watch::Sender<Bytes>) -> bool {
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

/// Sends the status on every change until nobody follows it.
async fn produce(shared: Arc<Shared>, events: watch::Sender<Bytes>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<(Status, Instant)> = None;
    loop {
        ticks.tick().await;
        if shared.feed.end_if_alone(&events) {
            return;
        }
        let reading = Arc::clone(&shared);
        let Ok((still, event)) = tokio::task::spawn_blocking(move || read(&reading)).await else {
            return; // the server ends
        };
        let news = last.as_ref().is_none_or(|(before, sent)| {
            *before != still || still.sampling.is_some() && sent.elapsed() >= AGE_INTERVAL
        });
        if news && let Some(event) = event {
            events.send_replace(event);
            last = Some((still, Instant::now()));
        }
    }
}

/// Returns the status without ages, and as an event.
fn read(shared: &Shared) -> (Status, Option<Bytes>) {
    let status = shared.status();
    (without_ages(&status), event(&status))
}

/// Formats a status as an event; its JSON has no line break.
fn event(status: &Status) -> Option<Bytes> {
    let mut event = b"data: ".to_vec();
    match serde_json::to_writer(&mut event, status) {
        Ok(()) => {
            event.extend(b"\n\n");
            Some(event.into())
        }
        Err(error) => {
            tracing::error!("cannot format the status: {error}");
            None
        }
    }
}
