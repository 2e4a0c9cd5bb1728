//! How fast a model samples on this machine, and how far that is from what the machine can do.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::error::Result;
use super::request::{Bias, SampleEvent, SampleRequest, SamplingParams};
use super::scheduler::Scheduler;
use crate::config::Ajet;
use crate::config::schema::Dtype;
use crate::model::kernels::{Pool, Precision, ceilings};
use crate::model::{ModelConfig, Trainable, Weights, device, load};

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Requests sampled together, one measurement each.
    pub batches: Vec<usize>,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens sampled for each.
    pub tokens: usize,
    /// Requests that share a prompt, as the repeats of a task do.
    pub group: usize,
}

/// Side of the matrices that a GPU multiplies to show what it can do, and how often: 1.1 TFLOP a product.
const PRODUCT_SIDE: usize = 8192;
/// Numbers that it copies to show what its memory can give: 512 MB in bf16, more than any card's cache.
const COPIED: usize = 256 << 20;
/// Repeats of either.
const REPEATS: usize = 10;

/// What the machine can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    /// Read from memory by all threads; on a GPU read and written.
    pub memory_bytes_per_s: f64,
    /// Multiply-adds in the weights' type, counted as two.
    pub arithmetic_flops: f64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests sampled together.
    pub batch: usize,
    /// Sampled tokens a second in all, after every prompt is in the cache.
    pub decode_tokens_per_s: f64,
    /// Prompt tokens a second in all, those of shared prompts counted for each, until every request has its first token.
    pub prefill_tokens_per_s: f64,
    /// Mean time to the first token, all requests arriving at once.
    pub ttft_ms: f64,
    /// Bytes of weights and caches read while decoding, against what the memory could give in that time.
    pub memory_ceiling_share: f64,
    /// Operations of the prompts' matrix products, against what the cores could do in that time.
    pub arithmetic_ceiling_share: f64,
    /// Most memory that the process held so far; 0 where the system does not say.
    pub peak_rss_mb: f64,
    /// Memory of the GPU that is taken, by whomever; 0 on a CPU.
    pub gpu_mb: f64,
}

/// Loads a model to measure on a device that [`device::choose`] knows: f32 on a CPU, bf16 on a GPU. `progress` hears
/// what is being done and which part of it.
///
/// # Errors
/// The model is not there or not supported; the device is not there.
pub fn load_model(path: &str, device: &str, progress: &mut dyn FnMut(f32, &str)) -> Result<Weights> {
    let device = device::choose(device)?;
    let model = load::load(path, &device, device::dtype(Dtype::Auto, &device), progress)?;
    Ok(Weights::new(model.config, model.tensors, &Trainable::Nothing)?)
}

fn precision(ajet: &Ajet) -> Precision {
    match ajet.engine.dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::Auto | Dtype::F32 => Precision::F32,
    }
}

/// Measures the ceilings of where the weights are: of a CPU with as many threads, and in the
/// type, that the configuration says.
///
/// # Errors
/// Out of memory.
pub fn ceilings(weights: &Weights, ajet: &Ajet) -> Result<Ceilings> {
    match weights.device() {
        Device::Cpu => Ok(cpu_ceilings(ajet)),
        device => device_ceilings(&device, weights.dtype()),
    }
}

/// A large copy and a large product, each after a first one that loads its kernel.
fn device_ceilings(device: &Device, dtype: DType) -> Result<Ceilings> {
    let timed = |work: &dyn Fn() -> candle_core::Result<Tensor>| -> Result<f64> {
        work()?;
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..REPEATS {
            work()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / REPEATS as f64)
    };
    let copied = Tensor::zeros(COPIED, dtype, device)?;
    // Not of zeros, which take less power, and so time.
    let matrix = Tensor::randn(0f32, 1.0, (PRODUCT_SIDE, PRODUCT_SIDE), device)?.to_dtype(dtype)?;
    let bytes = (2 * COPIED * dtype.size_in_bytes()) as f64;
    let operations = 2.0 * (PRODUCT_SIDE as f64).powi(3);
    Ok(Ceilings {
        memory_bytes_per_s: bytes / timed(&|| copied.copy())?,
        arithmetic_flops: operations / timed(&|| matrix.matmul(&matrix))?,
    })
}

/// Memory of the weights' GPU that is taken, in MB; 0 on a CPU, or where the driver does not say.
pub fn gpu_mb(weights: &Weights) -> f64 {
    let memory = device::memory(&weights.device()).ok().flatten();
    memory.map_or(0.0, |memory| (memory.total - memory.free) as f64 / 1e6)
}

fn cpu_ceilings(ajet: &Ajet) -> Ceilings {
    let pool = Pool::new(Pool::threads_for(ajet.engine.threads));
    Ceilings {
        memory_bytes_per_s: ceilings::memory_bandwidth(&pool),
        arithmetic_flops: ceilings::arithmetic(&pool, precision(ajet)),
    }
}

