//! Low-rank adapters on disk, in the layout of Python's `peft`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use super::error::{ModelError, Result};
use super::load::finite;
use super::lora::{Lora, LoraConfig};
use crate::config::schema::Dtype;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};

/// File of the adapters' shape, by which an adapter directory is known.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// File of their values.
const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// What `peft` puts before a tensor's name in the model.
const PREFIX: &str = "base_model.model.";

/// Writes the adapters into an existing directory. `base_model` is what `peft` loads them onto: a directory or hub id.
///
/// # Errors
/// Fails if the files could not be written.
pub fn write_adapter(directory: &Path, lora: &Lora, base_model: &str) -> Result<()> {
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.config.rank,
        "lora_alpha": lora.config.alpha,
        "lora_dropout": 0.0,
        "target_modules": lora.config.targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "use_rslora": false,
        "use_dora": false,
    });
    let path = directory.join(CONFIG_FILE);
    std::fs::write(&path, format!("{config:#}\n")).map_err(ModelError::io(path))?;
    let tensors = lora.trainable().into_iter().map(|(name, var)| {
        let values = var.as_detached_tensor().to_device(&Device::Cpu)?;
        Ok((format!("{PREFIX}{name}"), values))
    });
    write_values(directory, tensors.collect::<Result<Vec<_>>>()?)
}

/// Copies adapters from a directory into another, in another type where one is given.
///
/// # Errors
/// Fails if a file is missing or damaged, or could not be written.
pub fn copy_adapter(from: &Path, to: &Path, dtype: Option<Dtype>) -> Result<()> {
    let path = to.join(CONFIG_FILE);
    std::fs::copy(from.join(CONFIG_FILE), &path).map_err(ModelError::io(path))?;
    let path = from.join(WEIGHTS_FILE);
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu)
        .map_err(|e| ModelError::file(path.display().to_string(), e))?;
    let mut tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (_, tensor) in &mut tensors {
        *tensor = match dtype.unwrap_or_default() {
            Dtype::Auto => continue,
            Dtype::F32 => tensor.to_dtype(DType::F32)?,
            Dtype::Bf16 => tensor.to_dtype(DType::BF16)?,
        };
    }
    write_values(to, tensors)
}

fn write_values(directory: &Path, tensors: Vec<(String, Tensor)>) -> Result<()> {
    let path = directory.join(WEIGHTS_FILE);
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize_to_file(tensors, Some(format), &path)
        .map_err(|e| ModelError::file(path.display().to_string(), e))
}

/// Returns the model that an adapter directory names as its base: a directory or hub id.
///
/// # Errors
/// `adapter_config.json` is missing or damaged, or names none.
pub fn base_model(directory: &Path) -> Result<String> {
    const KEY: &str = "base_model_name_or_path";
    let (path, config) = config_file(directory)?;
    let base = config[KEY].as_str().filter(|base| !base.is_empty());
    base.map(str::to_owned)
        .ok_or_else(|| ModelError::file(path.display().to_string(), format!("`{KEY}` is missing")))
}

/// The shape of the adapters in a directory.
///
/// # Errors
/// Fails if `adapter_config.json` is missing, damaged, or of another kind of adapter.
pub fn read_config(directory: &Path) -> Result<LoraConfig> {
    let (path, config) = config_file(directory)?;
    let targets = config["target_modules"].as_array().map(|names| {
        let names = names.iter().filter_map(Value::as_str);
        names.map(str::to_owned).collect::<Vec<_>>()
    });
    let shape = (config["r"].as_u64(), config["lora_alpha"].as_f64(), targets);
    let (Some(rank @ 1..), Some(alpha), Some(targets)) = shape else {
        let reason = "it needs `r`, `lora_alpha` and a list of `target_modules`";
        return Err(ModelError::file(path.display().to_string(), reason));
    };
    Ok(LoraConfig {
        rank: rank as usize,
        alpha,
        targets,
        seed: 0,
    })
}

fn config_file(directory: &Path) -> Result<(PathBuf, Value)> {
    let path = directory.join(CONFIG_FILE);
    let text = read_text(&path, DOCUMENT_BYTES).map_err(ModelError::io(path.clone()))?;
    let config = serde_json::from_str(&text).map_err(|e| ModelError::file(path.display().to_string(), e))?;
    Ok((path, config))
}

