//! Errors of weight updates.

use std::path::PathBuf;

use crate::collective::CollectiveError;
use crate::grammar::GrammarError;
use crate::model::ModelError;
use crate::model::memory::is_out_of_memory;

/// An error of the train layer.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// No parameter is trainable.
    #[error("the model has no trainable parameters\nhint: set ajet.lora.lora_rank above 0, or train all parameters")]
    NothingToTrain,
    /// Unknown KL estimator.
    #[error("{key} must be kl, mse or low_var_kl, optionally with a trailing +, got `{given}`")]
    KlType {
        /// Configuration key.
        key: &'static str,
        /// Given value.
        given: String,
    },
    /// A saved trainer state cannot be written or read.
    #[error("{path}: {reason}")]
    State {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The saved trainer state belongs to another model or LoRA shape.
    #[error(
        "the saved trainer state has {saved} trained parameters, but this run trains {own}\nhint: resume with the model \
         and the ajet.lora settings of the experiment's start, or set another experiment_name"
    )]
    OtherModel {
        /// Trained parameters of the saved state.
        saved: u64,
        /// Trained parameters of this run.
        own: u64,
    },
    /// Not enough memory for the smallest micro-batch.
    #[error(
        "out of memory with a single row per micro-batch: {0}\nhint: set ajet.trainer_common.recompute to on, shorten rows with \
         ajet.data.max_response_length, set use_kl_loss to false, or train adapters with ajet.lora.lora_rank"
    )]
    NoMemory(Box<TrainError>),
    /// The compute threads cannot be started.
    #[error("cannot start the compute threads: {0}")]
    Threads(rayon::ThreadPoolBuildError),
    /// A row does not match its grammar.
    #[error("cannot replay the grammar of {row}: {error}")]
    Grammar {
        /// `task/episode`.
        row: String,
        /// Error.
        error: GrammarError,
    },
    /// A row has a grammar, but this trainer has no tokenizer.
    #[error("the batch has answers that a grammar constrained, but the trainer has no tokenizer")]
    NoGrammars,
    /// Another rank ran out of memory.
    #[error("rank {rank} ran out of memory")]
    RankOutOfMemory {
        /// The rank.
        rank: usize,
    },
    /// The communication with other ranks failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl TrainError {
    /// Returns whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::RankOutOfMemory { .. } => true,
            Self::Model(ModelError::Tensor(error)) => is_out_of_memory(error),
            _ => false,
        }
    }

    /// Adds a hint to an out-of-memory error of the smallest possible attempt.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let out_of_memory = || TrainError::Model(ModelError::Tensor(candle_core::Error::Msg("out of memory".into())));
        insta::assert_snapshot!(messages!(TrainError:
            TrainError::NothingToTrain => TrainError::NothingToTrain,
            TrainError::KlType { .. } => TrainError::KlType {
                key: "ajet.trainer_common.kl_loss_type",
                given: "k4".into(),
            },
            TrainError::State { .. } => TrainError::State {
                path: "/runs/a/trainer/optimizer.safetensors".into(),
                reason: "unexpected end of file".into(),
            },
            TrainError::OtherModel { .. } => TrainError::OtherModel { saved: 1024, own: 4096 },
            TrainError::NoMemory(_) => TrainError::NoMemory(Box::new(out_of_memory())),
            TrainError::Threads(_) => {
                let twice = || rayon::ThreadPoolBuilder::new().build_global();
                let _ = twice();
                TrainError::Threads(twice().unwrap_err())
            },
            TrainError::Grammar { .. } => TrainError::Grammar {
                row: "task/episode".into(),
                error: GrammarError::Token(7),
            },
            TrainError::NoGrammars => TrainError::NoGrammars,
            TrainError::RankOutOfMemory { .. } => TrainError::RankOutOfMemory { rank: 1 },
            TrainError::Collective(_) => TrainError::Collective(CollectiveError::Gone { rank: 1 }),
            TrainError::Model(_) => out_of_memory(),
        ));
    }
}
