//! GGUF files: dequantised, renamed and put back into the layout of Hugging Face.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use indexmap::{IndexMap, IndexSet};
use serde_json::{Map, Value, json};

use super::gguf_experts::expert_name;
use super::gguf_header::Header;
use super::gguf_metadata::Metadata;
use super::{LoadedModel, ModelFiles, finite, gguf_tokenizer};
use crate::config::small_file::open_regular;
use crate::model::config::{Family, GATE_UP, LayerNorms, ModelConfig};
use crate::model::error::ModelError;
use crate::model::kernels::{MAX_PANEL_WIDTH, QuantizedMatrix};
use crate::model::rope::{Rope, RopeScaling};

/// Frequencies' divisors, which converters write for Llama 3.1's rope scaling instead of its settings.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Divisors of LongRoPE, within the original context and beyond it.
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Divisors of frequencies that a file holds as tensors.
struct RopeFactors {
    llama3: Option<Vec<f32>>,
    short: Option<Vec<f32>>,
    long: Option<Vec<f32>>,
}

/// What becomes of a file's matrices.
#[derive(Clone, Copy)]
pub(super) enum Matrices<'a> {
    /// They are dequantised for a device and a type.
    Dequantized(&'a Device, DType),
    /// They stay in their blocks, for the CPU kernels, where these are of a type that is computed with.
    Quantized,
}

