//! Cached forward passes against what `transformers` computes (tests/reference/make_logits.py), and against themselves.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use super::forward::{BLOCK_TOKENS, Chunk, Forward};
use super::forward_cpu::CpuForward;
use crate::model::kernels::{Isa, Pool};
use crate::model::{ModelConfig, Trainable, Weights};

struct Fixture {
    weights: Weights,
    /// Prompts with the logits after each token.
    prompts: Vec<(Vec<u32>, Vec<f32>)>,
}

fn fixtures() -> Vec<Fixture> {
    ["llama", "llama-sharded", "qwen2", "qwen3"]
        .map(fixture)
        .into_iter()
        .collect()
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

fn cpu(weights: &Weights) -> Box<dyn Forward> {
    Box::new(CpuForward::<f32>::new(weights, Arc::new(Pool::new(2)), Isa::detect()).unwrap())
}

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
        let logits = forward.forward(&chunks).unwrap();
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
fn assert_close(given: &[f32], expected: &[f32]) {
    assert_eq!(given.len(), expected.len());
    let difference = given
        .iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs())
        .fold(0.0, f32::max);
    assert!(difference <= 1e-4, "largest difference {difference}");
}

#[test]
fn logits_are_those_of_transformers() {
    for fixture in fixtures() {
        let vocab = fixture.weights.config.vocab_size;
        let mut forward = cpu(&fixture.weights);
        for (prompt, expected) in &fixture.prompts {
            for end in [1, prompt.len() / 2, prompt.len()].into_iter().filter(|&end| end > 0) {
                let given = last_logits(&mut *forward, &[&prompt[..end]], usize::MAX);
                assert_close(&given[0], &expected[(end - 1) * vocab..end * vocab]);
            }
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    for fixture in fixtures() {
        let prompts: Vec<&[u32]> = fixture.prompts.iter().map(|(prompt, _)| &prompt[..]).collect();
        let mut forward = cpu(&fixture.weights);
        let alone: Vec<Vec<f32>> = prompts
            .iter()
            .flat_map(|&prompt| last_logits(&mut *forward, &[prompt], usize::MAX))
            .collect();
        for step in [1, 7, 32, usize::MAX] {
            assert_eq!(
                last_logits(&mut *forward, &prompts, step),
                alone,
                "{step} tokens at a time"
            );
        }
    }
}

#[test]
fn refreshed_weights_are_used_and_blocks_can_be_copied() {
    let [a, b] = ["llama", "qwen2"].map(fixture);
    let (prompt, expected) = &a.prompts[2];
    let mut forward = cpu(&a.weights);
    last_logits(&mut *forward, &[&prompt[..BLOCK_TOKENS]], usize::MAX);
    forward.copy_block(0, 5).unwrap();
    let chunk = Chunk {
        tokens: &prompt[32..],
        start: 32,
        blocks: &[5, 1],
        logits: true,
    };
    let vocab = a.weights.config.vocab_size;
    assert_close(&forward.forward(&[chunk]).unwrap(), &expected[expected.len() - vocab..]);

    let mut doubled = b.weights.clone();
    let name = "model.norm.weight";
    let twice = (doubled.tensor(name).unwrap() * 2.0).unwrap();
    doubled
        .params
        .insert(name.into(), crate::model::weights::Param::Frozen(twice));
    let mut forward = cpu(&b.weights);
    let before = last_logits(&mut *forward, &[&b.prompts[1].0], usize::MAX).remove(0);
    forward.refresh(&doubled).unwrap();
    forward.release_blocks();
    let after = last_logits(&mut *forward, &[&b.prompts[1].0], usize::MAX).remove(0);
    assert_close(&after, &before.iter().map(|l| 2.0 * l).collect::<Vec<_>>());
}
