//! Errors of sampling.

use crate::model::ModelError;
use crate::model::memory::is_out_of_memory;

/// An error of the sampler. Messages are for the user.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The prompt is empty.
    #[error("the prompt contains no tokens")]
    EmptyPrompt,
    /// A token id is outside the vocabulary.
    #[error("the prompt contains token id {token}, but the largest id in the model's vocabulary is {}", vocab_size - 1)]
    UnknownToken {
        /// The first such token id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Prompt and answer exceed the context or the cache.
    #[error(
        "prompt ({prompt} tokens) plus max_tokens ({max_tokens}) exceed the limit of {limit} tokens\n\
         hint: send a shorter prompt or a smaller max_tokens, or raise ajet.rollout.max_model_len"
    )]
    TooLong {
        /// Number of prompt tokens.
        prompt: usize,
        /// Requested maximum of sampled tokens.
        max_tokens: usize,
        /// Maximum of both together.
        limit: usize,
    },
    /// A sampling parameter is out of range.
    #[error("{name} must be {allowed}, got {given}")]
    Parameter {
        /// Name of the parameter.
        name: &'static str,
        /// Given value.
        given: String,
        /// Allowed values.
        allowed: &'static str,
    },
    /// Two requests have the same id.
    #[error("duplicate request id {0}")]
    DuplicateId(u64),
    /// The cache is smaller than one sequence of maximum length.
    #[error(
        "the KV cache has {tokens} tokens, but one sequence may need {needed}\n\
         hint: lower ajet.rollout.max_model_len ({token_bytes} bytes per token), or on a GPU raise \
         ajet.rollout.gpu_memory_utilization"
    )]
    CacheTooSmall {
        /// Cache size in tokens.
        tokens: usize,
        /// Maximum length of a sequence.
        needed: usize,
        /// Cache bytes per token.
        token_bytes: usize,
    },
    /// Not enough memory for a single token.
    #[error(
        "out of memory while computing a single token: {0}\n\
         hint: lower ajet.rollout.gpu_memory_utilization, which shrinks the caches, or ajet.rollout.max_model_len"
    )]
    NoMemory(Box<InferenceError>),
    /// Sampling in bf16 or int8 differs from f32 training, without importance sampling to correct it.
    #[error(
        "ajet.engine.dtype bf16 and ajet.rollout.quantization int8 sample with rounded weights on a CPU, while training \
         computes in f32\n\
         hint: set ajet.trainer_common.importance_sampling.mode to auto, token or sequence to correct for it, or dtype to \
         f32 and quantization to none"
    )]
    Uncorrected,
    /// Quantised weights need the CPU kernels.
    #[error(
        "ajet.rollout.quantization int8 needs a CPU and its kernels, but this engine computes on {0} without them\n\
         hint: set ajet.rollout.quantization to none, or ajet.engine.device to cpu and ajet.engine.kernels to auto"
    )]
    Unquantized(String),
    /// Plain kernels do not support bf16 on the CPU.
    #[error(
        "ajet.engine.kernels plain computes in f32 on a CPU, but ajet.engine.dtype is bf16\n\
         hint: set ajet.engine.kernels to auto, or ajet.engine.dtype to f32"
    )]
    PlainBf16,
    /// The model layer failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor operation failed (mostly: out of memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The sampler's result.
pub type Result<T, E = InferenceError> = std::result::Result<T, E>;

impl InferenceError {
    /// Returns whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Model(ModelError::Tensor(error)) | Self::Tensor(error) => is_out_of_memory(error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let out_of_memory = || candle_core::Error::Msg("out of memory".into());
        insta::assert_snapshot!(messages!(InferenceError:
            InferenceError::EmptyPrompt => InferenceError::EmptyPrompt,
            InferenceError::UnknownToken { .. } => InferenceError::UnknownToken { token: 50_000, vocab_size: 49_152 },
            InferenceError::TooLong { .. } => InferenceError::TooLong { prompt: 900, max_tokens: 200, limit: 1024 },
            InferenceError::Parameter { .. } => InferenceError::Parameter {
                name: "temperature",
                given: "-1".into(),
                allowed: "at least 0",
            },
            InferenceError::DuplicateId(_) => InferenceError::DuplicateId(7),
            InferenceError::CacheTooSmall { .. } => InferenceError::CacheTooSmall {
                tokens: 1024,
                needed: 4096,
                token_bytes: 12_288,
            },
            InferenceError::NoMemory(_) => InferenceError::NoMemory(Box::new(InferenceError::Tensor(out_of_memory()))),
            InferenceError::Uncorrected => InferenceError::Uncorrected,
            InferenceError::Unquantized(_) => InferenceError::Unquantized("cuda:0".into()),
            InferenceError::PlainBf16 => InferenceError::PlainBf16,
            InferenceError::Model(_) => InferenceError::Model(ModelError::Tensors("missing tensor `lm_head.weight`".into())),
            InferenceError::Tensor(_) => InferenceError::Tensor(out_of_memory()),
        ));
    }
}
