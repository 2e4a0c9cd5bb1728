//! Training against PyTorch: the fixtures are made by `tests/reference/make_training.py`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ajet_swarm::config::schema::{Ajet, Dtype, Kernels};
use ajet_swarm::model::kernels::Pool;
use ajet_swarm::model::peft::{read_adapter, read_config, write_adapter};
use ajet_swarm::model::{ModelConfig, Trainable, Transformer, Weights};
use ajet_swarm::train::backprop::Backprop;
use ajet_swarm::train::packing::{RowView, pack};
use ajet_swarm::train::{AdamW, Gradients, TrainEpisode, Trainer};
use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use serde_json::{Value, from_value};

const MODELS: [&str; 13] = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "phi3",
    "smollm3",
    "granite",
    "olmo2",
    "gemma2",
    "gemma3",
    "qwen3-moe",
    "qwen3-moe-mixed",
    "mixtral",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensors(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// The text stored beside a safetensors file's tensors.
fn metadata(path: &Path) -> HashMap<String, String> {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    header.metadata().clone().unwrap()
}

fn weights(model: &str, trainable: &Trainable) -> Weights {
    let dir = fixtures().join("models").join(model);
    let config = ModelConfig::from_json(&json(&dir.join("config.json"))).unwrap();
    let tensors: IndexMap<String, Tensor> = tensors(&dir.join("model.safetensors")).into_iter().collect();
    Weights::new(config, tensors, trainable).unwrap()
}

/// Stored adapters and the models that they are of: with projections of their own, with fused ones, and with experts.
const ADAPTERS: [(&str, &str); 4] = [
    ("adapter", "llama"),
    ("adapter-phi3", "phi3"),
    ("adapter-qwen3-moe", "qwen3-moe"),
    ("adapter-mixtral", "mixtral"),
];

/// A model with adapters of the shape of those in a directory.
fn adapted(model: &str, directory: &Path) -> Weights {
    weights(model, &Trainable::Lora(read_config(directory).unwrap()))
}

fn batch() -> (Vec<TrainEpisode>, Value) {
    let mut stored = json(&fixtures().join("training/batch.json"));
    (
        serde_json::from_value(stored["episodes"].take()).unwrap(),
        stored["settings"].take(),
    )
}

fn config(settings: &Value, kernels: Kernels) -> Ajet {
    let number = |key: &str| settings[key].as_f64().unwrap();
    let mut config = Ajet::default();
    config.engine.kernels = kernels;
    config.rollout.temperature = number("temperature");
    let common = &mut config.trainer_common;
    common.optim.lr = number("lr");
    common.optim.weight_decay = number("weight_decay");
    common.optim.grad_clip = number("grad_clip");
    common.kl_loss_coef = number("kl_loss_coef");
    common.entropy_coeff = number("entropy_coeff");
    config
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor
        .to_dtype(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap()
}

fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f32| x as f64 * x as f64;
    let distance: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (distance / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

/// The log-probabilities of each row's masked-in tokens, with `expected` as `log_probs_0` and on.
fn assert_log_probs(weights: &Weights, expected: &HashMap<String, Tensor>, what: &str) {
    let (episodes, settings) = batch();
    let rows = episodes.iter().flat_map(|episode| &episode.rows);
    for (number, row) in rows.enumerate() {
        let targets: Vec<usize> = (0..row.token_ids.len()).filter(|i| row.loss_mask[*i]).collect();
        let micro = &pack(
            &[RowView {
                tokens: &row.token_ids,
                targets: &targets,
                constrained: &[],
            }],
            usize::MAX,
            true,
        )[0];
        for kernels in [Kernels::Plain, Kernels::Auto] {
            let mut backprop = Backprop::choose(weights, kernels, Dtype::F32, Arc::new(Pool::new(2))).unwrap();
            let temperature = settings["temperature"].as_f64().unwrap();
            let found = backprop
                .log_probs(Transformer::new(weights), micro, temperature)
                .unwrap();
            let expected = values(&expected[&format!("log_probs_{number}")]);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-4,
                    "{what}, {kernels:?}, row {number}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_of_pytorch() {
    for model in MODELS {
        let expected = tensors(&fixtures().join(format!("training/{model}.safetensors")));
        assert_log_probs(&weights(model, &Trainable::Nothing), &expected, model);
    }
}

#[test]
fn an_adapter_of_peft_gives_what_it_gives_there() {
    for (adapter, model) in ADAPTERS {
        let dir = fixtures().join("training").join(adapter);
        let weights = adapted(model, &dir);
        read_adapter(&dir, weights.lora.as_ref().unwrap()).unwrap();
        let expected = tensors(&dir.join("expected.safetensors"));
        assert_log_probs(&weights, &expected, adapter);
        assert_log_probs(
            &weights.frozen_copy().unwrap(),
            &expected,
            &format!("{adapter}, merged"),
        );
    }
}

/// What we write has the names and shapes of what `peft` writes, which reads it by them.
#[test]
fn an_adapter_is_written_as_peft_writes_it() {
    for (adapter, model) in ADAPTERS {
        let (dir, written) = (fixtures().join("training").join(adapter), tempfile::tempdir().unwrap());
        let weights = adapted(model, &dir);
        let lora = weights.lora.as_ref().unwrap();
        read_adapter(&dir, lora).unwrap();
        write_adapter(written.path(), lora, "base").unwrap();
        let file = "adapter_model.safetensors";
        let (ours, theirs) = (tensors(&written.path().join(file)), tensors(&dir.join(file)));
        assert_eq!(ours.len(), theirs.len(), "{adapter}");
        for (name, tensor) in &theirs {
            assert_eq!(values(&ours[name]), values(tensor), "{adapter}: {name}");
            assert_eq!(ours[name].dims(), tensor.dims(), "{adapter}: {name}");
        }
    }
}

/// After one update the first moments are the clipped gradients times 1 − β₁.
#[test]
fn gradients_are_those_of_pytorch() {
    let (episodes, settings) = batch();
    for model in MODELS {
        let expected = tensors(&fixtures().join(format!("training/{model}.safetensors")));
        for kernels in [Kernels::Plain, Kernels::Auto] {
            let mut weights = weights(model, &Trainable::AllAndRouters);
            let config = config(&settings, kernels);
            let mut trainer = Trainer::new(&weights, &config).unwrap();
            let report = trainer.update(&mut weights, &episodes, &mut |_| ()).unwrap();
            let dir = tempfile::tempdir().unwrap();
            trainer.save_state(dir.path()).unwrap();
            let moments = tensors(&dir.path().join("trainer.safetensors"));
            let clip = (config.trainer_common.optim.grad_clip / report.metrics["grad_norm"]).min(1.0) as f32;
            for (name, _) in weights.trainable() {
                let gradient: Vec<f32> = values(&moments[&format!("{name}.first")])
                    .iter()
                    .map(|m| m / 0.1 / clip)
                    .collect();
                let distance = relative_l2(&gradient, &values(&expected[&name]));
                assert!(
                    distance < 1e-4,
                    "{model}, {kernels:?}: the gradient of {name} is off by {distance}"
                );
            }
        }
    }
}

#[test]
fn gradients_of_an_adapter_are_those_of_peft() {
    let (episodes, settings) = batch();
    let ways = [Kernels::Plain, Kernels::Auto];
    for ((adapter, model), kernels) in ADAPTERS.into_iter().flat_map(|a| ways.map(|kernels| (a, kernels))) {
        let dir = fixtures().join("training").join(adapter);
        let expected = tensors(&dir.join("expected.safetensors"));
        let mut weights = adapted(model, &dir);
        read_adapter(&dir, weights.lora.as_ref().unwrap()).unwrap();
        let config = config(&settings, kernels);
        let mut trainer = Trainer::new(&weights, &config).unwrap();
        let report = trainer.update(&mut weights, &episodes, &mut |_| ()).unwrap();
        let saved = tempfile::tempdir().unwrap();
        trainer.save_state(saved.path()).unwrap();
        let moments = tensors(&saved.path().join("trainer.safetensors"));
        let clip = (config.trainer_common.optim.grad_clip / report.metrics["grad_norm"]).min(1.0) as f32;
        for (name, _) in weights.trainable() {
            let moment = values(&moments[&format!("{name}.first")]);
            let gradient: Vec<f32> = moment.iter().map(|m| m / 0.1 / clip).collect();
            let distance = relative_l2(&gradient, &values(&expected[&format!("base_model.model.{name}")]));
            assert!(
                distance < 1e-4,
                "{adapter}, {kernels:?}: the gradient of {name} is off by {distance}"
            );
        }
    }
}

#[test]
fn every_estimator_loss_and_correction_is_what_autograd_computes() {
    let (episodes, settings) = batch();
    let variants = json(&fixtures().join("training/losses.json"));
    for variant in variants.as_array().unwrap() {
        let asked = &variant["settings"];
        let mut weights = weights("llama", &Trainable::All);
        let mut config = config(&settings, Kernels::Auto);
        config.data.max_response_length = asked["norm"].as_u64().unwrap() as usize;
        let common = &mut config.trainer_common;
        common.ppo_epochs = 2;
        common.algorithm.adv_estimator = from_value(asked["adv_estimator"].clone()).unwrap();
        common.algorithm.norm_adv_by_std_in_grpo = asked["norm_adv_by_std_in_grpo"].as_bool().unwrap();
        common.policy_loss = from_value(asked["policy_loss"].clone()).unwrap();
        (common.clip_ratio_low, common.clip_ratio_high) = (asked["clip"][0].as_f64(), asked["clip"][1].as_f64());
        common.loss_agg_mode = from_value(asked["loss_agg_mode"].clone()).unwrap();
        common.kl_loss_type = asked["kl_loss_type"].as_str().unwrap().into();
        common.importance_sampling = from_value(asked["importance_sampling"].clone()).unwrap();
        common.advantage_estimation_episode_level = asked["episode_level"].as_bool().unwrap();
        common.loss_weight_normalization_episode_level = asked["episode_level"].as_bool().unwrap();
        let mut trainer = Trainer::new(&weights, &config).unwrap();
        let report = trainer.update(&mut weights, &episodes, &mut |_| ()).unwrap();
        for (name, expected) in variant["expected"].as_object().unwrap() {
            let (found, expected) = (report.metrics[name], expected.as_f64().unwrap());
            let tolerance = 1e-3 * expected.abs().max(0.01);
            assert!(
                (found - expected).abs() < tolerance,
                "{name} is {found}, not {expected}, with {asked}"
            );
        }
    }
}

#[test]
fn two_updates_of_two_epochs_report_what_pytorch_computes() {
    let (episodes, settings) = batch();
    for model in MODELS {
        let stored = metadata(&fixtures().join(format!("training/{model}.safetensors")));
        let expected: Vec<HashMap<String, f64>> = serde_json::from_str(&stored["updates"]).unwrap();
        for kernels in [Kernels::Plain, Kernels::Auto] {
            let mut weights = weights(model, &Trainable::All);
            let mut config = config(&settings, kernels);
            config.trainer_common.ppo_epochs = 2;
            let mut trainer = Trainer::new(&weights, &config).unwrap();
            for (update, expected) in expected.iter().enumerate() {
                let report = trainer.update(&mut weights, &episodes, &mut |_| ()).unwrap();
                for (name, expected) in expected {
                    let found = report.metrics[name];
                    let tolerance = 2e-3 * expected.abs().max(0.1);
                    let what = format!("{model}, {kernels:?}, update {update}: {name}");
                    assert!(
                        (found - expected).abs() < tolerance,
                        "{what} is {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn adamw_walks_the_way_of_pytorchs() {
    let path = fixtures().join("training/adamw.safetensors");
    let (stored, settings) = (tensors(&path), metadata(&path));
    let number = |key: &str| settings[key].parse::<f64>().unwrap();
    let mut weights = weights("llama", &Trainable::All);
    let name = "model.layers.0.self_attn.q_proj.weight";
    let corner = |values: Vec<f32>, like: &Tensor| {
        let mut all = vec![0f32; like.elem_count()];
        all[..values.len()].copy_from_slice(&values);
        Tensor::from_vec(all, like.shape(), &Device::Cpu).unwrap()
    };
    let (_, var) = weights.trainable().into_iter().find(|(n, _)| n == name).unwrap();
    var.set(&corner(values(&stored["start"]), &var)).unwrap();
    let mut optim = Ajet::default().trainer_common.optim;
    optim.betas = [number("beta1"), number("beta2")];
    (optim.eps, optim.weight_decay) = (number("eps"), number("weight_decay"));
    let mut adamw = AdamW::new(&weights, &optim, &Pool::new(1)).unwrap();
    for step in 0..stored["weights"].dim(0).unwrap() {
        let mut gradients = Gradients::default();
        gradients
            .add(name, &corner(values(&stored["gradients"].get(step).unwrap()), &var))
            .unwrap();
        adamw
            .step(&Pool::new(1), &mut weights, &gradients, number("lr"), 1.0)
            .unwrap();
        let expected = values(&stored["weights"].get(step).unwrap());
        for (found, expected) in values(&var).iter().zip(expected) {
            assert!((found - expected).abs() < 2e-6, "step {step}: {found}, not {expected}");
        }
    }
}
