//! Architecture of a model, from Hugging Face's `config.json`.

use serde_json::Value;

use super::config_fields::Fields;
use super::error::ModelError;
pub use super::rope::Rope;

/// Supported architectures. Their differences are fields of [`ModelConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on q and k, and a separate head size.
    Qwen3,
}

impl Family {
    const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// Returns the name in `architectures`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Returns the name in `model_type`, which is also `general.architecture` of GGUF files.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Returns the family of a `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.model_type() == model_type)
    }

    fn from_config(fields: &Fields) -> Result<Self, ModelError> {
        let architecture = fields
            .0
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(Value::as_str);
        let model_type = fields.0.get("model_type").and_then(Value::as_str);
        let found = match architecture {
            Some(name) => Self::ALL.into_iter().find(|f| f.architecture() == name),
            None => model_type.and_then(Self::from_model_type),
        };
        found.ok_or_else(|| {
            let given = architecture.or(model_type).unwrap_or("(none)");
            let supported = Self::ALL.map(Self::architecture).join(", ");
            ModelError::Config(format!(
                "the architecture `{given}` is not supported; supported are {supported}"
            ))
        })
    }
}

/// Shapes and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key-value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of rows of the embedding.
    pub vocab_size: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f32,
    /// Whether the LM head shares the weights of the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the o projection has a bias (`attention_bias` of Llama and Qwen3).
    pub o_bias: bool,
    /// Whether gate, up and down projections have a bias (Llama's `mlp_bias`).
    pub mlp_bias: bool,
    /// Whether q and k have an RMS norm per head before the rotary embedding.
    pub qk_norm: bool,
    /// Maximum context length of the model.
    pub max_position_embeddings: usize,
    /// Rotary embedding, in the half-split layout of Hugging Face files.
    pub rope: Rope,
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`, also in older layouts. Unsupported features of the model (sliding windows,
    /// experts, other rotary embeddings, quantized weights) are errors that say what is supported.
    pub fn from_json(json: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of(json)?;
        let family = Family::from_config(&fields)?;
        refuse_unsupported(&fields, family)?;

        let hidden_size = fields.size("hidden_size")?;
        let num_heads = fields.size("num_attention_heads")?;
        let num_kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(ModelError::Config(format!(
                "num_attention_heads is {num_heads} and num_key_value_heads is {num_kv_heads}; the first must be a \
                 multiple of the second"
            )));
        }
        let head_dim = match (fields.optional_size("head_dim")?, family) {
            (Some(given), _) => given,
            (None, Family::Qwen3) => 128,
            (None, _) if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
            (None, _) => {
                return Err(ModelError::Config(format!(
                    "hidden_size is {hidden_size} and num_attention_heads is {num_heads}; without head_dim the first \
                     must be a multiple of the second"
                )));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(ModelError::Config(format!(
                "the width of a head is {head_dim}; it must be even for rope"
            )));
        }
        let default_context = if family == Family::Llama { 2048 } else { 32768 };
        let max_position_embeddings = fields
            .optional_size("max_position_embeddings")?
            .unwrap_or(default_context);
        let attention_bias = fields.flag("attention_bias")?;
        Ok(Self {
            family,
            hidden_size,
            intermediate_size: fields.size("intermediate_size")?,
            num_layers: fields.size("num_hidden_layers")?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size")?,
            rms_norm_eps: fields.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            o_bias: family != Family::Qwen2 && attention_bias,
            mlp_bias: family == Family::Llama && fields.flag("mlp_bias")?,
            qk_norm: family == Family::Qwen3,
            max_position_embeddings,
            rope: Rope::from_fields(&fields, head_dim, max_position_embeddings)?,
        })
    }

    /// Returns names and shapes of all parameters, in the model's order; linear weights are out × in. A tied head is
    /// omitted.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_layers {
            let mut linear = |name: &str, rows: usize, columns: usize, bias: bool| {
                shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![rows, columns]));
                if bias {
                    shapes.push((format!("model.layers.{layer}.{name}.bias"), vec![rows]));
                }
            };
            linear("self_attn.q_proj", q, hidden, self.qkv_bias);
            linear("self_attn.k_proj", kv, hidden, self.qkv_bias);
            linear("self_attn.v_proj", kv, hidden, self.qkv_bias);
            linear("self_attn.o_proj", hidden, q, self.o_bias);
            linear("mlp.gate_proj", inner, hidden, self.mlp_bias);
            linear("mlp.up_proj", inner, hidden, self.mlp_bias);
            linear("mlp.down_proj", hidden, inner, self.mlp_bias);
            let mut norm = |name: &str, width: usize| {
                shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![width]));
            };
            if self.qk_norm {
                norm("self_attn.q_norm", self.head_dim);
                norm("self_attn.k_norm", self.head_dim);
            }
            norm("input_layernorm", hidden);
            norm("post_attention_layernorm", hidden);
        }
        shapes.push(("model.norm.weight".to_string(), vec![hidden]));
        if !self.tie_word_embeddings {
            shapes.push(("lm_head.weight".to_string(), vec![self.vocab_size, hidden]));
        }
        shapes
    }

    /// Returns the number of parameters; a tied head counts once.
    pub fn num_parameters(&self) -> usize {
        self.tensor_shapes()
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }
}

fn refuse_unsupported(fields: &Fields, family: Family) -> Result<(), ModelError> {
    let refuse = |what: String| Err(ModelError::Config(what));
    if fields.0.get("quantization_config").is_some_and(|q| !q.is_null()) {
        return refuse(
            "quantized safetensors (quantization_config) are not supported\nhint: use the unquantized model or a \
             .gguf file, which is dequantised"
                .into(),
        );
    }
    if let Some(experts) = ["num_experts", "num_local_experts"]
        .iter()
        .find(|k| fields.0.contains_key(**k))
    {
        return refuse(format!(
            "mixtures of experts (`{experts}`) are not supported; supported are dense models"
        ));
    }
    match fields.0.get("hidden_act").and_then(Value::as_str) {
        None | Some("silu" | "swish") => {}
        Some(other) => return refuse(format!("hidden_act `{other}` is not supported; supported is silu")),
    }
    // Qwen files carry a `sliding_window` that is switched off by `use_sliding_window`, or by beginning after the
    // last layer; Llama has none.
    let windowed_layers = fields
        .0
        .get("layer_types")
        .and_then(Value::as_array)
        .is_some_and(|types| types.iter().any(|t| t.as_str() != Some("full_attention")));
    let windowed = family != Family::Llama
        && fields.flag("use_sliding_window")?
        && fields.0.get("sliding_window").is_some_and(|w| !w.is_null())
        && fields.0.get("layer_types").is_none_or(Value::is_null)
        && fields.optional_size("max_window_layers")?.unwrap_or(28) < fields.size("num_hidden_layers")?;
    if windowed || windowed_layers {
        return refuse("attention over a sliding window is not supported; supported is full attention".into());
    }
    Ok(())
}

#[cfg(test)]
impl ModelConfig {
    /// A model of a few thousand parameters that has everything its family has.
    pub fn small(family: Family) -> Self {
        let head_dim = if family == Family::Qwen3 { 6 } else { 4 };
        Self {
            family,
            hidden_size: 16,
            intermediate_size: 24,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim,
            vocab_size: 32,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: family != Family::Qwen2,
            qkv_bias: family == Family::Qwen2,
            o_bias: false,
            mlp_bias: false,
            qk_norm: family == Family::Qwen3,
            max_position_embeddings: 128,
            rope: Rope {
                inv_freq: (0..head_dim / 2)
                    .map(|i| 100f32.powf(-2.0 * i as f32 / head_dim as f32))
                    .collect(),
                attention_factor: 1.0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
            "rms_norm_eps": 1e-5, "hidden_act": "silu"
        })
    }

    fn with(changes: Value) -> Value {
        let mut config = llama();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    #[test]
    fn families_differ_in_data_only() {
        let llama = ModelConfig::from_json(&llama()).unwrap();
        assert_eq!(
            (llama.family, llama.head_dim, llama.qkv_bias, llama.qk_norm),
            (Family::Llama, 8, false, false)
        );
        assert_eq!((llama.num_kv_heads, llama.max_position_embeddings), (2, 2048));

        let biased = with(json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true}));
        let biased = ModelConfig::from_json(&biased).unwrap();
        assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias && biased.tie_word_embeddings);

        let qwen2 = ModelConfig::from_json(&with(json!({"architectures": ["Qwen2ForCausalLM"]}))).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm);

        let qwen3 = ModelConfig::from_json(&with(json!({"architectures": ["Qwen3ForCausalLM"]}))).unwrap();
        assert!(!qwen3.qkv_bias && qwen3.qk_norm);
        assert_eq!(qwen3.head_dim, 128);
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let cases = [
            (
                json!({"architectures": ["GemmaForCausalLM"]}),
                "`GemmaForCausalLM` is not supported; supported are Llama",
            ),
            (
                json!({"architectures": ["Qwen3MoeForCausalLM"]}),
                "`Qwen3MoeForCausalLM`",
            ),
            (json!({"num_experts": 8}), "mixtures of experts (`num_experts`)"),
            (json!({"hidden_act": "gelu"}), "hidden_act `gelu`"),
            (
                json!({"quantization_config": {"quant_method": "gptq"}}),
                "hint: use the unquantized model",
            ),
            (
                json!({"rope_scaling": {"type": "longrope"}}),
                "`longrope` is not supported; supported are default, linear",
            ),
            (json!({"rope_parameters": {"rope_type": "linear"}}), "positive `factor`"),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "sliding window",
            ),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 64,
                       "max_window_layers": 1}),
                "sliding window",
            ),
            (
                json!({"hidden_size": "big"}),
                "`hidden_size` is \"big\"; it must be a whole number from 1",
            ),
            (json!({"vocab_size": 0}), "`vocab_size` is 0"),
            (json!({"vocab_size": null}), "`vocab_size` is missing"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads is 3"),
            (
                json!({"hidden_size": 33}),
                "hidden_size is 33 and num_attention_heads is 4",
            ),
            (json!({"head_dim": 5}), "the width of a head is 5; it must be even"),
        ];
        for (changes, expected) in cases {
            let message = ModelConfig::from_json(&with(changes)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert!(ModelConfig::from_json(&json!([])).is_err());
    }

    #[test]
    fn a_sliding_window_that_is_switched_off_is_no_matter() {
        for changes in [
            json!({"use_sliding_window": false, "sliding_window": 64, "max_window_layers": 0}),
            json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 2}),
            json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0}),
        ] {
            let mut config = with(changes);
            config["architectures"] = json!(["Qwen2ForCausalLM"]);
            ModelConfig::from_json(&config).unwrap();
        }
    }

    #[test]
    fn parameters_are_counted_as_their_shapes_say() {
        let config = ModelConfig::from_json(&with(json!({"tie_word_embeddings": true}))).unwrap();
        let layer = 32 * 32 * 2 + 16 * 32 * 2 + 3 * 48 * 32 + 2 * 32;
        assert_eq!(config.num_parameters(), 96 * 32 + 2 * layer + 32);
        let untied = ModelConfig::from_json(&llama()).unwrap();
        assert_eq!(
            untied.tensor_shapes().last().unwrap(),
            &("lm_head.weight".to_string(), vec![96, 32])
        );
    }
}