/// Takes over the adapters of a directory, which must be of the same shape.
///
/// # Errors
/// Fails if a file is missing or damaged; rank, alpha or targets are not those of `lora` (both are named). Nothing is
/// changed then.
pub fn read_adapter(directory: &Path, lora: &Lora) -> Result<()> {
    let (path, config) = config_file(directory)?;
    let own = &lora.config;
    let asked = json!({ "r": own.rank, "lora_alpha": own.alpha, "target_modules": own.targets });
    for (key, asked) in asked.as_object().into_iter().flatten() {
        if !same(&config[key], asked) {
            let reason = format!(
                "`{key}` is {}, this run has {asked}\nhint: resume with the ajet.lora settings that the experiment \
                 began with, or choose another experiment_name",
                config[key]
            );
            return Err(ModelError::file(path.display().to_string(), reason));
        }
    }
    let path = directory.join(WEIGHTS_FILE);
    let wrong = |reason: String| ModelError::file(path.display().to_string(), reason);
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).map_err(|e| wrong(e.to_string()))?;
    let mut values: Vec<Tensor> = Vec::new();
    for (name, var) in lora.trainable() {
        let found = tensors
            .get(&format!("{PREFIX}{name}"))
            .filter(|found| found.dims() == var.dims());
        let found = found.ok_or_else(|| wrong(format!("it has no `{PREFIX}{name}` of shape {:?}", var.dims())))?;
        let found = found.to_dtype(var.dtype())?;
        finite::check(&found, &name, &path.display().to_string())?;
        values.push(found.to_device(var.device())?);
    }
    for ((_, var), value) in lora.trainable().into_iter().zip(values) {
        var.set(&value)?;
    }
    Ok(())
}

/// Equal as numbers, or as lists in any order: `peft` writes its targets unordered.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_array(), b.as_array()) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().all(|x| b.contains(x)),
        _ => a.as_f64() == b.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{Family, ModelConfig};
    use crate::model::lora::LoraConfig;
    use crate::model::weights::{Trainable, Weights, random_tensors};

    fn lora(rank: usize, seed: u64) -> Lora {
        let config = ModelConfig::small(Family::Llama);
        let targets = vec!["q_proj".to_string(), "down_proj".to_string()];
        let trainable = Trainable::Lora(LoraConfig {
            rank,
            alpha: 8.0,
            targets,
            seed,
        });
        let tensors = random_tensors(&config, 0.1, 0).unwrap();
        Weights::new(config, tensors, &trainable).unwrap().lora.unwrap()
    }

    fn values(lora: &Lora) -> Vec<Vec<f32>> {
        lora.trainable()
            .iter()
            .map(|(_, var)| var.flatten_all().unwrap().to_vec1().unwrap())
            .collect()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let (written, read) = (lora(3, 1), lora(3, 2));
        assert_ne!(values(&written), values(&read));
        write_adapter(dir.path(), &written, "base").unwrap();
        read_adapter(dir.path(), &read).unwrap();
        assert_eq!(values(&written), values(&read));
    }

    #[test]
    fn an_adapter_with_values_that_are_not_finite_is_refused_and_leaves_the_weights() {
        let dir = tempfile::tempdir().unwrap();
        let (written, read) = (lora(3, 1), lora(3, 2));
        let (_, var) = &written.trainable()[0];
        var.set(&(var.as_tensor() * f64::INFINITY).unwrap()).unwrap();
        write_adapter(dir.path(), &written, "base").unwrap();
        let before = values(&read);
        let message = read_adapter(dir.path(), &read).unwrap_err().to_string();
        assert!(
            message.contains("are NaN or infinite") && message.contains("hint:"),
            "{message}"
        );
        assert_eq!(values(&read), before);
    }

    #[test]
    fn another_shape_is_refused_with_both() {
        let dir = tempfile::tempdir().unwrap();
        write_adapter(dir.path(), &lora(3, 1), "base").unwrap();
        let message = read_adapter(dir.path(), &lora(2, 1)).unwrap_err().to_string();
        assert!(message.contains("`r` is 3, this run has 2"), "{message}");
        std::fs::write(dir.path().join(WEIGHTS_FILE), b"short").unwrap();
        assert!(
            read_adapter(dir.path(), &lora(3, 1))
                .unwrap_err()
                .to_string()
                .contains(WEIGHTS_FILE)
        );
    }

    #[test]
    fn a_target_that_matches_nothing_is_refused() {
        let config = ModelConfig::small(Family::Llama);
        let targets = vec!["query".to_string()];
        let trainable = Trainable::Lora(LoraConfig {
            rank: 1,
            alpha: 1.0,
            targets,
            seed: 0,
        });
        let tensors = random_tensors(&config, 0.1, 0).unwrap();
        let message = Weights::new(config, tensors, &trainable).unwrap_err().to_string();
        assert!(message.contains("`query`") && message.contains("q_proj"), "{message}");
    }
}
