//! The Hugging Face layout: `config.json`, safetensors (one file, or several with an index), tokenizer files.

use std::collections::{BTreeSet, HashMap};

use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use serde_json::Value;

use super::files::Files;
use super::safetensors::Shard;
use super::{ADDITIONAL_CHAT_TEMPLATES, LoadedModel, ModelFiles};
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;
use crate::model::weights::{EMBEDDING, LM_HEAD};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Loads a model in the layout of a Hugging Face directory: `config.json`, safetensors, tokenizer and chat template.
pub(super) fn load(
    files: &Files,
    device: &Device,
    dtype: DType,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    let mut model_files = model_files(files)?;
    let mut config = ModelConfig::from_json(&model_files.config)?;
    let mut stored = Stored::open(files)?;
    let both = stored.has(EMBEDDING) && stored.has(LM_HEAD);
    let said_tied = config.tie_word_embeddings;
    config.tie_word_embeddings &= !both;
    let mut tensors = stored.load(&config, device, dtype, progress)?;
    let mut warnings = vec![];
    if said_tied && both {
        if same(&tensors[EMBEDDING], &tensors[LM_HEAD])? {
            config.tie_word_embeddings = true;
            tensors.shift_remove(LM_HEAD);
        } else {
            model_files.config["tie_word_embeddings"] = false.into(); // exports say so too
            warnings.push(format!(
                "config.json says tie_word_embeddings: true, but the values of {LM_HEAD} are not those of {EMBEDDING}; \
                 both are used, as transformers does"
            ));
        }
    }
    let mut model = model_files.into_model(config, tensors)?;
    model.warnings = warnings;
    Ok(model)
}

/// Reads the files beside the weights.
pub(super) fn model_files(files: &Files) -> Result<ModelFiles, ModelError> {
    let missing =
        |file: &str, hint: &str| ModelError::file(files.place(file), format!("the file is missing\nhint: {hint}"));
    Ok(ModelFiles {
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
        additional_chat_templates: files.texts(ADDITIONAL_CHAT_TEMPLATES, ".jinja")?,
    })
}

/// Whether two tensors have the same values.
fn same(a: &Tensor, b: &Tensor) -> Result<bool, ModelError> {
    let differ = a.ne(b)?.to_dtype(DType::F32)?.max_all()?;
    Ok(differ.to_scalar::<f32>()? == 0.0)
}

/// The open weight files of a model.
struct Stored {
    shards: Vec<Shard>,
    /// Name of each tensor → index of its shard.
    owners: HashMap<String, usize>,
}

impl Stored {
    fn open(files: &Files) -> Result<Self, ModelError> {
        let shards = open_shards(files)?;
        let mut owners = HashMap::new();
        for (index, shard) in shards.iter().enumerate() {
            for (name, _) in shard.tensors() {
                if let Some(other) = owners.insert(name.to_owned(), index) {
                    let other = shards[other].place();
                    return Err(ModelError::file(
                        format!("{name} of {}", shard.place()),
                        format!("the tensor is in {other} too"),
                    ));
                }
            }
        }
        Ok(Self { shards, owners })
    }

    fn has(&self, name: &str) -> bool {
        self.owners.contains_key(name)
    }

    /// Name in the files of a parameter: a tied embedding may be stored as the head alone.
    fn name_of<'a>(&self, config: &ModelConfig, name: &'a str) -> &'a str {
        match name == EMBEDDING && config.tie_word_embeddings && !self.has(EMBEDDING) && self.has(LM_HEAD) {
            true => LM_HEAD,
            false => name,
        }
    }

    /// Reads the parameters of a configuration.
    fn load(
        &mut self,
        config: &ModelConfig,
        device: &Device,
        dtype: DType,
        progress: &mut dyn FnMut(f32, &str),
    ) -> Result<IndexMap<String, Tensor>, ModelError> {
        let mut expected = config.tensor_shapes();
        for (name, _) in &mut expected {
            *name = self.name_of(config, name).to_owned();
        }
        check_tensors(config, &expected, &self.shards)?;
        let total = config.num_parameters() as f32;
        let mut done = 0;
        let mut tensors = IndexMap::with_capacity(expected.len());
        for (name, shape) in config.tensor_shapes() {
            progress(done as f32 / total, "loading weights");
            done += shape.iter().product::<usize>();
            let stored = self.name_of(config, &name);
            let tensor = self.shards[self.owners[stored]].read(stored, device, dtype)?; // there: `check_tensors`
            tensors.insert(name, tensor);
        }
        progress(1.0, "loading weights");
        Ok(tensors)
    }
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

/// Compares the tensors of the files with those of the architecture, so that the first error names all differences.
fn check_tensors(config: &ModelConfig, expected: &[(String, Vec<usize>)], shards: &[Shard]) -> Result<(), ModelError> {
    let found: IndexMap<&str, &[usize]> = shards.iter().flat_map(Shard::tensors).collect();
    let missing: Vec<&str> = expected
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !found.contains_key(name))
        .collect();
    let missing_head = missing == [LM_HEAD];
    let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    let is_harmless = |name: &str| name.ends_with("rotary_emb.inv_freq"); // in old files
    let extra: Vec<&str> = found
        .keys()
        .copied()
        .filter(|name| !known.contains(name) && !is_harmless(name))
        .collect();
    let misshapen: Vec<String> = expected
        .iter()
        .filter_map(|(name, shape)| {
            let other = found.get(name.as_str()).filter(|other| *other != shape)?;
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
    let hint = match missing_head {
        true => "\nhint: a model whose head is its embedding says tie_word_embeddings: true",
        false => "",
    };
    let architecture = config.family.architecture();
    Err(ModelError::Tensors(format!(
        "the weights are not those that config.json describes ({architecture}); {}{hint}",
        problems.join("; ")
    )))
}
