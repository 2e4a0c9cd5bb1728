//! The status as a stream of events: computed once per change for all of its readers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::latest_event::Follower;
use super::shared::Shared;
use super::swarm::core::without_ages;
use crate::protocol::status::Status;

/// Interval at which to look for a change.
const INTERVAL: Duration = Duration::from_millis(220);
/// Time after which a status is sent though only its ages changed.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the status of a server.
pub fn follow(shared: &Arc<Shared>) -> Follower {
    shared.latest_status.follow(|events| {
        tokio::spawn(produce(Arc::clone(shared), events));
    })
}

/// Sends the status on every change until the stream has no reader.
async fn produce(shared: Arc<Shared>, events: watch::Sender<Bytes>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<(Status, Instant)> = None;
    loop {
        ticks.tick().await;
        if shared.latest_status.end_if_alone(&events) {
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
