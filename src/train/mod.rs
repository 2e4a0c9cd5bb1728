//! The weight update: advantage, loss, optimizer, packing and the trainer that joins them.

pub mod adamw;
pub mod episode;
pub mod error;
pub mod gradients;
pub mod schedule;

pub use adamw::AdamW;
pub use episode::TrainEpisode;
pub use error::TrainError;
pub use gradients::Gradients;
