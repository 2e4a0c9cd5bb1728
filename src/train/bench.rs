//! Benchmark of training.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::episode::TrainEpisode;
use super::error::Result;
use super::trainer::Trainer;
use crate::config::ALL_LINEAR;
use crate::config::schema::{Ajet, Dtype, SingletonGroup};
use crate::model::lora::LoraConfig;
use crate::model::{ModelConfig, PassTokens, Trainable, Weights, device, load, load_quantized};
use crate::timeline::Row;

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Rows per update.
    pub rows: usize,
    /// Tokens per row.
    pub tokens: usize,
    /// Prompt tokens per row, at least 1; the others are trained on.
    pub prompt: usize,
    /// Rows per task, which share a prompt.
    pub group: usize,
    /// Number of updates; the fastest counts.
    pub repeats: usize,
}

/// Result of the fastest update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Number of rows.
    pub rows: usize,
    /// Tokens per row.
    pub tokens: usize,
    /// Seconds of the forward pass.
    pub forward_s: f64,
    /// Seconds of the backward pass.
    pub backward_s: f64,
    /// Seconds of clipping and optimizer.
    pub optimizer_s: f64,
    /// Seconds of scoring by the reference model.
    pub scoring_s: f64,
    /// Total tokens per second; tokens of shared prompts count for each row.
    pub tokens_per_s: f64,
    /// Computed tokens; tokens of shared prompts count once.
    pub tokens_computed: usize,
    /// Operations of a step's matrix products, row by row and without recomputation, as a share of the arithmetic
    /// limit.
    pub arithmetic_ceiling_share: f64,
    /// Memory of weights, gradients and moments.
    pub state_mb: f64,
    /// Peak memory of the process so far; 0 if the system does not report it.
    pub peak_rss_mb: f64,
}

/// Loads a model to train, all of it or adapters of a rank, on a device that [`device::choose`] knows: f32 on a CPU,
/// bf16 on a GPU, or a `.gguf` file's matrices as they are.
///
/// # Errors
/// Fails if the model is missing or not supported, or the device is missing.
pub fn load_model(path: &str, device: &str, lora_rank: usize, keep_quantized: bool) -> Result<Weights> {
    let targets = vec![ALL_LINEAR.to_string()];
    let trainable = match lora_rank {
        0 => Trainable::All,
        rank => Trainable::Lora(LoraConfig {
            rank,
            alpha: 2.0 * rank as f64,
            targets,
            seed: 0,
        }),
    };
    let device = device::choose(device)?;
    let model = match keep_quantized {
        true => load_quantized(path, &device, &mut |_, _| {})?,
        false => load(path, &device, device::dtype(Dtype::Auto, &device), &mut |_, _| {})?,
    };
    Ok(Weights::with_quantized(
        model.config,
        model.tensors,
        model.quantized,
        &trainable,
    )?)
}

/// Trains on random rows. `ceiling` is the arithmetic limit in operations per second; `peak_rss_mb` returns the
/// process's peak memory.
///
/// # Errors
/// Fails if nothing is trainable or out of memory.
pub fn run(
    weights: &mut Weights,
    config: &Ajet,
    plan: &Plan,
    ceiling: f64,
    peak_rss_mb: impl Fn() -> Option<f64>,
) -> Result<Measurement> {
    let mut trainer = Trainer::new(weights, &with_a_signal(config))?;
    let operations = operations(&weights.config, weights.lora.is_none(), plan);
    let mut measure = |repeat: usize| -> Result<Measurement> {
        let episodes = episodes(plan, weights.config.vocab_size as u32, repeat as u64);
        let report = trainer.update(weights, &episodes, &mut |_| ())?;
        let seconds = |phase: &str| report.metrics[&format!("seconds/update{phase}")];
        Ok(Measurement {
            rows: plan.rows,
            tokens: plan.tokens,
            forward_s: seconds("_forward"),
            backward_s: seconds("_backward"),
            optimizer_s: seconds("_optimizer"),
            scoring_s: seconds("_scoring"),
            tokens_computed: report.metrics["tokens_computed"] as usize,
            tokens_per_s: (plan.rows * plan.tokens) as f64 / seconds(""),
            arithmetic_ceiling_share: operations / seconds("") / ceiling,
            state_mb: state_mb(weights),
            peak_rss_mb: peak_rss_mb().unwrap_or(0.0),
        })
    };
    let mut best = measure(0)?;
    for repeat in 1..plan.repeats {
        let measurement = measure(repeat)?;
        if measurement.tokens_per_s > best.tokens_per_s {
            best = measurement;
        }
    }
    Ok(best)
}

/// Returns the configuration with an advantage for tasks of one row, whose reward has nothing to compare with: without a
/// signal nothing would be computed.
fn with_a_signal(config: &Ajet) -> Ajet {
    let mut config = config.clone();
    config.trainer_common.singleton_group = SingletonGroup::Raw;
    config
}

fn state_mb(weights: &Weights) -> f64 {
    let trained = weights.trainable_count();
    let adapters = if weights.lora.is_some() { trained } else { 0 };
    (weights.parameter_bytes() + (adapters + 3 * trained) * size_of::<f32>()) as f64 / (1 << 20) as f64
}

/// Operations of an update whose rows share nothing.
fn operations(config: &ModelConfig, weights_trained: bool, plan: &Plan) -> f64 {
    let tokens = PassTokens {
        computed: (plan.rows * plan.tokens) as f64,
        predicting: (plan.rows * (plan.tokens - plan.prompt)) as f64,
        seen: plan.tokens as f64 / 2.0,
    };
    config.training_operations(tokens, weights_trained)
}

fn episodes(plan: &Plan, vocabulary: u32, seed: u64) -> Vec<TrainEpisode> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens = |count: usize| -> Vec<u32> { (0..count).map(|_| rng.random_range(0..vocabulary)).collect() };
    let tasks = plan.rows.div_ceil(plan.group);
    let prompts: Vec<Vec<u32>> = (0..tasks).map(|_| tokens(plan.prompt)).collect();
    let episode = |number: usize| TrainEpisode {
        episode_uuid: format!("{number:06}"),
        task_id: format!("{:06}", number / plan.group),
        reward: (1 + number % 2) as f64,
        rows: vec![Row {
            token_ids: [&prompts[number / plan.group][..], &tokens(plan.tokens - plan.prompt)].concat(),
            loss_mask: (0..plan.tokens).map(|i| i >= plan.prompt).collect(),
            logprobs: vec![0.0; plan.tokens],
            truncated: false,
            ..Row::default()
        }],
    };
    (0..plan.rows).map(episode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Family;
    use crate::model::weights::random_tensors;

    #[test]
    fn every_row_is_computed_whatever_the_size_of_a_group() {
        let config = ModelConfig::small(Family::Llama);
        let tensors = random_tensors(&config, 0.3, 7).unwrap();
        let mut weights = Weights::new(config, tensors, &Trainable::All).unwrap();
        let mut config = Ajet::default();
        config.trainer_common.share_prefixes = false;
        for group in 1..4 {
            let plan = Plan {
                rows: 6,
                tokens: 9,
                prompt: 4,
                group,
                repeats: 1,
            };
            let found = run(&mut weights, &config, &plan, 1e9, || None).unwrap();
            assert_eq!(
                found.tokens_computed,
                6 * 8,
                "groups of {group}; the last token is only predicted"
            );
        }
    }
}
