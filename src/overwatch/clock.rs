//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns Unix seconds, the time format of the wire protocol.
pub fn unix_now() -> f64 {
    unix_seconds(SystemTime::now())
}

/// Returns a time as Unix seconds.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
