//! The tensor path, which GPUs take, against the CPU kernels in f32: logits, sampling, and an update.
//!
//! On every machine it runs on the CPU, in f32 and bf16; on a machine with a GPU, in a build with CUDA, also there.
//! `scripts/gpu-check.sh` sets AJET_REQUIRE_GPU, so that there a GPU that is not found fails instead of being skipped.

use std::path::Path;
use std::sync::Arc;

use ajet_swarm::config::schema::Kernels;
use ajet_swarm::config::{ALL_LINEAR, Ajet};
use ajet_swarm::inference::forward::{BLOCK_TOKENS, Chunk, Forward, Logits};
use ajet_swarm::inference::forward_cpu::CpuForward;
use ajet_swarm::inference::forward_plain::PlainForward;
use ajet_swarm::inference::{Bias, SampleEvent, SampleRequest, SamplingParams, Scheduler};
use ajet_swarm::model::kernels::{Pool, Precision};
use ajet_swarm::model::lora::LoraConfig;
use ajet_swarm::model::{Trainable, Weights, device, load};
use ajet_swarm::timeline::Row;
use ajet_swarm::train::{TrainEpisode, Trainer};
use candle_core::{D, DType, Device, Tensor};

/// The model that the binary carries.
const TRAINED: &str = "builtin:tiny";

/// Where and in which type the tensor path is tried, and how far its log-probabilities may be from the kernels'.
struct Target {
    device: Device,
    dtype: DType,
    tolerance: f32,
}

/// bf16 is for trained weights: those of the fixtures are random and large, so that rounding alone moves what they say.
fn targets(model: &str) -> Vec<Target> {
    let mut devices = vec![Device::Cpu];
    match device::choose("cuda") {
        Ok(gpu) => devices.push(gpu),
        Err(error) if std::env::var_os("AJET_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => eprintln!("skipped on a GPU: {error}"),
    }
    let types = [(DType::F32, 1e-3), (DType::BF16, 2e-2)];
    let types = if model == TRAINED { &types[..] } else { &types[..1] };
    devices
        .iter()
        .flat_map(|device| {
            types.iter().map(|&(dtype, tolerance)| Target {
                device: device.clone(),
                dtype,
                tolerance,
            })
        })
        .collect()
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} in {:?}", device::name(&self.device), self.dtype)
    }
}

fn models() -> Vec<String> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let names = [
        "llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "granite", "olmo2", "gemma2", "gemma3",
    ];
    let fixtures = names.map(|name| fixtures.join(name).to_string_lossy().into_owned());
    [vec![TRAINED.to_string()], fixtures.to_vec()].concat()
}

fn weights(model: &str, device: &Device, dtype: DType, trainable: &Trainable) -> Weights {
    let model = load(model, device, dtype, &mut |_, _| {}).unwrap();
    Weights::new(model.config, model.tensors, trainable).unwrap()
}

fn prompts(vocabulary: u32) -> Vec<Vec<u32>> {
    let prompt = |len: u32| (0..len).map(|i| (i * i * 7 + 3 * i + len) % vocabulary).collect();
    [1, 5, 33, 70].map(prompt).to_vec()
}

/// Log-probabilities of the whole vocabulary after each prompt; the prompts are computed together, but for their last
/// token, which is decoded.
fn distributions(forward: &mut dyn Forward, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let per_prompt = prompts.iter().map(|p| p.len().div_ceil(BLOCK_TOKENS)).max().unwrap();
    forward.reserve(per_prompt * prompts.len());
    let blocks: Vec<Vec<usize>> = (0..prompts.len())
        .map(|i| (i * per_prompt..(i + 1) * per_prompt).collect())
        .collect();
    let chunk = |i: usize, from: usize, to: usize, logits: bool| Chunk {
        tokens: &prompts[i][from..to],
        start: from,
        blocks: &blocks[i],
        logits,
    };
    let whole = |i: &usize| prompts[*i].len() > 1;
    let prefill: Vec<Chunk> = (0..prompts.len())
        .filter(whole)
        .map(|i| chunk(i, 0, prompts[i].len() - 1, false))
        .collect();
    forward.forward(&prefill).unwrap();
    let decode: Vec<Chunk> = (0..prompts.len())
        .map(|i| chunk(i, prompts[i].len() - 1, prompts[i].len(), true))
        .collect();
    let logits = match forward.forward(&decode).unwrap() {
        Logits::Device(logits) => logits,
        Logits::Host(logits) => {
            let vocabulary = logits.len() / prompts.len();
            Tensor::from_vec(logits, (prompts.len(), vocabulary), &Device::Cpu).unwrap()
        }
    };
    let log_probs = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap();
    log_probs.to_vec2().unwrap()
}

/// The mean distance of log-probabilities, weighed by how likely each token is.
fn distance(expected: &[Vec<f32>], actual: &[Vec<f32>]) -> f32 {
    let pairs = expected.iter().flatten().zip(actual.iter().flatten());
    pairs.map(|(e, g)| e.exp() * (e - g).abs()).sum::<f32>() / expected.len() as f32
}

#[test]
fn logits_agree() {
    for model in models() {
        let reference = weights(&model, &Device::Cpu, DType::F32, &Trainable::Nothing);
        let prompts = prompts(reference.config.vocab_size as u32);
        let mut kernels = CpuForward::new(&reference, Arc::new(Pool::new(2)), Precision::F32).unwrap();
        let expected = distributions(&mut kernels, &prompts);
        for target in targets(&model) {
            let weights = weights(&model, &target.device, target.dtype, &Trainable::Nothing);
            let actual = distributions(&mut PlainForward::new(&weights).unwrap(), &prompts);
            let distance = distance(&expected, &actual);
            assert!(distance <= target.tolerance, "{model} on {target}: {distance}");
        }
    }
}

