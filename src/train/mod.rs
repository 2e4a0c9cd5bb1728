//! The weight update: advantage, loss, optimizer, packing and the trainer that joins them.

pub mod episode;

pub use episode::TrainEpisode;
