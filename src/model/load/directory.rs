//! The Hugging Face layout: `config.json`, safetensors (one file, or several with an index), tokenizer files.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use serde_json::Value;

use super::files::Files;
use super::safetensors::Shard;
use super::{LoadedModel, ModelFiles};
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Loads a model from its files.
pub(super) fn load(
    files: &Files,
    device: &Device,
    dtype: DType,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    let missing =
        |file: &str, hint: &str| ModelError::file(files.place(file), format!("the file is missing\nhint: {hint}"));
    let model_files = ModelFiles {
        config: files.json("config.json")?.ok_or_else(|| {
            missing(
                "config.json",
                "a model directory needs it; for a .gguf file give the path of the file itself",
            )
        })?,
        tokenizer: files.text("tokenizer.json")?.ok_or_else(|| {
            missing(
                "tokenizer.json",
                "older tokenizers are converted by AutoTokenizer.from_pretrained(...).save_pretrained(...) in Python",
            )
        })?,
        tokenizer_config: files.text("tokenizer_config.json")?,
        generation_config: files.text("generation_config.json")?,
        chat_template: files.text("chat_template.jinja")?,
    };
    let config = ModelConfig::from_json(&model_files.config)?;
    let tensors = load_tensors(files, &config, device, dtype, progress)?;
    model_files.into_model(config, tensors)
}

/// The parameters of a configuration, from the files.
fn load_tensors(
    files: &Files,
    config: &ModelConfig,
    device: &Device,
    dtype: DType,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<IndexMap<String, Tensor>, ModelError> {
    let mut shards = open_shards(files)?;
    let expected = config.tensor_shapes();
    check_tensors(config, &expected, &shards)?;

    let total = config.num_parameters() as f32;
    let mut done = 0;
    let mut tensors = IndexMap::with_capacity(expected.len());
    for (name, shape) in expected {
        let shard = shards.iter_mut().find(|shard| shard.tensors().any(|(n, _)| n == name));
        let shard = shard.ok_or_else(|| ModelError::Tensors(format!("the tensor {name} is missing")))?;
        progress(done as f32 / total, "loading weights");
        done += shape.iter().product::<usize>();
        let tensor = shard.read(&name, device, dtype)?;
        tensors.insert(name, tensor);
    }
    progress(1.0, "loading weights");
    Ok(tensors)
}

fn open_shards(files: &Files) -> Result<Vec<Shard>, ModelError> {
    if let Some(shard) = Shard::open(files, SINGLE)? {
        return Ok(vec![shard]);
    }
    let Some(index) = files.json(INDEX)? else {
        return Err(ModelError::file(
            files.place(SINGLE),
            "the file is missing\nhint: weights are read from safetensors; older pytorch_model.bin files are converted by \
             AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) in Python",
        ));
    };
    let names = index["weight_map"]
        .as_object()
        .map(|map| map.values().map(Value::as_str).collect());
    let Some(Some(names)) = names.map(|names: Vec<_>| names.into_iter().collect::<Option<BTreeSet<&str>>>()) else {
        return Err(ModelError::file(
            files.place(INDEX),
            "`weight_map` must map tensors to file names",
        ));
    };
    let open = |name: &&str| {
        if name.contains(['/', '\\']) {
            return Err(ModelError::file(
                files.place(INDEX),
                format!("`{name}` is not the name of a file beside it"),
            ));
        }
        let missing = || ModelError::file(files.place(name), "the file is missing, the index names it");
        Shard::open(files, name)?.ok_or_else(missing)
    };
    names.iter().map(open).collect()
}

/// Compares the tensors of the files with those of the architecture, so that the first error tells everything.
fn check_tensors(config: &ModelConfig, expected: &[(String, Vec<usize>)], shards: &[Shard]) -> Result<(), ModelError> {
    let found: IndexMap<String, Vec<usize>> = shards.iter().flat_map(Shard::tensors).collect();
    let missing: Vec<&str> = expected
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !found.contains_key(*name))
        .collect();
    let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    // files of tied models may hold the head a second time, old ones the rope frequencies
    let is_harmless =
        |name: &str| (config.tie_word_embeddings && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq");
    let extra: Vec<&str> = found
        .keys()
        .map(String::as_str)
        .filter(|name| !known.contains(name) && !is_harmless(name))
        .collect();
    let misshapen: Vec<String> = expected
        .iter()
        .filter_map(|(name, shape)| {
            let other = found.get(name).filter(|other| *other != shape)?;
            Some(format!("{name} (is {other:?}, must be {shape:?})"))
        })
        .collect();

    let list = |names: &[&str]| match names {
        [shown @ .., _, _] if names.len() > 6 => format!("{} and {} more", shown[..4].join(", "), names.len() - 4),
        _ => names.join(", "),
    };
    let misshapen: Vec<&str> = misshapen.iter().map(String::as_str).collect();
    let problems: Vec<String> = [
        ("missing", missing),
        ("not part of it", extra),
        ("of another shape", misshapen),
    ]
    .into_iter()
    .filter(|(_, names)| !names.is_empty())
    .map(|(what, names)| format!("{what}: {}", list(&names)))
    .collect();
    if problems.is_empty() {
        return Ok(());
    }
    let architecture = config.family.architecture();
    Err(ModelError::Tensors(format!(
        "the weights are not those that config.json describes ({architecture}); {}",
        problems.join("; ")
    )))
}