/// Takes the measurements one after the other; `each` hears of every one as it is done.
///
/// # Errors
/// The model cannot be scheduled, or a request failed.
pub fn run(
    weights: &Weights,
    ajet: &Ajet,
    plan: &Plan,
    ceilings: Ceilings,
    mut each: impl FnMut(Measurement),
) -> Result<()> {
    let mut ajet = ajet.clone();
    ajet.rollout.max_num_seqs = plan.batches.iter().copied().max().unwrap_or(1);
    ajet.rollout.max_model_len = Some(plan.prompt + plan.tokens);
    let mut scheduler = Scheduler::new(weights, &ajet)?;
    // Wakes every thread once.
    let few = Plan {
        tokens: 4.min(plan.tokens),
        ..plan.clone()
    };
    measure(&mut scheduler, &weights.config, &few, 1)?;
    for &batch in &plan.batches {
        let timing = measure(&mut scheduler, &weights.config, plan, batch)?;
        each(Measurement::of(&timing, weights, &ajet, plan, batch, ceilings));
    }
    Ok(())
}

impl Measurement {
    fn of(timing: &Timing, weights: &Weights, ajet: &Ajet, plan: &Plan, batch: usize, ceilings: Ceilings) -> Self {
        let config = &weights.config;
        let (weight_bytes, cache_bytes) = match weights.device() {
            Device::Cpu => (precision(ajet).bytes(), size_of::<f32>()),
            _ => (weights.dtype().size_in_bytes(), weights.dtype().size_in_bytes()),
        };
        let (prefill, decode) = (timing.prefill.as_secs_f64(), timing.decode.as_secs_f64());
        let steps = (plan.tokens - 1) as f64;
        let prompt_tokens = (batch * plan.prompt) as f64;
        let layers: usize = config
            .tensor_shapes()
            .iter()
            .filter(|(name, _)| name.contains(".layers."))
            .map(elements)
            .sum();
        let head = config.vocab_size * config.hidden_size;
        let position = 2 * config.num_layers * config.num_kv_heads * config.head_dim;
        let cached = batch as f64 * (plan.prompt as f64 + steps / 2.0) * position as f64;
        let step_bytes = ((layers + head) * weight_bytes) as f64 + cached * cache_bytes as f64;
        Self {
            batch,
            decode_tokens_per_s: steps * batch as f64 / decode,
            prefill_tokens_per_s: prompt_tokens / prefill,
            ttft_ms: timing.first_token.as_secs_f64() * 1e3,
            memory_ceiling_share: steps * step_bytes / decode / ceilings.memory_bytes_per_s,
            arithmetic_ceiling_share: 2.0 * layers as f64 * prompt_tokens / prefill / ceilings.arithmetic_flops,
            peak_rss_mb: peak_rss_mb().unwrap_or(0.0),
            gpu_mb: gpu_mb(weights),
        }
    }
}

fn elements((_, shape): &(String, Vec<usize>)) -> usize {
    shape.iter().product()
}

/// Most memory that this process held so far, where the system says (`VmHWM`).
pub fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
}

struct Timing {
    /// Until the last request's first token.
    prefill: Duration,
    /// From then on.
    decode: Duration,
    /// The mean.
    first_token: Duration,
}

/// Samples `batch` requests, each group of a random prompt.
fn measure(scheduler: &mut Scheduler, config: &ModelConfig, plan: &Plan, batch: usize) -> Result<Timing> {
    scheduler.release_caches();
    let mut rng = ChaCha8Rng::seed_from_u64(batch as u64);
    let vocabulary = 0..config.vocab_size as u32;
    let mut prompt = || -> Vec<u32> { (0..plan.prompt).map(|_| rng.random_range(vocabulary.clone())).collect() };
    let prompts: Vec<_> = (0..batch.div_ceil(plan.group)).map(|_| prompt()).collect();
    let start = Instant::now();
    let mut answers: Vec<(UnboundedReceiver<SampleEvent>, Option<Duration>)> = (0..batch)
        .map(|id| {
            let (events, receiver) = unbounded_channel();
            let prompt = prompts[id / plan.group].clone();
            let (id, group) = (id as u64, id.to_string());
            scheduler.submit(SampleRequest {
                id,
                group,
                prompt,
                params: params(id, plan.tokens),
                given: vec![],
                stop: None,
                events,
            });
            (receiver, None)
        })
        .collect();
    let mut prefill = None;
    while !scheduler.is_idle() {
        scheduler.step()?;
        let now = start.elapsed();
        for (events, first) in &mut answers {
            while let Ok(event) = events.try_recv() {
                if let SampleEvent::Token(_) = event {
                    first.get_or_insert(now);
                }
            }
        }
        if answers.iter().all(|(_, first)| first.is_some()) {
            prefill.get_or_insert(now);
        }
    }
    let prefill = prefill.unwrap_or_default();
    let first_tokens: Duration = answers.iter().filter_map(|(_, first)| *first).sum();
    Ok(Timing {
        prefill,
        decode: start.elapsed() - prefill,
        first_token: first_tokens / batch as u32,
    })
}

fn params(seed: u64, max_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: None,
        min_p: 0.0,
        bias: Bias::default(),
        seed,
        max_tokens,
        stop_token_ids: vec![],
        top_logprobs: 0,
    }
}
