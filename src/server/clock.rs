//! Unix time that never goes back, whatever is done to the machine's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the time for the pure parts, which take it as an argument.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    unix_at_start: f64,
}

impl Clock {
    /// Set by the machine's clock once, now.
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: Instant::now(),
            unix_at_start: since_epoch.as_secs_f64(),
        }
    }

    /// Unix seconds.
    pub fn now(&self) -> f64 {
        self.unix_at_start + self.started.elapsed().as_secs_f64()
    }
}
