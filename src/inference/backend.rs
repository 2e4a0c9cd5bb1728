//! Selects the sampling backend of a device.

use std::sync::Arc;

use super::error::{InferenceError, Result};
use super::forward::{BLOCK_TOKENS, Forward};
use super::forward_cpu::CpuForward;
use super::forward_plain::PlainForward;
use super::scheduler::{Limits, Scheduler};
use super::settings::SamplingSettings;
use crate::config::schema::{Dtype, Kernels, Quantization};
use crate::model::kernels::{Pool, Precision};
use crate::model::{Weights, compute_pool, device, memory};

/// Maximum number of prompt tokens per step on a CPU: enough for the kernels' full speed.
const PREFILL_TOKENS: usize = 256;
/// The same for a GPU, which reads each weight once per step: with 2,048 rows, a bf16 product takes about as long as
/// reading the weights on cards from A100 to H200 (150 to 300 operations per byte), times a small factor.
const GPU_PREFILL_TOKENS: usize = 2048;
/// Share of the available memory that caches may use on a CPU, but at least one sequence.
pub const MEMORY_SHARE: f64 = 0.25;
/// Assumed available memory if the system does not report it.
const ASSUMED_MEMORY: usize = 8 << 30;

impl Scheduler {
    /// Creates a sampler for the weights with the configured threads, batch size and context length. On a GPU its
    /// caches use what `gpu_memory_utilization` leaves now, so everything else that stays in memory must be allocated
    /// before.
    ///
    /// # Errors
    /// Fails if out of memory, if the cache cannot hold one sequence, for an `AJET_ISA` that the machine lacks, or for
    /// bf16 on the CPU without importance sampling correction.
    pub fn new(weights: &Weights, settings: impl Into<SamplingSettings>) -> Result<Self> {
        let settings = settings.into();
        let pool = compute_pool(&settings.engine)?;
        Self::on_pool(weights, settings, pool)
    }

    /// As [`new`](Self::new), on threads that others use too, such as the trainer's.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on_pool(weights: &Weights, settings: impl Into<SamplingSettings>, pool: Arc<Pool>) -> Result<Self> {
        let settings = settings.into();
        let on_kernels = weights.device().is_cpu() && settings.engine.kernels == Kernels::Auto;
        let forward: Box<dyn Forward> = match on_kernels {
            true => Box::new(CpuForward::new(weights, pool.clone(), precision(&settings)?)?),
            false if settings.quantization != Quantization::None => {
                return Err(InferenceError::Unquantized(device::name(&weights.device())));
            }
            false if weights.device().is_cpu() && settings.engine.dtype == Dtype::Bf16 => {
                return Err(InferenceError::PlainBf16);
            }
            false => Box::new(PlainForward::new(weights)?),
        };
        let config = &weights.config;
        let max_model_len = settings.max_model_len.min(config.max_position_embeddings);
        let one_sequence = (max_model_len / BLOCK_TOKENS + 1) * forward.block_bytes();
        let cache_bytes = match device::memory(&weights.device())? {
            Some(memory) => memory.left_of(settings.gpu_memory_utilization),
            None => ((memory::available().unwrap_or(ASSUMED_MEMORY) as f64 * MEMORY_SHARE) as usize).max(one_sequence),
        };
        let prefill = match weights.device().is_cpu() {
            true => PREFILL_TOKENS,
            false => GPU_PREFILL_TOKENS,
        };
        let limits = Limits {
            max_num_seqs: settings.max_num_seqs,
            max_model_len,
            step_tokens: settings.max_num_seqs + prefill,
            cache_bytes,
            vocab_size: config.vocab_size,
        };
        Self::with_forward(forward, pool, limits)
    }
}

/// Returns the precision in which the CPU kernels store the weights of layers.
fn precision(settings: &SamplingSettings) -> Result<Precision> {
    let precision = match settings.quantization {
        Quantization::None => compute_pool::precision(settings.engine.dtype),
        Quantization::Int8 => Precision::Int8,
    };
    match precision {
        Precision::Bf16 | Precision::Int8 if !settings.corrected => Err(InferenceError::Uncorrected),
        precision => Ok(precision),
    }
}
