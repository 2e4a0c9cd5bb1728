//! Cached forward passes against what `transformers` computes (tests/reference/make_logits.py), and against themselves.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use tokio::sync::mpsc::UnboundedReceiver;

use super::forward::{BLOCK_TOKENS, Chunk, Forward, Logits};
use super::forward_cpu::CpuForward;
use super::forward_plain::PlainForward;
use super::request::{Bias, SampleEvent, SampleRequest, SamplingParams};
use super::scheduler::Scheduler;
use crate::config::schema::{Dtype, ImportanceMode, Kernels, Quantization};
use crate::config::{ALL_LINEAR, Ajet};
use crate::model::config::Family;
use crate::model::kernels::{Isa, Pool, Precision};
use crate::model::lora::LoraConfig;
use crate::model::param::Param;
use crate::model::testing::quantized_and_dequantized;
use crate::model::{ModelConfig, PackedBatch, Trainable, Transformer, Weights};

struct Fixture {
    weights: Weights,
    /// Prompts with the logits after each token.
    prompts: Vec<(Vec<u32>, Vec<f32>)>,
}

fn fixtures() -> Vec<Fixture> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let names = std::fs::read_dir(models)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names.iter().map(|name| fixture(name)).collect()
}

fn fixture(name: &str) -> Fixture {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name);
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let config = ModelConfig::from_json(&serde_json::from_str(&config).unwrap()).unwrap();
    let mut tensors = indexmap::IndexMap::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            tensors.extend(candle_core::safetensors::load(&path, &Device::Cpu).unwrap());
        }
    }
    let weights = Weights::new(config, tensors, &Trainable::Nothing).unwrap();
    let reference = candle_core::safetensors::load(dir.join("reference.safetensors"), &Device::Cpu).unwrap();
    let prompts = (0..)
        .map_while(|i| {
            let ids: Vec<i64> = reference
                .get(&format!("input_ids_{i}"))?
                .flatten_all()
                .unwrap()
                .to_vec1()
                .unwrap();
            let logits = reference[&format!("logits_{i}")]
                .flatten_all()
                .unwrap()
                .to_vec1()
                .unwrap();
            Some((ids.into_iter().map(|id| id as u32).collect(), logits))
        })
        .collect();
    Fixture { weights, prompts }
}

/// Blocks for whatever a test computes.
const BLOCKS: usize = 64;

fn cpu(weights: &Weights) -> Box<dyn Forward> {
    Box::new(CpuForward::new(weights, Arc::new(Pool::new(2)), Precision::F32).unwrap())
}

fn plain(weights: &Weights) -> Box<dyn Forward> {
    let mut forward = PlainForward::new(weights).unwrap();
    forward.reserve(BLOCKS);
    Box::new(forward)
}

fn logits(forward: &mut dyn Forward, chunks: &[Chunk]) -> Vec<f32> {
    match forward.forward(chunks).unwrap() {
        Logits::Host(logits) => logits,
        Logits::Device(logits) => logits.flatten_all().unwrap().to_vec1().unwrap(),
    }
}

fn plain_together(weights: &Weights) -> Box<dyn Forward> {
    let mut forward = PlainForward::together(weights).unwrap();
    forward.reserve(BLOCKS);
    Box::new(forward)
}

type New = fn(&Weights) -> Box<dyn Forward>;

/// All paths, and whether rows are the same to the bit whatever else is computed.
const ALL: [(New, bool); 3] = [(cpu, true), (plain, true), (plain_together, false)];

/// The logits after the last token of each prompt, prompts computed side by side, `step` tokens of each at a time.
fn last_logits(forward: &mut dyn Forward, prompts: &[&[u32]], step: usize) -> Vec<Vec<f32>> {
    let mut next_block = 0;
    let blocks: Vec<Vec<usize>> = prompts
        .iter()
        .map(|prompt| {
            let first = next_block;
            next_block += prompt.len().div_ceil(BLOCK_TOKENS);
            (first..next_block).rev().collect()
        })
        .collect();
    let mut last = vec![vec![]; prompts.len()];
    let longest = prompts.iter().map(|p| p.len()).max().unwrap();
    for start in (0..longest).step_by(step) {
        let running: Vec<usize> = (0..prompts.len()).filter(|&i| start < prompts[i].len()).collect();
        let chunks: Vec<Chunk> = running
            .iter()
            .map(|&i| Chunk {
                tokens: &prompts[i][start..prompts[i].len().min(start + step)],
                start,
                blocks: &blocks[i],
                logits: start + step >= prompts[i].len(),
            })
            .collect();
        let wanted: Vec<usize> = running
            .iter()
            .zip(&chunks)
            .filter(|(_, c)| c.logits)
            .map(|(&i, _)| i)
            .collect();
        let logits = logits(forward, &chunks);
        if wanted.is_empty() {
            assert!(logits.is_empty());
            continue;
        }
        for (logits, i) in logits.chunks(logits.len() / wanted.len()).zip(wanted) {
            last[i] = logits.to_vec();
        }
    }
    last
}

