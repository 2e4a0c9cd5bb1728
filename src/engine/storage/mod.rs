//! What the engine keeps on disk: checkpoints, trajectories, exports, and the lock on the experiment's directory.

pub mod append_file;
pub mod checkpoint;
pub mod durable;
pub mod export;
pub mod lock;
pub mod trajectories;
