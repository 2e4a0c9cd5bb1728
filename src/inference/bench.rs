//! Benchmark of sampling, compared with the limits of the machine.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::error::Result;
use super::request::{Bias, SampleEvent, SampleRequest, SamplingParams};
use super::scheduler::Scheduler;
use crate::config::Ajet;
use crate::config::schema::{Dtype, Quantization};
use crate::grammar::{AnswerGrammar, Content, GrammarError, Grammars, Matcher, Reasoning};
use crate::model::kernels::{Precision, ceilings};
use crate::model::param::Param;
use crate::model::{ModelConfig, Trainable, Weights, compute_pool, device, load};

/// Parameters of the benchmark.
#[derive(Clone)]
pub struct Plan {
    /// Batch sizes, each measured separately.
    pub batches: Vec<usize>,
    /// Tokens per prompt.
    pub prompt: usize,
    /// Sampled tokens per request.
    pub tokens: usize,
    /// Number of requests that share a prompt, like the repeats of a task.
    pub group: usize,
    /// Grammar of all answers, which must be able to be as long as the tokens.
    pub grammar: Option<Matcher>,
}

/// Side of the matrices that a GPU multiplies to measure its arithmetic: 1.1 TFLOP per product.
const PRODUCT_SIDE: usize = 8192;
/// Numbers that a GPU copies to measure its memory: 512 MB in bf16, more than any card's cache.
const COPIED: usize = 256 << 20;
/// Minimum number of items of a measured list: more tokens than an answer has.
const LIST_ITEMS: usize = 1000;
/// Number of repeats of both.
const REPEATS: usize = 10;

/// Measured limits of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    /// Bytes per second read by all threads; on a GPU, read and written.
    pub memory_bytes_per_s: f64,
    /// Operations per second in the weights' type; a multiply-add counts as two.
    pub arithmetic_flops: f64,
}

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Batch size.
    pub batch: usize,
    /// Total sampled tokens per second, once all prompts are in the cache.
    pub decode_tokens_per_s: f64,
    /// Total prompt tokens per second until every request has its first token; tokens of shared prompts count for each.
    pub prefill_tokens_per_s: f64,
    /// Mean time to the first token when all requests arrive at once.
    pub ttft_ms: f64,
    /// Bytes of weights and caches read while decoding, as a share of the memory limit.
    pub memory_ceiling_share: f64,
    /// Operations of the prompts' matrix products and attention, as a share of the arithmetic limit.
    pub arithmetic_ceiling_share: f64,
    /// Peak memory of the process so far; 0 if the system does not report it.
    pub peak_rss_mb: f64,
    /// Used memory of the GPU, by all processes; 0 on a CPU.
    pub gpu_mb: f64,
}

/// A model to measure.
pub struct BenchModel {
    /// Its weights.
    pub weights: Weights,
    /// Grammars of its tokens.
    pub grammars: Grammars,
}

/// Loads a model on a device accepted by [`device::choose`]: f32 on a CPU, bf16 on a GPU, or a `.gguf` file's
/// matrices as they are. `progress` receives the current activity and its fraction.
///
/// # Errors
/// Fails if the model or device is missing or unsupported.
pub fn load_model(
    path: &str,
    device: &str,
    keep_quantized: bool,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<BenchModel> {
    let device = device::choose(device)?;
    let model = match keep_quantized {
        true => load::load_quantized(path, &device, progress)?,
        false => load::load(path, &device, device::dtype(Dtype::Auto, &device), progress)?,
    };
    let nothing = &Trainable::Nothing;
    Ok(BenchModel {
        weights: Weights::with_quantized(model.config, model.tensors, model.quantized, nothing)?,
        grammars: Grammars::new(model.tokenizer, &model.generation.eos_token_ids),
    })
}

/// Returns the grammar of a long list of objects with strings, numbers and choices, as a measured answer.
///
/// # Errors
/// Fails if the tokenizer does not support grammars.
pub fn list_grammar(grammars: &Grammars) -> std::result::Result<Matcher, GrammarError> {
    let item = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "count": {"type": "integer"},
            "kind": {"enum": ["animal", "plant", "stone"]},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "count", "kind", "notes"],
        "additionalProperties": false,
    });
    let grammar = AnswerGrammar {
        reasoning: Reasoning::None,
        content: Content::Json(json!({"type": "array", "items": item, "minItems": LIST_ITEMS})),
        calls: None,
    };
    grammars.matcher(&grammar.text())
}

/// Measures the limits of the weights' device; on a CPU, with the configured threads and type.
///
/// # Errors
/// Fails if out of memory.
pub fn ceilings(weights: &Weights, ajet: &Ajet) -> Result<Ceilings> {
    match weights.device() {
        Device::Cpu => cpu_ceilings(ajet),
        device => device_ceilings(&device, weights.dtype()),
    }
}

