//! Random weights for somebody's `config.json`: how fast an architecture is on a machine, without its weights.
//!
//! Text comes from the tiny built-in model's tokenizer; ids beyond it stand for no text.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{LoadedModel, ModelFiles, builtin};
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;
use crate::model::memory;

/// Prefix of the path of a `config.json`.
pub(super) const PREFIX: &str = "random:";
/// The standard deviation with which models are commonly initialised.
const DEVIATION: f32 = 0.02;

/// Creates random weights of the shapes of a `config.json`: the same for the same configuration on every machine.
pub(super) fn load(
    config_path: &str,
    device: &Device,
    dtype: DType,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    let text = read_text(Path::new(config_path), DOCUMENT_BYTES).map_err(ModelError::io(config_path))?;
    let mut json: Value = serde_json::from_str(&text).map_err(|e| ModelError::file(config_path, e))?;
    let config = ModelConfig::from_json(&json)?;
    let bytes = config.num_parameters() * dtype.size_in_bytes();
    if let Some(available) = memory::available().filter(|available| bytes > *available) {
        let reason = format!("weights of its shapes take {bytes} bytes, {available} are available");
        return Err(ModelError::file(config_path, reason));
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let total = config.num_parameters() as f32;
    let (mut done, mut tensors) = (0, IndexMap::new());
    for (name, shape) in config.tensor_shapes() {
        progress(done as f32 / total, "drawing weights");
        let len = shape.iter().product();
        done += len;
        let values = values(&name, len, &mut rng);
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
        tensors.insert(name, tensor.to_dtype(dtype)?.to_device(device)?);
    }
    let tiny = builtin::files("tiny").ok_or_else(|| super::not_found("builtin:tiny"))?;
    // Ends of answers are those of the tokenizer, not of the model that the configuration is from.
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        json[key] = tiny.json("config.json")?.unwrap_or(json!({}))[key].clone();
    }
    let files = ModelFiles {
        config: json,
        tokenizer: tiny.text("tokenizer.json")?.unwrap_or_default(),
        tokenizer_config: tiny.text("tokenizer_config.json")?,
        generation_config: tiny.text("generation_config.json")?,
        chat_template: tiny.text("chat_template.jinja")?,
        additional_chat_templates: BTreeMap::new(),
    };
    files.into_model(config, tensors)
}

/// Norms start as 1 and biases as 0; the rest is uniform.
fn values(name: &str, len: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let bound = DEVIATION * 3f32.sqrt();
    match name {
        _ if name.ends_with("norm.weight") => vec![1.0; len],
        _ if name.ends_with(".bias") => vec![0.0; len],
        _ => (0..len).map(|_| rng.random_range(-bound..bound)).collect(),
    }
}
