//! What can go wrong in a weight update.

use std::path::PathBuf;

use crate::model::ModelError;
use crate::model::memory::is_out_of_memory;

/// An error of the train layer.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Neither the weights nor an adapter are trained.
    #[error("the model has no parameter to train\nhint: set ajet.lora.lora_rank above 0 or train all parameters")]
    NothingToTrain,
    /// A KL estimator that there is not.
    #[error("{key} is `{given}`; it can be kl, mse or low_var_kl, each also with a trailing +")]
    KlType {
        /// The configuration key.
        key: &'static str,
        /// Its value.
        given: String,
    },
    /// A saved trainer state that cannot be written or read.
    #[error("{path}: {reason}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A saved trainer state of another model or LoRA shape.
    #[error(
        "the saved trainer state is of {saved} trained parameters, this run trains {own}\nhint: resume with the model \
         and the ajet.lora settings that the experiment began with, or choose another experiment_name"
    )]
    OtherModel {
        /// Trained parameters of the saved state.
        saved: u64,
        /// Trained parameters now.
        own: u64,
    },
    /// Memory did not suffice for the smallest micro-batch.
    #[error(
        "memory ran out with one row at a time: {0}\nhint: set ajet.trainer_common.recompute to on, shorten rows with \
         ajet.data.max_response_length, set use_kl_loss to false, or train adapters with ajet.lora.lora_rank"
    )]
    NoMemory(Box<TrainError>),
    /// The threads that compute could not be started.
    #[error("the threads that compute could not be started: {0}")]
    Threads(rayon::ThreadPoolBuildError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl TrainError {
    /// Whether less would have fitted into memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Model(ModelError::Tensor(error)) if is_out_of_memory(error))
    }

    /// Says what to do where memory ran out for the least that could be tried.
    pub(super) fn or_no_memory(self) -> Self {
        match self.is_out_of_memory() {
            true => Self::NoMemory(Box::new(self)),
            false => self,
        }
    }
}

impl From<candle_core::Error> for TrainError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

/// The train layer's result.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;
