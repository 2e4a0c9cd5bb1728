//! What can go wrong while sampling.

use crate::model::ModelError;
use crate::model::memory::is_out_of_memory;

/// An error of the sampler. Messages are sentences for the user.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// A request without a prompt.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token that the model does not know.
    #[error("the prompt has the token id {token}, the model's vocabulary ends at {}", vocab_size - 1)]
    UnknownToken {
        /// The first such token.
        token: u32,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// Prompt and answer are longer than the context or the cache.
    #[error(
        "prompt ({prompt} tokens) and answer (max_tokens {max_tokens}) do not fit: {limit} tokens are allowed\n\
         hint: send a shorter prompt or a smaller max_tokens, or raise ajet.rollout.max_model_len"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens to sample.
        max_tokens: usize,
        /// Most tokens of both.
        limit: usize,
    },
    /// A sampling parameter outside its range.
    #[error("{name} is {given}, allowed is {allowed}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// Its value.
        given: String,
        /// Its range.
        allowed: &'static str,
    },
    /// Two requests with one id.
    #[error("a request with the id {0} is being sampled already")]
    DuplicateId(u64),
    /// The memory for caches holds less than one sequence of full length.
    #[error(
        "the cache has room for {tokens} tokens, one sequence may have {needed}\n\
         hint: lower ajet.rollout.max_model_len (each token takes {token_bytes} bytes), or on a GPU raise \
         ajet.rollout.gpu_memory_utilization"
    )]
    CacheTooSmall {
        /// Room, in tokens.
        tokens: usize,
        /// Longest sequence.
        needed: usize,
        /// Cache bytes of a token.
        token_bytes: usize,
    },
    /// Memory did not suffice for a single token.
    #[error(
        "memory ran out while one token was computed: {0}\n\
         hint: lower ajet.rollout.gpu_memory_utilization, so that the caches leave more of it, or ajet.rollout.max_model_len"
    )]
    NoMemory(Box<InferenceError>),
    /// bf16 weights would sample what the trainer, which computes in f32, does not account for.
    #[error(
        "ajet.engine.dtype: bf16 samples with rounded weights on a CPU, while training computes in f32\n\
         hint: set ajet.trainer_common.importance_sampling.mode to token or sequence, which corrects for it, or dtype to f32"
    )]
    Uncorrected,
    /// Plain kernels have no bf16 on the CPU.
    #[error(
        "ajet.engine.kernels: plain computes in f32 on a CPU, but ajet.engine.dtype is bf16\n\
         hint: set ajet.engine.kernels to auto, or ajet.engine.dtype to f32"
    )]
    PlainBf16,
    /// The model layer failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor operation failed (most often: out of memory).
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The sampler's result.
pub type Result<T, E = InferenceError> = std::result::Result<T, E>;

impl InferenceError {
    /// Whether less would have fitted into memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Model(ModelError::Tensor(error)) | Self::Tensor(error) => is_out_of_memory(error),
            _ => false,
        }
    }

    /// Says what to do where memory ran out for the least that could be tried.
    pub(super) fn or_no_memory(self) -> Self {
        match self.is_out_of_memory() {
            true => Self::NoMemory(Box::new(self)),
            false => self,
        }
    }
}
