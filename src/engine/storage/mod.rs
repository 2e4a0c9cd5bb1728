//! Files of the engine: checkpoints, trajectories, exports, and the lock of the experiment directory.
//!
//! [`checkpoint`] writes checkpoints and the files `latest` and `best` that name them, [`trajectories`] the transcripts,
//! [`export`] models for other programs. [`durable`] is how a file survives a power failure; [`append_file`] and
//! [`bounded_log`] are files of lines.

pub mod append_file;
pub mod bounded_log;
pub mod checkpoint;
pub mod durable;
pub mod export;
pub mod lock;
pub mod trajectories;
