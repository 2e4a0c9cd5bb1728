//! Heads that are tied, stored twice or stored alone, against what `transformers` makes of the same files
//! (tests/reference/make_tied_heads.py).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use serde_json::Value;
use tempfile::TempDir;

use super::forward::{BLOCK_TOKENS, Chunk, Forward, Logits};
use super::forward_cpu::CpuForward;
use super::forward_plain::PlainForward;
use crate::model::kernels::{Pool, Precision};
use crate::model::lora::LoraConfig;
use crate::model::weights::{EMBEDDING, LM_HEAD};
use crate::model::{LoadedModel, ModelError, PackedBatch, Trainable, Transformer, Weights, export, load};

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn load_quietly(dir: &Path) -> Result<LoadedModel, ModelError> {
    load(dir.to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {})
}

/// A copy of a model whose configuration says `tied` and whose files hold what `stored` says.
fn rewritten(model: &str, tied: &str, stored: &str, head: &Tensor) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![];
    for entry in std::fs::read_dir(fixtures().join("models").join(model)).unwrap() {
        let (from, to) = (
            entry.as_ref().unwrap().path(),
            dir.path().join(entry.unwrap().file_name()),
        );
        std::fs::copy(&from, &to).unwrap();
        if to.file_name().unwrap().to_str().unwrap().starts_with("model") && to.extension().unwrap() == "safetensors" {
            files.push((candle_core::safetensors::load(&to, &Device::Cpu).unwrap(), to));
        }
    }
    let embedding = files
        .iter()
        .find_map(|(tensors, _)| tensors.get(EMBEDDING).cloned())
        .unwrap();
    for (tensors, _) in &mut files {
        tensors.remove(LM_HEAD);
        if stored == "head" {
            tensors.remove(EMBEDDING);
        }
    }
    match stored {
        "embedding" => None,
        "equal" => files[0].0.insert(LM_HEAD.into(), embedding),
        _ => files[0].0.insert(LM_HEAD.into(), head.clone()),
    };
    for (tensors, path) in files {
        candle_core::safetensors::save(&tensors, path).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("tie_word_embeddings");
    if tied != "absent" {
        config["tie_word_embeddings"] = (tied == "true").into();
    }
    std::fs::write(path, config.to_string()).unwrap();
    dir
}

/// Logits after the last token, by each way of computing them.
fn logits(weights: &Weights, ids: &[u32]) -> Vec<(&'static str, Vec<f32>)> {
    let blocks: Vec<usize> = (0..ids.len().div_ceil(BLOCK_TOKENS)).collect();
    let chunk = Chunk {
        tokens: ids,
        start: 0,
        blocks: &blocks,
        logits: true,
    };
    let mut plain = PlainForward::new(weights).unwrap();
    plain.reserve(blocks.len());
    let mut cpu = CpuForward::new(weights, Arc::new(Pool::new(1)), Precision::F32).unwrap();
    let forwards: [(_, &mut dyn Forward); 2] = [("plain sampler", &mut plain), ("packed sampler", &mut cpu)];
    let mut all: Vec<_> = forwards
        .into_iter()
        .map(|(name, forward)| match forward.forward(&[chunk]).unwrap() {
            Logits::Host(logits) => (name, logits),
            Logits::Device(logits) => (name, logits.flatten_all().unwrap().to_vec1().unwrap()),
        })
        .collect();
    let transformer = Transformer::new(weights);
    let hidden = transformer.hidden(&PackedBatch::from_rows(&[ids])).unwrap();
    let trainer = transformer
        .logits(&hidden.narrow(0, ids.len() - 1, 1).unwrap())
        .unwrap();
    all.push(("trainer", trainer.flatten_all().unwrap().to_vec1().unwrap()));
    all
}

#[track_caller]
fn assert_logits(case: &str, model: LoadedModel, trainable: &Trainable, ids: &[u32], expected: &[f32]) {
    let weights = Weights::new(model.config, model.tensors, trainable).unwrap();
    for (name, logits) in logits(&weights, ids) {
        let difference = logits
            .iter()
            .zip(expected)
            .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(
            logits.len() == expected.len() && difference < 1e-4,
            "{case}, {name}: {difference}"
        );
    }
}

/// Seen with a checkpoint whose own head was ignored because config.json said that it is tied.
#[test]
fn heads_are_those_that_transformers_uses() {
    let reference = candle_core::safetensors::load(fixtures().join("tied_heads.safetensors"), &Device::Cpu).unwrap();
    let ids: Vec<i64> = reference["input_ids"].to_vec1().unwrap();
    let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
    let mut made_up = HashMap::new();
    for model in ["llama", "llama-sharded", "qwen2", "qwen3"] {
        for tied in ["true", "false", "absent"] {
            for stored in ["differ", "equal", "embedding", "head"] {
                let case = format!("{model}/{tied}/{stored}");
                let dir = rewritten(model, tied, stored, &reference["head"]);
                let Some(expected) = reference.get(&case) else {
                    // `transformers` goes on with random numbers
                    let error = load_quietly(dir.path()).unwrap_err().to_string();
                    *made_up
                        .entry(error.split_once("missing: ").unwrap().1.to_owned())
                        .or_insert(0) += 1;
                    continue;
                };
                let expected: Vec<f32> = expected.to_vec1().unwrap();
                let loaded = load_quietly(dir.path()).unwrap();
                assert_eq!(
                    loaded.warnings.len(),
                    usize::from((tied, stored) == ("true", "differ")),
                    "{case}"
                );

                // what a checkpoint or an export holds is the same model
                let exported = tempfile::tempdir().unwrap();
                export::write_directory(exported.path(), &loaded.files, loaded.tensors.clone(), DType::F32).unwrap();
                let again = load_quietly(exported.path()).unwrap();
                assert!(again.warnings.is_empty(), "{case}");
                assert_eq!(again.config, loaded.config, "{case}");
                let says = again.files.config["tie_word_embeddings"].as_bool().unwrap_or(false);
                assert_eq!(says, again.config.tie_word_embeddings, "{case}");
                assert_logits(&case, again, &Trainable::All, &ids, &expected);

                let lora = Trainable::Lora(LoraConfig {
                    rank: 2,
                    alpha: 4.0,
                    targets: vec!["q_proj".into(), "down_proj".into()],
                    seed: 1,
                }); // adapters begin as nothing
                assert_logits(&case, loaded, &lora, &ids, &expected);
            }
        }
    }
    let hint = "\nhint: a model whose head is its embedding says tie_word_embeddings: true";
    assert_eq!(made_up[&format!("lm_head.weight{hint}")], 8);
    assert_eq!(made_up["model.embed_tokens.weight"], 8);
}
