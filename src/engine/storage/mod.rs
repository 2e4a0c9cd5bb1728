//! Files of the engine: checkpoints, trajectories, exports, and the lock of the experiment directory.

pub mod append_file;
pub mod bounded_log;
pub mod checkpoint;
pub mod durable;
pub mod export;
pub mod lock;
pub mod trajectories;
