//! Metrics: names, computation from a batch's episodes, and the logs to which each update appends them.

mod compute;
mod names;
pub mod step_log;
mod verl;

pub use compute::{batch_metrics, dropped_metrics, eval_metrics, summary, validation_metrics};
pub use names::{Metrics, NAMES};
pub use verl::verl_metrics;
