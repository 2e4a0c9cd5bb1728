//! Loading a model from wherever it is: a Hugging Face directory (`directory`), a `.gguf` file (`gguf`), the hub (`hub`)
//! or the binary itself (`builtin`). `text` loads the tokenizer and the chat template alone.

mod builtin;
mod directory;
mod files;
pub(crate) mod finite;
mod gguf;
mod gguf_experts;
mod gguf_header;
mod gguf_metadata;
mod gguf_tokenizer;
#[cfg(test)]
pub(crate) mod gguf_writer;
mod hub;
mod random;
mod safetensors;
mod shape;
mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use serde_json::Value;

use super::chat_template::ChatTemplate;
use super::config::ModelConfig;
use super::error::ModelError;
use super::kernels::QuantizedMatrix;
use super::tokenizer::Tokenizer;

pub use shape::load_shape;
pub use text::{TextSide, load_text};

/// A model in memory, with what is needed to use it and to write it as a checkpoint.
#[derive(Debug)]
pub struct LoadedModel {
    /// The architecture.
    pub config: ModelConfig,
    /// Every parameter by its Hugging Face name, in the order of [`ModelConfig::tensor_shapes`]; a tied head is
    /// absent.
    pub tensors: IndexMap<String, Tensor>,
    /// Parameters that stay in the blocks of their file, which are not among the tensors.
    pub quantized: IndexMap<String, Arc<QuantizedMatrix>>,
    /// Text ↔ ids.
    pub tokenizer: Tokenizer,
    /// Messages → text.
    pub chat_template: ChatTemplate,
    /// What ends an answer.
    pub generation: Generation,
    /// The files beside the weights, for exports.
    pub files: ModelFiles,
    /// What the files say of themselves that is not so.
    pub warnings: Vec<String>,
}

/// Generation settings of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// The token at the beginning of documents. Chat templates write it themselves.
    pub bos_token_id: Option<u32>,
    /// The token that fills up rows.
    pub pad_token_id: Option<u32>,
}

/// Files of a model directory beside its weights, unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: Value,
    /// `tokenizer.json`.
    pub tokenizer: String,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<String>,
    /// `generation_config.json`.
    pub generation_config: Option<String>,
    /// `chat_template.jinja`.
    pub chat_template: Option<String>,
    /// The texts of `additional_chat_templates/NAME.jinja`, by name.
    pub additional_chat_templates: BTreeMap<String, String>,
}

/// Directory of templates for other uses than `chat_template.jinja`, such as `tool_use.jinja`.
pub const ADDITIONAL_CHAT_TEMPLATES: &str = "additional_chat_templates";

/// Loads the model at `path`: a Hugging Face directory, a `.gguf` file, a hub id (`org/name`, or `org/name@revision`),
/// `builtin:NAME`, or `builtin:random:CONFIG` for random weights of a `config.json`'s shapes. Weights are converted to
/// `dtype` and moved to `device`. `progress` receives the fraction done (0 to 1) and the current activity.
pub fn load(
    path: &str,
    device: &Device,
    dtype: DType,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    if let Some(name) = path.strip_prefix("builtin:") {
        if let Some(config) = name.strip_prefix(random::PREFIX) {
            return random::load(config, device, dtype, progress);
        }
        // What follows a colon is for the engine: a script's answers.
        let (name, _) = name.split_once(':').unwrap_or((name, ""));
        let files = builtin::files(name).ok_or_else(|| not_found(path))?;
        return directory::load(&files, device, dtype, progress);
    }
    let local = Path::new(path);
    if local.is_dir() {
        return directory::load(&files::Files::Directory(local.to_path_buf()), device, dtype, progress);
    }
    if local.is_file() {
        return gguf::load(local, gguf::Matrices::Dequantized(device, dtype), progress);
    }
    let Some(repository) = hub::id(path) else {
        return Err(not_found(path));
    };
    let snapshot = hub::snapshot(&repository, progress)?;
    directory::load(&files::Files::Directory(snapshot), device, dtype, progress)
}

/// Loads a `.gguf` file for the CPU kernels: matrices stay in the file's blocks where these are of a type that is computed
/// with, and everything else becomes f32.
///
/// # Errors
/// As [`load`], and if the path is not a file or the device not the CPU.
pub fn load_quantized(
    path: &str,
    device: &Device,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    if !device.is_cpu() {
        return Err(ModelError::QuantizedNeedsKernels);
    }
    let local = Path::new(path);
    match local.is_file() {
        true => gguf::load(local, gguf::Matrices::Quantized, progress),
        false => Err(ModelError::NothingQuantized(path.to_owned())),
    }
}

fn not_found(path: &str) -> ModelError {
    ModelError::NotFound {
        path: path.to_string(),
        builtin: builtin::names(),
    }
}

impl Generation {
    /// From `generation_config.json`, else `config.json`; the end-of-sequence token that the tokenizer names (for chat
    /// models: the end of a turn) always counts too.
    fn new(generation_config: &Value, config: &Value, tokenizer_config: &Value, tokenizer: &Tokenizer) -> Self {
        let configs = [generation_config, config];
        let ids = |key: &str| -> Vec<u32> {
            let value = configs.iter().map(|config| &config[key]).find(|value| !value.is_null());
            let one_or_many = value.map(|v| v.as_array().map_or(std::slice::from_ref(v), Vec::as_slice));
            let numbers = one_or_many.unwrap_or_default().iter().filter_map(Value::as_u64);
            numbers.filter_map(|id| u32::try_from(id).ok()).collect()
        };
        let named = |key: &str| {
            let token = &tokenizer_config[key];
            tokenizer.token_id(token.as_str().or_else(|| token["content"].as_str())?)
        };
        let mut eos_token_ids = ids("eos_token_id");
        eos_token_ids.extend(named("eos_token").filter(|id| !eos_token_ids.contains(id)));
        Self {
            eos_token_ids,
            bos_token_id: ids("bos_token_id").first().copied().or_else(|| named("bos_token")),
            pad_token_id: ids("pad_token_id").first().copied().or_else(|| named("pad_token")),
        }
    }
}

impl ModelFiles {
    /// Puts a model together from its files and weights.
    fn into_model(self, config: ModelConfig, tensors: IndexMap<String, Tensor>) -> Result<LoadedModel, ModelError> {
        let TextSide {
            tokenizer,
            chat_template,
            generation,
        } = self.text_side(&config)?;
        Ok(LoadedModel {
            config,
            tensors,
            quantized: IndexMap::new(),
            tokenizer,
            chat_template,
            generation,
            files: self,
            warnings: vec![],
        })
    }

    /// What turns messages into ids.
    fn text_side(&self, config: &ModelConfig) -> Result<TextSide, ModelError> {
        let tokenizer = Tokenizer::from_json(self.tokenizer.as_bytes())?.for_embedding(config.vocab_size);
        let parse = |file: &str, text: &Option<String>| match text {
            Some(text) => serde_json::from_str(text).map_err(|e| ModelError::file(file, e)),
            None => Ok(Value::Null),
        };
        let tokenizer_config = parse("tokenizer_config.json", &self.tokenizer_config)?;
        let generation_config = parse("generation_config.json", &self.generation_config)?;
        let chat_template = ChatTemplate::new(
            &tokenizer_config,
            self.chat_template.as_deref(),
            &self.additional_chat_templates,
        )?;
        let generation = Generation::new(&generation_config, &self.config, &tokenizer_config, &tokenizer);
        Ok(TextSide {
            tokenizer,
            chat_template,
            generation,
        })
    }
}

#[cfg(test)]
mod tests;
