//! What computes on which device, chosen in one place.

use std::sync::Arc;

use super::error::{InferenceError, Result};
use super::forward::{BLOCK_TOKENS, Forward};
use super::forward_cpu::CpuForward;
use super::forward_plain::PlainForward;
use super::scheduler::{Limits, Scheduler};
use crate::config::Ajet;
use crate::config::schema::{Dtype, ImportanceMode, Kernels};
use crate::model::kernels::{Pool, Precision};
use crate::model::{Weights, device, memory};

/// Tokens computed in a step beside the decoding ones: enough for the CPU kernels' full speed.
const PREFILL_TOKENS: usize = 256;
/// Of a GPU, which reads each weight once a step: at 2,048 rows a product of bf16 computes about as long as it reads on
/// cards from A100 to H200 (150 to 300 operations a byte), several times over.
const GPU_PREFILL_TOKENS: usize = 2048;
/// On a CPU caches may take this share of the memory that is available now, and at least one sequence.
const MEMORY_SHARE: f64 = 0.25;
/// Taken to be available where the system does not say.
const ASSUMED_MEMORY: usize = 8 << 30;

impl Scheduler {
    /// A sampler of the weights as the configuration says: threads, batch size, context length. On a GPU its caches get
    /// what `gpu_memory_utilization` leaves now, so whatever else stays in memory is to be there before.
    ///
    /// # Errors
    /// Out of memory, a cache that has no room for one sequence, or bf16 on the CPU without importance correction.
    pub fn new(weights: &Weights, ajet: &Ajet) -> Result<Self> {
        let pool = Arc::new(Pool::new(Pool::threads_for(ajet.engine.threads)));
        let on_kernels = weights.device().is_cpu() && ajet.engine.kernels == Kernels::Auto;
        let forward: Box<dyn Forward> = match on_kernels {
            true => Box::new(CpuForward::new(weights, pool.clone(), precision(ajet)?)?),
            false if weights.device().is_cpu() && ajet.engine.dtype == Dtype::Bf16 => {
                return Err(InferenceError::PlainBf16);
            }
            false => Box::new(PlainForward::new(weights)?),
        };
        let config = &weights.config;
        let max_model_len = ajet.max_model_len().min(config.max_position_embeddings);
        let one_sequence = (max_model_len / BLOCK_TOKENS + 1) * forward.block_bytes();
        let cache_bytes = match device::memory(&weights.device())? {
            Some(memory) => memory.left_of(ajet.rollout.gpu_memory_utilization),
            None => ((memory::available().unwrap_or(ASSUMED_MEMORY) as f64 * MEMORY_SHARE) as usize).max(one_sequence),
        };
        let prefill = match weights.device().is_cpu() {
            true => PREFILL_TOKENS,
            false => GPU_PREFILL_TOKENS,
        };
        let limits = Limits {
            max_num_seqs: ajet.rollout.max_num_seqs,
            max_model_len,
            step_tokens: ajet.rollout.max_num_seqs + prefill,
            cache_bytes,
            vocab_size: config.vocab_size,
        };
        Self::with_forward(forward, pool, limits)
    }
}

/// What the CPU kernels store weights as.
fn precision(ajet: &Ajet) -> Result<Precision> {
    let corrected = ajet.trainer_common.importance_sampling.mode != ImportanceMode::Off;
    match ajet.engine.dtype {
        Dtype::Auto | Dtype::F32 => Ok(Precision::F32),
        Dtype::Bf16 if corrected => Ok(Precision::Bf16),
        Dtype::Bf16 => Err(InferenceError::Uncorrected),
    }
}
