//! Metrics: their names, how they follow from a batch's episodes, and the logs that each update appends them to.

mod names;
mod of_batch;
pub mod step_log;

pub use names::{Metrics, NAMES};
pub use of_batch::{of_batch, of_dropped, of_evals, of_validation, peak_memory_mb, summary};
