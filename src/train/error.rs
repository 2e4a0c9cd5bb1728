//! What can go wrong in a weight update.

use crate::model::ModelError;

/// An error of the train layer.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<candle_core::Error> for TrainError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

/// The train layer's result.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;
