//! Writes a model as a Hugging Face directory, with its adapters merged, if any.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::error::ModelError;
use super::load::{ADDITIONAL_CHAT_TEMPLATES, LoadedModel, ModelFiles, load};
use super::peft;
use super::weights::{Trainable, Weights};
use crate::config::schema::Dtype;

/// Maximum bytes of a file of weights; larger models are split into several files with an index.
const SHARD_BYTES: usize = 5_000_000_000;

/// Writes a model into an existing, empty directory: `config.json`, the weights as `dtype` (`model.safetensors`, or
/// shards and an index), the tokenizer's files and `generation_config.json`. Tensors have Hugging Face names; a tied
/// head is omitted.
pub fn write_directory(
    directory: &Path,
    files: &ModelFiles,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    dtype: DType,
) -> Result<(), ModelError> {
    write_files(directory, files, dtype)?;
    write_weights(directory, tensors, dtype, SHARD_BYTES)
}

/// Copies a model from one Hugging Face directory to another, converted to a type if given.
///
/// # Errors
/// Fails if it cannot be read, or not be written.
pub fn copy_model(
    from: &Path,
    to: &Path,
    dtype: Option<Dtype>,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<(), ModelError> {
    let model = load(&from.to_string_lossy(), &Device::Cpu, DType::F32, progress)?;
    let dtype = file_type(dtype, &model.files);
    write_directory(to, &model.files, model.tensors, dtype)
}

/// Writes the model `base` with the adapters in a directory merged into it: W + (alpha / rank)·B·A, computed in f32.
/// The result has the given type, or else the base's.
///
/// # Errors
/// Fails if the base or the adapters cannot be read or do not belong together, or the result cannot be written.
pub fn write_merged(
    base: &str,
    adapters: &Path,
    to: &Path,
    dtype: Option<Dtype>,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<(), ModelError> {
    let LoadedModel {
        config, tensors, files, ..
    } = load(base, &Device::Cpu, DType::F32, progress)?;
    let weights = Weights::new(config, tensors, &Trainable::Lora(peft::read_config(adapters)?))?;
    if let Some(lora) = &weights.lora {
        peft::read_adapter(adapters, lora)?;
    }
    let dtype = file_type(dtype, &files);
    let merged = weights
        .params
        .keys()
        .map(|name| Ok((name.clone(), weights.effective(name)?)));
    write_directory(to, &files, merged.collect::<Result<Vec<_>, ModelError>>()?, dtype)
}

/// Returns the given type, or else that of `config.json`, or else f32.
fn file_type(asked: Option<Dtype>, files: &ModelFiles) -> DType {
    let named = ["torch_dtype", "dtype"]
        .iter()
        .find_map(|key| files.config[*key].as_str());
    match (asked.unwrap_or_default(), named) {
        (Dtype::F32, _) => DType::F32,
        (Dtype::Bf16, _) | (Dtype::Auto, Some("bfloat16")) => DType::BF16,
        (Dtype::Auto, Some("float16")) => DType::F16,
        (Dtype::Auto, _) => DType::F32,
    }
}

/// Writes the files of tokenizer and chat template: `tokenizer.json` and, if the model has them,
/// `tokenizer_config.json`, `chat_template.jinja` and `additional_chat_templates`.
///
/// # Errors
/// Fails if the files could not be written.
pub fn write_tokenizer(directory: &Path, files: &ModelFiles) -> Result<(), ModelError> {
    write(directory, "tokenizer.json", &files.tokenizer)?;
    write_optional(directory, "tokenizer_config.json", &files.tokenizer_config)?;
    write_optional(directory, "chat_template.jinja", &files.chat_template)?;
    let additional = directory.join(ADDITIONAL_CHAT_TEMPLATES);
    if !files.additional_chat_templates.is_empty() {
        std::fs::create_dir_all(&additional).map_err(ModelError::io(&additional))?;
    }
    for (name, text) in &files.additional_chat_templates {
        write(&additional, &format!("{name}.jinja"), text)?;
    }
    Ok(())
}

fn write_files(directory: &Path, files: &ModelFiles, dtype: DType) -> Result<(), ModelError> {
    let mut config = files.config.clone();
    let key = if config.get("torch_dtype").is_some() {
        "torch_dtype"
    } else {
        "dtype"
    };
    config[key] = match dtype {
        DType::F32 => "float32".into(),
        DType::F16 => "float16".into(),
        DType::BF16 => "bfloat16".into(),
        other => {
            return Err(ModelError::Config(format!(
                "cannot write {other:?}; can write F32, F16 and BF16"
            )));
        }
    };
    write(directory, "config.json", &format!("{config:#}\n"))?;
    write_tokenizer(directory, files)?;
    write_optional(directory, "generation_config.json", &files.generation_config)
}

fn write_optional(directory: &Path, file: &str, text: &Option<String>) -> Result<(), ModelError> {
    text.as_ref().map_or(Ok(()), |text| write(directory, file, text))
}

fn write(directory: &Path, file: &str, text: &str) -> Result<(), ModelError> {
    let path = directory.join(file);
    std::fs::write(&path, text).map_err(ModelError::io(path))
}

/// Writes the shards one after the other, so that only one is in memory in the new type.
fn write_weights(
    directory: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    dtype: DType,
    shard_bytes: usize,
) -> Result<(), ModelError> {
    let mut shards: Vec<Vec<(String, Tensor)>> = vec![Vec::new()];
    let (mut in_shard, mut total) = (0, 0);
    for (name, tensor) in tensors {
        let bytes = tensor.elem_count() * dtype.size_in_bytes();
        if in_shard > 0 && in_shard + bytes > shard_bytes {
            shards.push(Vec::new());
            in_shard = 0;
        }
        (in_shard, total) = (in_shard + bytes, total + bytes);
        if let Some(shard) = shards.last_mut() {
            shard.push((name, tensor));
        }
    }
    if let [shard] = &mut shards[..] {
        return write_shard(&directory.join("model.safetensors"), std::mem::take(shard), dtype);
    }
    let count = shards.len();
    let mut weight_map = serde_json::Map::new();
    for (i, shard) in shards.into_iter().enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        weight_map.extend(shard.iter().map(|(name, _)| (name.clone(), file.clone().into())));
        write_shard(&directory.join(&file), shard, dtype)?;
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    write(directory, "model.safetensors.index.json", &format!("{index:#}\n"))
}

fn write_shard(path: &Path, tensors: Vec<(String, Tensor)>, dtype: DType) -> Result<(), ModelError> {
    let convert = |(name, tensor): (String, Tensor)| -> Result<(String, Tensor), ModelError> {
        Ok((name, tensor.to_device(&Device::Cpu)?.to_dtype(dtype)?))
    };
    let converted = tensors.into_iter().map(convert).collect::<Result<Vec<_>, _>>()?;
    // Python's readers want to know that the tensors are PyTorch's
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize_to_file(converted, Some(format), path)
        .map_err(|e| ModelError::file(path.display().to_string(), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::load::load;
    use crate::model::{LoadedModel, ModelConfig};

    fn load_quietly(path: &Path) -> LoadedModel {
        load(path.to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap()
    }

    fn fixture(name: &str) -> LoadedModel {
        load_quietly(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/fixtures/models")
                .join(name),
        )
    }

    fn assert_same_weights(a: &LoadedModel, b: &LoadedModel) {
        let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(a.tensors.keys().eq(b.tensors.keys()));
        assert!(
            a.tensors
                .iter()
                .all(|(name, tensor)| values(tensor) == values(&b.tensors[name]))
        );
    }

    #[test]
    fn a_written_model_is_read_as_it_was() {
        for name in [
            "llama",
            "llama-sharded",
            "qwen3",
            "phi3",
            "olmo2",
            "gemma3",
            "qwen3-moe",
            "mixtral",
        ] {
            let (model, directory) = (fixture(name), tempfile::tempdir().unwrap());
            write_directory(directory.path(), &model.files, model.tensors.clone(), DType::F32).unwrap();
            let again = load_quietly(directory.path());
            assert_same_weights(&model, &again);
            assert_eq!(again.files, model.files);
            assert_eq!(again.generation, model.generation);
        }
    }

    #[test]
    fn large_models_are_written_in_shards() {
        let (model, directory) = (fixture("qwen3"), tempfile::tempdir().unwrap());
        write_files(directory.path(), &model.files, DType::F32).unwrap();
        write_weights(directory.path(), model.tensors.clone(), DType::F32, 40_000).unwrap();
        let files: Vec<u64> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap())
            .filter(|e| e.path().extension().is_some_and(|x| x == "safetensors"))
            .map(|e| e.metadata().unwrap().len())
            .collect();
        assert!(files.len() >= 3 && files.iter().all(|size| *size < 45_000), "{files:?}");
        assert_same_weights(&model, &load_quietly(directory.path()));
    }

    #[test]
    fn the_type_is_written_in_the_key_that_the_config_has() {
        for (name, key) in [("llama", "dtype"), ("qwen3", "torch_dtype")] {
            let (model, directory) = (fixture(name), tempfile::tempdir().unwrap());
            write_directory(directory.path(), &model.files, model.tensors.clone(), DType::BF16).unwrap();
            let again = load_quietly(directory.path());
            assert_eq!(again.files.config[key], "bfloat16");
            assert_eq!(ModelConfig::from_json(&again.files.config).unwrap(), model.config);
            let weights = directory.path().join("model.safetensors");
            let tensors = candle_core::safetensors::load(weights, &Device::Cpu).unwrap();
            assert!(tensors.values().all(|t| t.dtype() == DType::BF16));
        }
        let (model, directory) = (fixture("llama"), tempfile::tempdir().unwrap());
        let message = write_directory(directory.path(), &model.files, model.tensors.clone(), DType::U8).unwrap_err();
        assert_eq!(
            message.to_string(),
            "config.json: cannot write U8; can write F32, F16 and BF16"
        );
    }
}