#[track_caller]
fn assert_close(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    let difference = actual
        .iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs())
        .fold(0.0, f32::max);
    assert!(difference <= 1e-4, "largest difference {difference}");
}

#[test]
fn logits_are_those_of_transformers() {
    for (fixture, (new, _)) in fixtures().iter().flat_map(|f| ALL.map(|new| (f, new))) {
        let vocab = fixture.weights.config.vocab_size;
        let mut forward = new(&fixture.weights);
        for (prompt, expected) in &fixture.prompts {
            for end in [1, prompt.len() / 2, prompt.len()].into_iter().filter(|&end| end > 0) {
                let actual = last_logits(&mut *forward, &[&prompt[..end]], usize::MAX);
                assert_close(&actual[0], &expected[(end - 1) * vocab..end * vocab]);
            }
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit_on_the_kernels_and_hardly_any_elsewhere() {
    let ways = ALL.into_iter().enumerate();
    for (fixture, (number, (new, exact))) in fixtures().iter().flat_map(|f| ways.clone().map(move |way| (f, way))) {
        let prompts: Vec<&[u32]> = fixture.prompts.iter().map(|(prompt, _)| &prompt[..]).collect();
        let mut forward = new(&fixture.weights);
        let alone: Vec<Vec<f32>> = prompts
            .iter()
            .flat_map(|&prompt| last_logits(&mut *forward, &[prompt], usize::MAX))
            .collect();
        // candle computes rows one by one whatever the step, and slowly
        let steps: &[usize] = if number == 0 { &[1, 7, 32, usize::MAX] } else { &[7] };
        for &step in steps {
            let together = last_logits(&mut *forward, &prompts, step);
            if exact {
                assert_eq!(together, alone, "{step} tokens at a time");
            }
            assert_close(&together.concat(), &alone.concat());
        }
    }
}

#[test]
fn adapters_beside_the_weights_give_what_merged_ones_give() {
    let base = fixture("qwen2");
    let lora = LoraConfig {
        rank: 2,
        alpha: 4.0,
        targets: vec![ALL_LINEAR.to_string()],
        seed: 3,
    };
    let tensors = base.weights.params.iter();
    let tensors = tensors.map(|(name, param)| (name.clone(), param.value().unwrap()));
    let weights = Weights::new(base.weights.config.clone(), tensors.collect(), &Trainable::Lora(lora)).unwrap();
    let (mut merged, mut beside) = (cpu(&weights), plain(&weights));
    for (name, var) in weights.trainable().iter().filter(|(name, _)| name.contains("lora_B")) {
        let value = 0.02 * (name.len() % 5) as f64;
        var.set(&var.ones_like().unwrap().affine(value, 0.0).unwrap()).unwrap();
    }
    let prompt = &base.prompts[1].0[..];
    let before = last_logits(&mut *beside, &[prompt], usize::MAX);
    merged.refresh(&weights).unwrap();
    beside.refresh(&weights).unwrap();
    let after = last_logits(&mut *beside, &[prompt], usize::MAX);
    assert_close(&after[0], &last_logits(&mut *merged, &[prompt], usize::MAX)[0]);
    let change = before[0].iter().zip(&after[0]).map(|(a, b)| (a - b).abs());
    assert!(change.fold(0.0, f32::max) > 0.01, "the adapters change nothing");
}

#[test]
fn kept_blocks_give_what_their_values_give_with_adapters_and_without() {
    let lora = Trainable::Lora(LoraConfig {
        rank: 3,
        alpha: 6.0,
        targets: vec![ALL_LINEAR.to_string()],
        seed: 3,
    });
    let prompt: Vec<u32> = (0..18).map(|i| i * 7 % 301).collect();
    for family in [Family::Qwen2, Family::Phi3, Family::Mixtral] {
        for trainable in [Trainable::Nothing, lora.clone()] {
            let [kept, dequantised] = quantized_and_dequantized(family, &trainable);
            let whole = last_logits(&mut *cpu(&kept), &[&prompt], usize::MAX);
            let chunks = last_logits(&mut *cpu(&kept), &[&prompt, &prompt[..9]], 7);
            assert_eq!(chunks[0], whole[0], "{family:?}: chunks and company change no bit");
            assert_close(
                &whole[0],
                &last_logits(&mut *cpu(&dequantised), &[&prompt], usize::MAX)[0],
            );
            assert_close(
                &whole[0],
                &last_logits(&mut *plain(&dequantised), &[&prompt], usize::MAX)[0],
            );
        }
    }
}

#[test]
fn changed_adapters_beside_kept_blocks_are_used() {
    let lora = LoraConfig {
        rank: 2,
        alpha: 4.0,
        targets: vec!["q_proj".into(), "down_proj".into()],
        seed: 3,
    };
    let [kept, _] = quantized_and_dequantized(Family::Qwen2, &Trainable::Lora(lora));
    let (mut forward, prompt) = (cpu(&kept), [1, 5, 9, 2]);
    let before = last_logits(&mut *forward, &[&prompt], usize::MAX);
    for (_, var) in kept.trainable() {
        var.set(&(var.as_tensor() * 3.0).unwrap()).unwrap();
    }
    forward.refresh(&kept).unwrap();
    let after = last_logits(&mut *forward, &[&prompt], usize::MAX);
    assert_ne!(before, after);
    assert_eq!(after, last_logits(&mut *cpu(&kept), &[&prompt], usize::MAX));
}

#[test]
fn what_is_sampled_from_kept_blocks_has_the_log_probability_that_the_trainer_computes() {
    let [kept, _] = quantized_and_dequantized(Family::Llama, &Trainable::Nothing);
    let prompts: Vec<Vec<u32>> = (0..2)
        .map(|seed| (0..17 + seed).map(|i| i * 11 % 301).collect())
        .collect();
    let mut scheduler = scheduler(&kept, Kernels::Auto);
    let first = sampled_by(&mut scheduler, &prompts);
    assert_eq!(first, sampled_by(&mut scheduler, &prompts), "from the prefix cache");
    let [_, dequantised] = quantized_and_dequantized(Family::Llama, &Trainable::Nothing);
    for (own, theirs) in first.iter().zip(sampled(&dequantised, Kernels::Plain, &prompts)) {
        for ((token, log_prob), (their_token, their_log_prob)) in own.iter().zip(theirs) {
            assert_eq!(*token, their_token);
            assert!(
                (log_prob - their_log_prob).abs() < 1e-4,
                "{log_prob}, not {their_log_prob}"
            );
        }
    }
}

#[test]
fn plain_tensors_refuse_kept_blocks() {
    let [kept, _] = quantized_and_dequantized(Family::Llama, &Trainable::Nothing);
    let error = PlainForward::new(&kept).err().unwrap().to_string();
    assert!(error.contains("hint: set ajet.engine.device to cpu"), "{error}");
}

#[test]
fn refreshed_weights_are_used_and_blocks_can_be_copied() {
    let [a, b] = ["llama", "qwen2"].map(fixture);
    let (prompt, expected) = &a.prompts[2];
    let (mut doubled, name) = (b.weights.clone(), "model.norm.weight");
    let twice = (doubled.tensor(name).unwrap() * 2.0).unwrap();
    doubled.params.insert(name.into(), Param::Frozen(twice));
    for (new, _) in ALL {
        let mut forward = new(&a.weights);
        last_logits(&mut *forward, &[&prompt[..BLOCK_TOKENS]], usize::MAX);
        forward.copy_block(0, 5).unwrap();
        let chunk = Chunk {
            tokens: &prompt[32..],
            start: 32,
            blocks: &[5, 1],
            logits: true,
        };
        let vocab = a.weights.config.vocab_size;
        assert_close(&logits(&mut *forward, &[chunk]), &expected[expected.len() - vocab..]);

        let mut forward = new(&b.weights);
        let before = last_logits(&mut *forward, &[&b.prompts[1].0], usize::MAX).remove(0);
        forward.refresh(&doubled).unwrap();
        forward.release_blocks();
        let after = last_logits(&mut *forward, &[&b.prompts[1].0], usize::MAX).remove(0);
        assert_close(&after, &before.iter().map(|l| 2.0 * l).collect::<Vec<_>>());
    }
}

fn scheduler(weights: &Weights, kernels: Kernels) -> Scheduler {
    let mut ajet = Ajet::default();
    ajet.engine.kernels = kernels;
    ajet.engine.threads = Some(2);
    Scheduler::new(weights, &ajet).unwrap()
}

/// Tokens and log-probabilities that a new scheduler samples for each prompt.
fn sampled(weights: &Weights, kernels: Kernels, prompts: &[Vec<u32>]) -> Vec<Vec<(u32, f32)>> {
    sampled_by(&mut scheduler(weights, kernels), prompts)
}

fn sampled_by(scheduler: &mut Scheduler, prompts: &[Vec<u32>]) -> Vec<Vec<(u32, f32)>> {
    let answers: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let (events, receiver) = tokio::sync::mpsc::unbounded_channel();
            let params = SamplingParams {
                temperature: 0.9,
                top_p: 1.0,
                top_k: None,
                min_p: 0.0,
                bias: Bias::default(),
                seed: i as u64,
                max_tokens: 40,
                stop_token_ids: vec![],
                top_logprobs: 0,
            };
            let (group, prompt) = (String::new(), prompt.clone());
            scheduler.submit(SampleRequest {
                id: i as u64,
                group,
                prompt,
                params,
                forced_tokens: vec![],
                grammar: None,
                stop: None,
                events,
            });
            receiver
        })
        .collect();
    while !scheduler.is_idle() {
        scheduler.step().unwrap();
    }
    let tokens = |mut events: UnboundedReceiver<SampleEvent>| {
        std::iter::from_fn(move || events.try_recv().ok())
            .filter_map(|event| match event {
                SampleEvent::Token(token) => Some((token.id, token.logprob)),
                _ => None,
            })
            .collect()
    };
    answers.into_iter().map(tokens).collect()
}

#[test]
fn kernels_plain_tensors_and_the_trainer_agree_on_tokens_and_log_probabilities() {
    for fixture in fixtures() {
        let prompts: Vec<Vec<u32>> = fixture.prompts.iter().map(|(prompt, _)| prompt.clone()).collect();
        let answers = sampled(&fixture.weights, Kernels::Auto, &prompts);
        let plain = sampled(&fixture.weights, Kernels::Plain, &prompts);
        for ((prompt, answer), plain) in prompts.iter().zip(&answers).zip(&plain) {
            assert_eq!(answer.len(), 40);
            let ids = |answer: &[(u32, f32)]| answer.iter().map(|t| t.0).collect::<Vec<_>>();
            let logprobs = |answer: &[(u32, f32)]| answer.iter().map(|t| t.1).collect::<Vec<_>>();
            assert_eq!(ids(answer), ids(plain));
            assert_close(&logprobs(answer), &logprobs(plain));

            let row = [&prompt[..], &ids(answer)].concat();
            let model = Transformer::new(&fixture.weights);
            let hidden = model.hidden(&PackedBatch::from_rows(&[&row[..row.len() - 1]])).unwrap();
            let (trained, _) = model.log_probs(&hidden, &row[1..], &[], 0.9).unwrap();
            let trained: Vec<f32> = trained.to_vec1().unwrap();
            assert_close(&logprobs(answer), &trained[prompt.len() - 1..]);
        }
    }
}

#[test]
fn what_the_prefix_cache_gives_changes_no_bit() {
    for fixture in fixtures() {
        let prompts: Vec<Vec<u32>> = fixture.prompts.iter().map(|(prompt, _)| prompt.clone()).collect();
        let mut warm = scheduler(&fixture.weights, Kernels::Auto);
        let cold = sampled_by(&mut warm, &prompts);
        let computed = warm.totals();
        assert_eq!(sampled_by(&mut warm, &prompts), cold);
        assert!(
            warm.totals().cached_tokens > computed.cached_tokens,
            "nothing was cached"
        );
    }
}

/// Seen with `kernels: plain`, which gave other tokens for a seed in another batch.
#[test]
fn the_seed_decides_whatever_else_is_in_the_batch() {
    for (fixture, kernels) in fixtures()
        .iter()
        .flat_map(|f| [Kernels::Auto, Kernels::Plain].map(|k| (f, k)))
    {
        let prompts: Vec<Vec<u32>> = fixture.prompts.iter().map(|(prompt, _)| prompt.clone()).collect();
        let together = sampled(&fixture.weights, kernels, &prompts);
        for number in 1..=prompts.len() {
            // log-probabilities too, to the bit
            assert_eq!(
                sampled(&fixture.weights, kernels, &prompts[..number]),
                together[..number]
            );
        }
        let twice = sampled(&fixture.weights, kernels, &[prompts[0].clone(), prompts[0].clone()]);
        assert_ne!(twice[0], twice[1], "their seeds differ");
    }
}

/// Seen with `dtype: bf16`, which plain kernels computed as f32 without a word.
#[test]
fn plain_kernels_refuse_bf16_on_a_cpu() {
    let mut ajet = Ajet::default();
    ajet.engine.kernels = Kernels::Plain;
    let weights = fixture("qwen2").weights;
    for (dtype, works) in [(Dtype::Auto, true), (Dtype::F32, true), (Dtype::Bf16, false)] {
        ajet.engine.dtype = dtype;
        match Scheduler::new(&weights, &ajet) {
            Ok(_) => assert!(works, "{dtype:?}"),
            Err(error) => assert!(
                !works && error.to_string().contains("set ajet.engine.kernels to auto"),
                "{error}"
            ),
        }
    }
}

/// Rounding to 8 bits costs some precision: a mean error of a few per cent of the logits' spread, more with tiny models of
/// further families.
#[test]
fn eight_bits_are_close_to_f32() {
    for Fixture { weights, prompts } in ["llama", "llama-sharded", "qwen2", "qwen3"].map(fixture) {
        for isa in Isa::available() {
            let pool = || Arc::new(Pool::with_isa(2, isa));
            let mut int8 = CpuForward::new(&weights, pool(), Precision::Int8).unwrap();
            let ids: Vec<&[u32]> = prompts.iter().map(|(ids, _)| &ids[..]).collect();
            let together = last_logits(&mut int8, &ids, 7);
            for ((ids, expected), found) in prompts.iter().zip(&together) {
                let alone = last_logits(
                    &mut CpuForward::new(&weights, pool(), Precision::Int8).unwrap(),
                    &[&ids[..]],
                    1,
                );
                assert_eq!(&alone[0], found, "a row depends on what is computed beside it");
                let expected = &expected[expected.len() - found.len()..];
                let rms = |x: &mut dyn Iterator<Item = f32>| {
                    let (sum, count) = x.fold((0f32, 0f32), |(sum, count), x| (sum + x * x, count + 1.0));
                    (sum / count).sqrt()
                };
                let error =
                    rms(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / rms(&mut expected.iter().copied());
                assert!(error < 0.05, "{error} on {}", isa.name());
            }
        }
    }
}

/// Sampling with rounded weights needs the CPU's kernels, and a trainer that corrects for it.
#[test]
fn eight_bits_are_refused_where_they_cannot_be_had_or_corrected() {
    let weights = fixture("qwen2").weights;
    for (kernels, mode, problem) in [
        (Kernels::Auto, ImportanceMode::Auto, None),
        (Kernels::Auto, ImportanceMode::Sequence, None),
        (
            Kernels::Auto,
            ImportanceMode::Off,
            Some("set ajet.trainer_common.importance_sampling.mode to auto"),
        ),
        (
            Kernels::Plain,
            ImportanceMode::Auto,
            Some("set ajet.rollout.quantization to none"),
        ),
    ] {
        let mut ajet = Ajet::default();
        ajet.rollout.quantization = Quantization::Int8;
        ajet.engine.kernels = kernels;
        ajet.trainer_common.importance_sampling.mode = mode;
        match (Scheduler::new(&weights, &ajet), problem) {
            (Ok(_), None) => {}
            (Err(error), Some(problem)) => assert!(error.to_string().contains(problem), "{error}"),
            (found, _) => panic!("{kernels:?} and {mode:?}: {:?}", found.err()),
        }
    }
}

/// Every size at the end of its range: what is allocated follows what is used.
#[test]
fn the_largest_sizes_are_no_harm() {
    let mut ajet = Ajet::default();
    ajet.rollout.max_num_seqs = 65_536;
    ajet.rollout.max_queued_requests = 1_000_000;
    ajet.rollout.max_model_len = Some(20_000_000);
    ajet.engine.threads = Some(1024);
    for kernels in [Kernels::Auto, Kernels::Plain] {
        ajet.engine.kernels = kernels;
        let mut scheduler = Scheduler::new(&fixture("qwen2").weights, &ajet).unwrap();
        assert_eq!(sampled_by(&mut scheduler, &[vec![5, 6, 7]])[0].len(), 40);
    }
}
