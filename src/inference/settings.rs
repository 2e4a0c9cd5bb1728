//! The part of a configuration that sampling depends on.

use crate::config::schema::{Ajet, Engine, ImportanceMode, Quantization};

/// Settings of a sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// `ajet.engine`: threads, kernels and type of the computation.
    pub engine: Engine,
    /// `ajet.rollout.quantization`: what weights are rounded to.
    pub quantization: Quantization,
    /// Whether the loss corrects the difference between the sampler's log-probabilities and the trainer's.
    pub corrected: bool,
    /// Maximum number of sequences in a batch.
    pub max_num_seqs: usize,
    /// Maximum number of tokens of a prompt and its answer together.
    pub max_model_len: usize,
    /// Share of a GPU's memory that this process may use.
    pub gpu_memory_utilization: f64,
}

impl From<&Ajet> for SamplingSettings {
    fn from(config: &Ajet) -> Self {
        Self {
            engine: config.engine.clone(),
            quantization: config.rollout.quantization,
            corrected: config.importance_sampling().mode != ImportanceMode::Off,
            max_num_seqs: config.rollout.max_num_seqs,
            max_model_len: config.max_model_len(),
            gpu_memory_utilization: config.rollout.gpu_memory_utilization,
        }
    }
}