/// Measures a large copy and a large product, each after a first one that loads its kernel.
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
    // Not zeros, which need less power and therefore less time.
    let matrix = Tensor::randn(0f32, 1.0, (PRODUCT_SIDE, PRODUCT_SIDE), device)?.to_dtype(dtype)?;
    let bytes = (2 * COPIED * dtype.size_in_bytes()) as f64;
    let operations = 2.0 * (PRODUCT_SIDE as f64).powi(3);
    Ok(Ceilings {
        memory_bytes_per_s: bytes / timed(&|| copied.copy())?,
        arithmetic_flops: operations / timed(&|| matrix.matmul(&matrix))?,
    })
}

/// Returns the used memory of the weights' GPU in MB; 0 on a CPU, or if the driver does not report it.
pub fn gpu_mb(weights: &Weights) -> f64 {
    let memory = device::memory(&weights.device()).ok().flatten();
    memory.map_or(0.0, |memory| (memory.total - memory.free) as f64 / 1e6)
}

/// Measures the limits of this machine's CPU with the configured threads and type.
///
/// # Errors
/// Fails for an `AJET_ISA` that the machine lacks.
pub fn cpu_ceilings(ajet: &Ajet) -> Result<Ceilings> {
    let pool = compute_pool(&ajet.engine)?;
    Ok(Ceilings {
        memory_bytes_per_s: ceilings::memory_bandwidth(&pool),
        arithmetic_flops: ceilings::arithmetic(&pool, compute_pool::precision(ajet.engine.dtype)),
    })
}

/// Returns how matrix products are computed on the weights' device.
///
/// # Errors
/// Fails for an `AJET_ISA` that the machine lacks.
pub fn products(weights: &Weights, ajet: &Ajet) -> Result<String> {
    Ok(match weights.device() {
        Device::Cpu => {
            let products = compute_pool::describe(&*compute_pool(&ajet.engine)?, &ajet.engine);
            let kept = weights.describe_quantized();
            kept.map_or(products.clone(), |kept| format!("{products}; {kept}"))
        }
        device => format!("{} products with {}", weights.dtype().as_str(), device::name(&device)),
    })
}

/// Takes the measurements one after the other; `each` receives each result.
///
/// # Errors
/// Fails if the model cannot be scheduled or a request fails.
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
        let (layer_bytes, head_bytes, cache_bytes) = match weights.device() {
            Device::Cpu if ajet.rollout.quantization == Quantization::Int8 => {
                (Precision::Int8.bytes(), Precision::F32.bytes(), size_of::<f32>())
            }
            Device::Cpu => {
                let bytes = compute_pool::precision(ajet.engine.dtype).bytes();
                (bytes, bytes, size_of::<f32>())
            }
            _ => {
                let bytes = weights.dtype().size_in_bytes();
                (bytes, bytes, bytes)
            }
        };
        let (prefill, decode) = (timing.prefill.as_secs_f64(), timing.decode.as_secs_f64());
        let steps = (plan.tokens - 1) as f64;
        let prompt_tokens = (batch * plan.prompt) as f64;
        let in_layers = || weights.params.iter().filter(|(name, _)| name.contains(".layers."));
        let layers: usize = in_layers().map(|(_, param)| param.count()).sum();
        let bytes_of = |param: &Param, of_each: usize| match param {
            Param::Quantized(matrix) => matrix.bytes(),
            _ => param.count() * of_each,
        };
        let head = weights.params.get(weights.head_name());
        let weight_bytes = in_layers()
            .map(|(_, param)| bytes_of(param, layer_bytes))
            .sum::<usize>()
            + head.map_or(0, |head| bytes_of(head, head_bytes));
        // A token of the prompt sees half of it in the mean.
        let attention = config.attention_products(plan.prompt + 1) / 2;
        let cached = batch as f64 * (plan.prompt as f64 + steps / 2.0) * config.cached_numbers() as f64;
        let step_bytes = weight_bytes as f64 + cached * cache_bytes as f64;
        Self {
            batch,
            decode_tokens_per_s: steps * batch as f64 / decode,
            prefill_tokens_per_s: prompt_tokens / prefill,
            ttft_ms: timing.first_token.as_secs_f64() * 1e3,
            memory_ceiling_share: steps * step_bytes / decode / ceilings.memory_bytes_per_s,
            arithmetic_ceiling_share: 2.0 * (layers + attention) as f64 * prompt_tokens
                / prefill
                / ceilings.arithmetic_flops,
            peak_rss_mb: peak_rss_mb().unwrap_or(0.0),
            gpu_mb: gpu_mb(weights),
        }
    }
}

/// Returns the peak memory of this process, if the system reports it (`VmHWM`).
pub fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
}

struct Timing {
    /// Seconds until the last request's first token.
    prefill: Duration,
    /// Seconds from then on.
    decode: Duration,
    /// Mean seconds to the first token.
    first_token: Duration,
}

/// Samples `batch` requests; each group has a random prompt.
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
                forced_tokens: vec![],
                grammar: plan.grammar.clone(),
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
