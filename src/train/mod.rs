//! The weight update: advantage, loss, optimizer, packing and the trainer that joins them.

pub mod adamw;
mod adamw_groups;
pub mod advantage;
pub mod aggregate;
pub mod backprop;
pub mod bench;
pub mod episode;
pub mod error;
pub mod gradients;
pub mod importance;
pub mod kl;
pub mod memory;
pub mod mini_batch;
pub mod objective;
pub mod overlong;
pub mod packing;
pub mod policy_loss;
pub mod prepare;
pub mod recompute;
pub mod report;
pub mod reward;
pub mod schedule;
pub mod state;
pub mod trainer;

pub use adamw::AdamW;
pub use episode::TrainEpisode;
pub use error::TrainError;
pub use gradients::Gradients;
pub use report::{Untrained, UpdateReport};
pub use trainer::Trainer;
