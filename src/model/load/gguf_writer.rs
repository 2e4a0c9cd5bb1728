//! Writes fixtures as GGUF files, for tests.

use candle_core::quantized::gguf_file::Value as GgufValue;
use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::{DType, Device, Tensor};
use indexmap::IndexMap;
use serde_json::Value;

use super::gguf::gguf_name;
use super::{LoadedModel, load};
use crate::model::error::ModelError;

/// A model of the fixtures.
pub(super) fn fixture(name: &str) -> LoadedModel {
    let path = format!("{}/tests/fixtures/models/{name}", env!("CARGO_MANIFEST_DIR"));
    load(&path, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap()
}

/// A file with a fixture's matrices in Q8_0.
pub(crate) fn quantized_fixture(name: &str) -> tempfile::NamedTempFile {
    Converted::from(&fixture(name)).write(GgmlDType::Q8_0)
}

/// What converters do to the rows of q and k of Llama models.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.dim(0).unwrap();
    let halves = tensor
        .reshape((heads, 2, rows / heads / 2, tensor.elem_count() / rows))
        .unwrap();
    halves
        .transpose(1, 2)
        .unwrap()
        .contiguous()
        .unwrap()
        .reshape(tensor.shape())
        .unwrap()
}

/// Metadata and tensors that a converter would write for a model.
pub(super) struct Converted {
    pub(super) metadata: Vec<(String, GgufValue)>,
    pub(super) tensors: Vec<(String, Tensor)>,
}

impl Converted {
    /// As a converter would write it, without the settings of rope.
    pub(super) fn from(model: &LoadedModel) -> Self {
        let config = &model.config;
        let architecture = config.family.gguf_architecture().unwrap();
        let text = |s: &str| GgufValue::String(s.to_string());
        let texts = |list: Vec<String>| GgufValue::Array(list.into_iter().map(GgufValue::String).collect());
        let number = |n: usize| GgufValue::U32(n as u32);
        let tokenizer: Value = serde_json::from_str(&model.files.tokenizer).unwrap();
        let mut tokens: Vec<(u64, String)> = tokenizer["model"]["vocab"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
            .collect();
        tokens.sort();
        let kinds = tokens
            .iter()
            .map(|(id, _)| GgufValue::I32(if *id < 3 { 3 } else { 1 }))
            .collect();
        let general = [
            ("general.architecture".to_string(), text(architecture)),
            ("tokenizer.ggml.model".to_string(), text("gpt2")),
            ("tokenizer.ggml.pre".to_string(), text("gpt-2")),
            (
                "tokenizer.ggml.tokens".to_string(),
                texts(tokens.into_iter().map(|(_, token)| token).collect()),
            ),
            ("tokenizer.ggml.token_type".to_string(), GgufValue::Array(kinds)),
            ("tokenizer.ggml.merges".to_string(), texts(vec![])),
            ("tokenizer.ggml.bos_token_id".to_string(), number(1)),
            ("tokenizer.ggml.eos_token_id".to_string(), number(2)),
            ("tokenizer.ggml.padding_token_id".to_string(), number(0)),
            (
                "tokenizer.chat_template".to_string(),
                text(model.files.chat_template.as_ref().unwrap()),
            ),
        ];
        let own = [
            ("block_count", number(config.layers.len())),
            ("context_length", number(config.max_position_embeddings)),
            ("embedding_length", number(config.hidden_size)),
            ("feed_forward_length", number(config.intermediate_size)),
            ("attention.head_count", number(config.num_heads)),
            ("attention.head_count_kv", number(config.num_kv_heads)),
            ("attention.key_length", number(config.head_dim)),
            ("attention.layer_norm_rms_epsilon", GgufValue::F32(config.rms_norm_eps)),
        ];
        let of_experts = config.experts.iter().flat_map(|experts| {
            [
                ("expert_count", number(experts.count)),
                ("expert_used_count", number(experts.per_token)),
                ("expert_feed_forward_length", number(experts.intermediate_size)),
            ]
        });
        let own = own.into_iter().chain(of_experts);
        let metadata = general
            .into_iter()
            .chain(own.map(|(key, value)| (format!("{architecture}.{key}"), value)));
        let tensors = model.tensors.iter().map(|(name, tensor)| {
            let heads = match name {
                _ if !config.family.is_interleaved_in_gguf() => None,
                name if name.contains("q_proj") => Some(config.num_heads),
                name if name.contains("k_proj") => Some(config.num_kv_heads),
                _ => None,
            };
            let tensor = heads.map_or_else(|| tensor.clone(), |heads| interleaved(tensor, heads));
            (gguf_name(config, name), tensor)
        });
        Self {
            metadata: metadata.collect(),
            tensors: tensors.collect(),
        }
    }

    /// Puts the experts of a layer into one tensor, as converters do.
    pub(super) fn stack_experts(&mut self) {
        let mut stacks: IndexMap<String, Vec<Tensor>> = IndexMap::new();
        for (name, tensor) in self.tensors.drain(..) {
            let name = match name.split('.').collect::<Vec<_>>()[..] {
                ["blk", layer, projection, _, "weight"] => format!("blk.{layer}.{projection}_exps.weight"),
                _ => name,
            };
            stacks.entry(name).or_default().push(tensor);
        }
        let stacked = |(name, stack): (String, Vec<Tensor>)| match &stack[..] {
            [single] => (name, single.clone()),
            several => (name, Tensor::stack(several, 0).unwrap()),
        };
        self.tensors = stacks.into_iter().map(stacked).collect();
    }

    /// Sets a key of the metadata.
    pub(super) fn set(&mut self, key: &str, value: GgufValue) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_string(), value));
        self
    }

    /// Loads what [`write`](Self::write) writes.
    pub(super) fn write_and_load(&self, kind: GgmlDType) -> Result<LoadedModel, ModelError> {
        let file = self.write(kind);
        load(file.path().to_str().unwrap(), &Device::Cpu, DType::F32, &mut |_, _| {})
    }

    /// Writes a file with all matrices of a type whose rows are whole blocks of it.
    pub(super) fn write(&self, kind: GgmlDType) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        let quantized: Vec<(String, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let fits = tensor.dims().last().is_some_and(|n| n % kind.block_size() == 0);
                let kind = if tensor.rank() >= 2 && fits {
                    kind
                } else {
                    GgmlDType::F32
                };
                (name.clone(), QTensor::quantize(tensor, kind).unwrap())
            })
            .collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<_> = quantized.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        gguf_file::write(&mut file.as_file(), &metadata, &tensors).unwrap();
        file
    }
}