/// Tokens and log-probabilities that the tensor path samples after each prompt.
fn sampled(weights: &Weights, config: &Ajet, prompts: &[Vec<u32>]) -> Vec<Vec<(u32, f32)>> {
    let mut scheduler = Scheduler::new(weights, config).unwrap();
    let mut answers = vec![];
    for (id, prompt) in prompts.iter().enumerate() {
        let (events, receiver) = tokio::sync::mpsc::unbounded_channel();
        let params = SamplingParams {
            temperature: config.rollout.temperature as f32,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            bias: Bias::default(),
            seed: id as u64,
            max_tokens: 12,
            stop_token_ids: vec![],
            top_logprobs: 0,
        };
        scheduler.submit(SampleRequest {
            id: id as u64,
            group: String::new(),
            prompt: prompt.clone(),
            params,
            stop: None,
            forced_tokens: vec![],
            grammar: None,
            events,
        });
        answers.push(receiver);
    }
    while !scheduler.is_idle() {
        scheduler.step().unwrap();
    }
    let tokens = |events: &mut tokio::sync::mpsc::UnboundedReceiver<SampleEvent>| {
        std::iter::from_fn(|| events.try_recv().ok())
            .filter_map(|event| match event {
                SampleEvent::Token(token) => Some((token.id, token.logprob)),
                _ => None,
            })
            .collect()
    };
    answers.iter_mut().map(tokens).collect()
}

fn config() -> Ajet {
    let mut config = Ajet::default();
    config.engine.kernels = Kernels::Plain;
    config.engine.threads = Some(2);
    config.rollout.temperature = 0.9;
    config.rollout.max_num_seqs = 8;
    config.rollout.max_model_len = Some(128);
    config.trainer_common.use_kl_loss = false;
    config.trainer_common.optim.lr = 1e-4;
    config
}

/// Episodes whose rows are prompts and what was sampled after them.
fn episodes(prompts: &[Vec<u32>], answers: &[Vec<(u32, f32)>]) -> Vec<TrainEpisode> {
    let rows = prompts.iter().zip(answers).enumerate();
    rows.map(|(i, (prompt, answer))| TrainEpisode {
        episode_uuid: format!("{i}"),
        task_id: "t".into(),
        reward: i as f64,
        rows: vec![Row {
            token_ids: prompt.iter().copied().chain(answer.iter().map(|t| t.0)).collect(),
            loss_mask: [vec![false; prompt.len()], vec![true; answer.len()]].concat(),
            logprobs: [vec![0.0; prompt.len()], answer.iter().map(|t| t.1).collect()].concat(),
            truncated: false,
            ..Row::default()
        }],
    })
    .collect()
}

#[test]
fn samples_and_updates_agree() {
    let lora = Trainable::Lora(LoraConfig {
        rank: 4,
        alpha: 8.0,
        targets: vec![ALL_LINEAR.to_string()],
        seed: 1,
    });
    for (model, trainable) in models().iter().flat_map(|m| [&Trainable::All, &lora].map(|t| (m, t))) {
        let mut reference = weights(model, &Device::Cpu, DType::F32, trainable);
        let prompts = prompts(reference.config.vocab_size as u32);
        let answers = sampled(&reference, &config(), &prompts);
        let batch = episodes(&prompts, &answers);
        let mut kernels = config();
        kernels.engine.kernels = Kernels::Auto;
        let mut trainer = Trainer::new(&reference, &kernels).unwrap();
        let expected = trainer.update(&mut reference, &batch, &mut |_| ()).unwrap().metrics;
        for target in targets(model) {
            let what = format!("{model}, lora {}, on {target}", reference.lora.is_some());
            let mut weights = weights(model, &target.device, target.dtype, trainable);
            let mut trainer = Trainer::new(&weights, &config()).unwrap();
            let own = sampled(&weights, &config(), &prompts);
            if target.dtype == DType::F32 {
                let ids = |answers: &[Vec<(u32, f32)>]| -> Vec<u32> { answers.iter().flatten().map(|t| t.0).collect() };
                assert_eq!(ids(&own), ids(&answers), "{what}");
            }
            let metrics = trainer.update(&mut weights, &batch, &mut |_| ()).unwrap().metrics;
            let norm = metrics["grad_norm"] / expected["grad_norm"] - 1.0;
            assert!(
                norm.abs() <= f64::from(5.0 * target.tolerance),
                "{what}: the gradient's norm is off by {norm}"
            );
            let entropy = metrics["entropy"] - expected["entropy"];
            assert!(
                entropy.abs() <= f64::from(target.tolerance),
                "{what}: the entropy is off by {entropy}"
            );

            // What it samples itself after the update, its trainer sees with the same probabilities.
            let own = sampled(&weights, &config(), &prompts);
            let metrics = trainer
                .update(&mut weights, &episodes(&prompts, &own), &mut |_| ())
                .unwrap()
                .metrics;
            let mismatch = metrics["mismatch_kl"];
            assert!(
                mismatch.abs() <= f64::from(target.tolerance.powi(2)),
                "{what}: the mismatch is {mismatch}"
            );
        }
    }
}
