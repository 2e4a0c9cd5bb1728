//! The weight update: advantage, loss, optimizer, packing and the trainer that joins them.
//!
//! [`trainer`] goes through an update: [`prepare`] sorts, cuts and filters the episodes' rows, [`advantage`] compares
//! their rewards, [`mini_batch`] splits the batch into optimizer steps and [`packing`] each step into micro-batches.
//! [`backprop`] runs forward and backward passes, [`loss`] gives their gradients by log-probability (with the KL terms of
//! [`loss::kl`]), [`gradients`] adds them up and [`optim`] changes the weights. `ranks` shares an update between
//! processes; [`state`] saves what the next update depends on.

pub mod advantage;
pub mod backprop;
pub mod bench;
mod constraints;
pub mod episode;
pub mod error;
mod expert_load;
pub mod gradients;
pub mod loss;
pub mod mini_batch;
pub mod optim;
pub mod packing;
pub mod prepare;
pub mod ranks;
pub mod report;
pub mod settings;
pub mod state;
pub mod trainer;

pub use episode::TrainEpisode;
pub use error::TrainError;
pub use gradients::Gradients;
pub use optim::adamw::AdamW;
pub use report::{Untrained, UpdateReport};
pub use settings::TrainSettings;
pub use trainer::Trainer;
