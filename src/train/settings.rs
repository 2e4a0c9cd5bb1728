//! The part of a configuration that the weight update depends on.

use super::prepare::Limits;
use crate::config::schema::{Ajet, Engine, TrainerCommon};

/// Settings of a trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSettings {
    /// `ajet.trainer_common`: advantage, loss and optimizer.
    pub common: TrainerCommon,
    /// `ajet.engine`: threads, kernels and type of the computation.
    pub engine: Engine,
    /// Lengths and filters of rows.
    pub limits: Limits,
    /// Maximum number of tokens of a response.
    pub response_limit: usize,
    /// Temperature at which the sampled log-probabilities were computed.
    pub temperature: f64,
}

impl From<&Ajet> for TrainSettings {
    fn from(config: &Ajet) -> Self {
        let row_tokens = config.max_row_len();
        Self {
            common: TrainerCommon {
                importance_sampling: config.importance_sampling(),
                ..config.trainer_common.clone()
            },
            engine: config.engine.clone(),
            limits: Limits {
                row_tokens: config
                    .rollout
                    .max_model_len
                    .map_or(row_tokens, |limit| limit.min(row_tokens)),
                mask_truncated: config.trainer_common.mask_truncated,
            },
            response_limit: config.data.max_response_length,
            // Greedy answers are scored at 1, as they are reported.
            temperature: match config.rollout.temperature {
                0.0 => 1.0,
                temperature => temperature,
            },
        }
    }
}
