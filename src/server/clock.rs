//! Monotonic Unix time: it never goes back, even if the system clock is set back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Source of the time that the pure modules take as an argument.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    unix_at_start: f64,
}

impl Clock {
    /// Reads the system clock once, now.
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: Instant::now(),
            unix_at_start: since_epoch.as_secs_f64(),
        }
    }

    /// Returns Unix seconds.
    pub fn now(&self) -> f64 {
        self.unix_at_start + self.started.elapsed().as_secs_f64()
    }
}