/// Loads a `.gguf` file, format versions 1 to 3: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
pub(super) fn load(
    path: &Path,
    matrices: Matrices,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<LoadedModel, ModelError> {
    let place = path.display().to_string();
    let Opened {
        mut file,
        header,
        files,
        config,
    } = open(path)?;

    let (activity, (device, dtype)) = match matrices {
        Matrices::Dequantized(device, dtype) => ("dequantising weights", (device, dtype)),
        Matrices::Quantized => ("reading weights", (&Device::Cpu, DType::F32)),
    };
    let total = config.num_parameters() as f32;
    let mut done = 0;
    let (mut tensors, mut quantized) = (IndexMap::new(), IndexMap::new());
    for (name, shape) in config.tensor_shapes() {
        progress(done as f32 / total, activity);
        done += shape.iter().product::<usize>();
        let gguf_name = gguf_name(&config, &name);
        let missing = || ModelError::Tensors(format!("{place} has no tensor {gguf_name}, which {name} comes from"));
        let found = header.shape(&gguf_name).ok_or_else(missing)?;
        if found != shape {
            return Err(ModelError::Tensors(format!(
                "{gguf_name} of {place} is {found:?}, must be {shape:?}"
            )));
        }
        let rows = Rows::new(&config, &name);
        match (matrices, header.block_format(&gguf_name), &shape[..]) {
            (Matrices::Quantized, Some(format), &[outputs, inputs]) if can_stay(&config, &name) => {
                let bytes = header.blocks(&mut file, &gguf_name, format)?;
                let matrix = QuantizedMatrix::new(format, (outputs, inputs), &bytes, |output| rows.in_file(output));
                quantized.insert(name, Arc::new(matrix));
            }
            _ => {
                let tensor = rows.reorder(header.tensor(&mut file, &gguf_name)?)?;
                tensors.insert(name, finite::weight(&tensor, device, dtype, &gguf_name, &place)?);
            }
        }
    }
    progress(1.0, activity);
    let model = files.into_model(config, tensors)?;
    Ok(LoadedModel { quantized, ..model })
}

/// Whether a matrix can stay in blocks: of fused projections the second half must begin where a panel of products can.
fn can_stay(config: &ModelConfig, name: &str) -> bool {
    !name.ends_with(&format!("{}.weight", GATE_UP.fused)) || config.intermediate_size.is_multiple_of(MAX_PANEL_WIDTH)
}

/// A file whose header was read.
struct Opened {
    file: BufReader<File>,
    header: Header,
    /// The files beside the weights, from its metadata.
    files: ModelFiles,
    config: ModelConfig,
}

fn open(path: &Path) -> Result<Opened, ModelError> {
    let place = path.display().to_string();
    let mut file = BufReader::new(open_regular(path).map_err(ModelError::io(path))?);
    let mut header = Header::read(&mut file, &place)?;
    header.split_experts()?;
    let metadata = Metadata::new(std::mem::take(&mut header.metadata));
    let mut factors = |name: &str| -> Result<Option<Vec<f32>>, ModelError> {
        match header.has(name) {
            true => Ok(Some(header.tensor(&mut file, name)?.flatten_all()?.to_vec1::<f32>()?)),
            false => Ok(None),
        }
    };
    let rope_factors = RopeFactors {
        llama3: factors(ROPE_FACTORS)?,
        short: factors(SHORT_FACTORS)?,
        long: factors(LONG_FACTORS)?,
    };
    let config_json = config_json(&metadata, &header, &rope_factors)?;
    let config = ModelConfig::from_json(&config_json)?;
    let files = ModelFiles {
        tokenizer: gguf_tokenizer::build(&metadata)?
            .to_string(false)
            .map_err(|e| ModelError::Tokenizer(e.to_string()))?,
        tokenizer_config: Some(format!(
            "{:#}\n",
            tokenizer_config(&metadata, config.max_position_embeddings)?
        )),
        generation_config: Some(format!("{:#}\n", generation_config(&metadata)?)),
        chat_template: None,
        additional_chat_templates: BTreeMap::new(),
        config: config_json,
    };
    Ok(Opened {
        file,
        header,
        files,
        config,
    })
}

/// Reads what a `.gguf` file says beside its weights.
pub(super) fn model_files(path: &Path) -> Result<ModelFiles, ModelError> {
    Ok(open(path)?.files)
}

/// Returns the name in the file of a parameter.
pub(super) fn gguf_name(config: &ModelConfig, name: &str) -> String {
    let of_experts = config.experts.as_ref().and_then(|experts| expert_name(experts, name));
    of_experts.unwrap_or_else(|| shared_name(&config.norms, name))
}

/// Returns the name in the file of a parameter outside of experts, of a model with these norms.
fn shared_name(norms: &LayerNorms, name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    for (theirs, ours) in [
        (norms.before_attention, "attn_norm"),
        (norms.after_attention, "post_attention_norm"),
        (norms.before_mlp, "ffn_norm"),
        (norms.after_mlp, "post_ffw_norm"),
    ] {
        if let Some(theirs) = theirs.filter(|theirs| name.contains(theirs)) {
            return name.replace("layers.", "blk.").replace(theirs, ours);
        }
    }
    let renamed = [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("layers.", "blk."),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ]
    .iter()
    .fold(name.to_string(), |name, (theirs, ours)| name.replace(theirs, ours));
    if renamed == "norm.weight" {
        "output_norm.weight".into()
    } else {
        renamed
    }
}

/// The order of a tensor's rows in the file. Some families' files hold those of q and k for rope on neighbouring pairs
/// (0, 1), (2, 3), …; Hugging Face's order, and ours, is for the pairs (i, i + head_dim / 2).
struct Rows {
    /// Rows of a head whose order differs.
    head: Option<usize>,
}

impl Rows {
    fn new(config: &ModelConfig, name: &str) -> Self {
        let differs =
            config.family.is_interleaved_in_gguf() && (name.contains(".q_proj.") || name.contains(".k_proj."));
        Self {
            head: differs.then_some(config.head_dim),
        }
    }

    /// Index in the file of one of our rows.
    fn in_file(&self, row: usize) -> usize {
        let Some(head_dim) = self.head else { return row };
        let (head, within) = (row / head_dim, row % head_dim);
        let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
        head * head_dim + 2 * pair + half
    }

    /// Puts the rows of a tensor of the file in our order.
    fn reorder(&self, tensor: Tensor) -> Result<Tensor, ModelError> {
        if self.head.is_none() {
            return Ok(tensor);
        }
        let rows: Vec<u32> = (0..tensor.dim(0)?).map(|row| self.in_file(row) as u32).collect();
        Ok(tensor.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?)
    }
}

/// The `config.json` that the file was made from, as far as it matters.
fn config_json(metadata: &Metadata, header: &Header, rope_factors: &RopeFactors) -> Result<Value, ModelError> {
    let architecture = metadata.text("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    let size = |name: &str| metadata.number(&key(name));
    let experts = metadata.optional_number(&key("expert_count"))?.unwrap_or(0);
    let family = family(architecture, experts)?;
    let embedding = header.shape("token_embd.weight");
    let vocab_size = embedding.and_then(|shape| shape.first().copied());
    let vocab_size = vocab_size.ok_or_else(|| ModelError::Tensors("there is no tensor token_embd.weight".into()))?;
    let (hidden, heads, context) = (
        size("embedding_length")?,
        size("attention.head_count")?,
        size("context_length")?,
    );
    let head_dim = match metadata.optional_number(&key("attention.key_length"))? {
        Some(given) => given,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let theta = metadata.optional_float(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let has = |tensor: &str| header.has(tensor);
    let mut config = json!({
        "architectures": [family.architecture()],
        "model_type": family.model_type(),
        "attention_bias": family != Family::Qwen2 && has("blk.0.attn_q.bias"),
        "bos_token_id": metadata.optional_number("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": metadata.optional_number("tokenizer.ggml.eos_token_id")?,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length")?,
        "max_position_embeddings": context,
        "mlp_bias": has("blk.0.ffn_gate.bias"),
        "num_attention_heads": heads,
        "num_hidden_layers": size("block_count")?,
        "num_key_value_heads": metadata.optional_number(&key("attention.head_count_kv"))?.unwrap_or(heads),
        "rms_norm_eps": shortest(metadata.optional_float(&key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-6)),
        "rope_theta": shortest(theta),
        "rope_scaling": rope_scaling(metadata, architecture, theta, head_dim as usize, context, rope_factors)?,
        "tie_word_embeddings": !has("output.weight"),
        "dtype": "float32",
        "vocab_size": vocab_size,
    });
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            config[name] = value;
        }
    };
    match family {
        Family::Granite => {
            for (theirs, ours) in [
                ("embedding_scale", "embedding_multiplier"),
                ("residual_scale", "residual_multiplier"),
                ("attention.scale", "attention_multiplier"),
                ("logit_scale", "logits_scaling"),
            ] {
                add(
                    ours,
                    metadata
                        .optional_float(&key(theirs))?
                        .map(|scale| shortest(scale).into()),
                );
            }
        }
        Family::Phi3 => {
            let rotated = metadata
                .optional_number(&key("rope.dimension_count"))?
                .unwrap_or(head_dim);
            add(
                "partial_rotary_factor",
                Some((rotated as f64 / head_dim.max(1) as f64).into()),
            );
            let original = metadata.optional_number(&key("rope.scaling.original_context_length"))?;
            add("original_max_position_embeddings", original.map(Value::from));
            let window = metadata.optional_number(&key("attention.sliding_window"))?;
            add("sliding_window", window.filter(|window| *window > 0).map(Value::from));
        }
        _ => {}
    }
    if experts > 0 {
        add("num_experts", Some(experts.into()));
        add("num_experts_per_tok", Some(size("expert_used_count")?.into()));
    }
    if family == Family::Qwen3Moe {
        add(
            "moe_intermediate_size",
            Some(size("expert_feed_forward_length")?.into()),
        );
        add("norm_topk_prob", Some(true.into())); // as llama.cpp computes it
    }
    Ok(config)
}

/// Finds the family of an architecture's name, which mixtures of experts may share with dense models.
fn family(architecture: &str, experts: u64) -> Result<Family, ModelError> {
    let has_name = |family: &Family| family.gguf_architecture() == Some(architecture);
    let has_kind = |family: &Family| family.has_experts() == (experts > 0);
    let names = |families: &mut dyn Iterator<Item = Family>| {
        let names: IndexSet<&str> = families.filter_map(Family::gguf_architecture).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    let mut all = Family::ALL.into_iter();
    if let Some(family) = all.clone().find(|family| has_name(family) && has_kind(family)) {
        return Ok(family);
    }
    if all.any(|family| has_name(&family)) {
        let supported = names(&mut Family::ALL.into_iter().filter(has_kind));
        return Err(ModelError::file(
            format!("{architecture}.expert_count"),
            format!("{architecture} with {experts} experts is not supported; supported with {experts} are {supported}"),
        ));
    }
    Err(ModelError::file(
        "general.architecture",
        format!(
            "the architecture `{architecture}` is not supported; supported in GGUF files are {}",
            names(&mut Family::ALL.into_iter())
        ),
    ))
}

fn rope_scaling(
    metadata: &Metadata,
    architecture: &str,
    theta: f32,
    head_dim: usize,
    context: u64,
    factors: &RopeFactors,
) -> Result<Value, ModelError> {
    if let Some(factors) = &factors.llama3 {
        return llama3_scaling(theta, head_dim, factors);
    }
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    if let (Some(short), Some(long)) = (&factors.short, &factors.long) {
        let list = |factors: &[f32]| factors.iter().map(|factor| shortest(*factor)).collect::<Vec<f64>>();
        let attention_factor = metadata.optional_float(&key("attn_factor"))?.map(shortest);
        return Ok(json!({
            "rope_type": "longrope", "short_factor": list(short), "long_factor": list(long),
            "attention_factor": attention_factor
        }));
    }
    let factor = metadata.optional_float(&key("factor"))?.map(shortest);
    let original = metadata
        .optional_number(&key("original_context_length"))?
        .unwrap_or(context);
    match metadata.optional_text(&key("type"))? {
        None | Some("none") => Ok(Value::Null),
        Some("linear") => Ok(json!({"rope_type": "linear", "factor": factor})),
        Some("yarn") => {
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original
            });
            for (theirs, ours) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(beta) = metadata.optional_float(&key(theirs))? {
                    yarn[ours] = shortest(beta).into();
                }
            }
            Ok(yarn)
        }
        Some(other) => Err(ModelError::file(
            key("type"),
            format!("rope scaling `{other}` is not supported; supported are none, linear and yarn"),
        )),
    }
}

/// Finds the settings of Llama 3.1's scaling whose frequencies the stored divisors give: all released models differ in
/// `factor` alone, which is the largest divisor.
fn llama3_scaling(theta: f32, head_dim: usize, factors: &[f32]) -> Result<Value, ModelError> {
    let factor = factors.iter().copied().fold(1.0, f32::max);
    let has_width = head_dim == 2 * factors.len();
    let head_dim = 2 * factors.len();
    let scaling = RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    let plain = Rope::new(theta, head_dim, &RopeScaling::Default).inv_freq;
    let scaled = Rope::new(theta, head_dim, &scaling).inv_freq;
    let expected: Vec<f32> = plain
        .iter()
        .zip(&scaled)
        .map(|(plain, scaled)| plain / scaled)
        .collect();
    let agree = has_width
        && expected
            .iter()
            .zip(factors)
            .all(|(expected, stored)| (expected / stored - 1.0).abs() < 1e-3);
    if !agree {
        return Err(ModelError::file(
            ROPE_FACTORS,
            "these rope divisors are not those of Llama 3.1's scaling\nhint: load the model from its Hugging Face \
             directory",
        ));
    }
    Ok(json!({
        "rope_type": "llama3", "factor": shortest(factor), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192
    }))
}

fn tokenizer_config(metadata: &Metadata, context: usize) -> Result<Value, ModelError> {
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let mut config = Map::new();
    for (key, name) in [
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("unknown", "unk_token"),
        ("padding", "pad_token"),
    ] {
        let id = metadata.optional_number(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(token) = id.and_then(|id| tokens.get(id as usize)) {
            config.insert(name.into(), (*token).into());
        }
    }
    if let Some(template) = metadata.optional_text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), template.into());
    }
    config.insert(
        "add_bos_token".into(),
        metadata.flag("tokenizer.ggml.add_bos_token")?.into(),
    );
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    config.insert("model_max_length".into(), context.into());
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    Ok(config.into())
}

/// What ends an answer: the tokens that the metadata names, and the ends of turns that chat models use, since many files
/// name only one of them.
fn generation_config(metadata: &Metadata) -> Result<Value, ModelError> {
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let mut eos = Vec::new();
    for key in ["eos", "eot", "eom"] {
        eos.extend(metadata.optional_number(&format!("tokenizer.ggml.{key}_token_id"))?);
    }
    let ends_of_turns = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>"];
    eos.extend(
        tokens
            .iter()
            .zip(0..)
            .filter(|(token, _)| ends_of_turns.contains(token))
            .map(|(_, id)| id),
    );
    eos.sort_unstable();
    eos.dedup();
    Ok(json!({
        "bos_token_id": metadata.optional_number("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": eos,
        "pad_token_id": metadata.optional_number("tokenizer.ggml.padding_token_id")?,
    }))
}

/// The double whose decimal digits are the single's: 1e-5 rather than 9.999999747378752e-06.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
