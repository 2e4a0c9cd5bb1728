//! What the status feed shows beyond the state itself: its history, the load of sampling, the batch and its groups, and
//! the time left.
//!
//! Pure: time is passed in as Unix seconds.

pub mod batch;
pub mod histogram;
pub mod load;
pub mod phases;
pub mod time_left;
