//! Supported architectures, and the table of their differences: what transformers' configuration classes and modules
//! say, as data.

use serde_json::Value;

use super::config_fields::Fields;
use super::error::ModelError;

/// Supported architectures. Their differences become fields of [`ModelConfig`](super::config::ModelConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen2ForCausalLM`: biases on q, k and v; sliding windows from a layer on.
    Qwen2,
    /// `Qwen3ForCausalLM`: as Qwen2, with norms on the heads of q and k instead of biases.
    Qwen3,
    /// `MistralForCausalLM`: a sliding window in every layer.
    Mistral,
    /// `Phi3ForCausalLM` (Phi-3 and Phi-4-mini): fused projections, rope on a part of each head.
    Phi3,
    /// `SmolLM3ForCausalLM`: layers without rope.
    SmolLm3,
    /// `GraniteForCausalLM`: multipliers of embeddings, scores, residual stream and logits.
    Granite,
    /// `Olmo2ForCausalLM`: norms after attention and MLP instead of before, and over all heads of q and k.
    Olmo2,
    /// `Gemma2ForCausalLM`: norms before and after, soft caps, every other layer with a sliding window.
    Gemma2,
    /// `Gemma3ForCausalLM`, the text model: as Gemma 2, with norms on q and k and a rope of its own where the window
    /// slides.
    Gemma3,
    /// `Qwen3MoeForCausalLM`: as Qwen3, with experts instead of one MLP in most layers.
    Qwen3Moe,
    /// `MixtralForCausalLM`: as Mistral, with experts in every layer.
    Mixtral,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    /// Never.
    Never,
    /// Always.
    Always,
    /// As the flag says that `config.json` has for it (`attention_bias`, `mlp_bias`).
    Configured,
}

/// Which layers attend over a sliding window, `sliding_window` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// None.
    Never,
    /// Every layer, unless `sliding_window` is null, or `use_sliding_window` is not set in a family that has it.
    EveryLayer,
    /// With `use_sliding_window`, the layers from `max_window_layers` on, or those that `layer_types` names.
    FromLayer,
    /// With `use_sliding_window`, the layers without rope, or those that `layer_types` names.
    WithoutRope,
    /// All but every n-th layer, or those that `layer_types` names. n is `sliding_window_pattern`, with this default.
    ButEvery(usize),
}

/// RMS norms on queries and keys before the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Over each head, with a weight that all heads share.
    PerHead,
    /// Over all heads together.
    AllHeads,
}

/// Names of the norms around a layer's attention and MLP; `None` where there is no norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// Norm of attention's input.
    pub before_attention: Option<&'static str>,
    /// Norm of attention's result, before it is added to the residual stream.
    pub after_attention: Option<&'static str>,
    /// Norm of the MLP's input.
    pub before_mlp: Option<&'static str>,
    /// Norm of the MLP's result.
    pub after_mlp: Option<&'static str>,
}

impl LayerNorms {
    /// Returns the names of those that there are.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            self.before_attention,
            self.after_attention,
            self.before_mlp,
            self.after_mlp,
        ];
        all.into_iter().flatten()
    }
}

/// Names of the parts of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// Module of a layer that holds the router, `gate`, and the `experts`.
    pub block: &'static str,
    /// Gate, up and down projections of an expert.
    pub projections: [&'static str; 3],
}

/// What differs in mixtures of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertTraits {
    /// Names of parameters.
    pub names: ExpertNames,
    /// Field of the width inside an expert, and its default.
    pub width: (&'static str, Option<usize>),
    /// Default of the number of experts.
    pub count: usize,
    /// Default of `num_experts_per_tok`.
    pub per_token: usize,
    /// Whether the weights of a token's experts always add up to 1; otherwise `norm_topk_prob` says it.
    pub normalized: bool,
}

/// What differs in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gguf {
    /// Name in `general.architecture`.
    pub architecture: &'static str,
    /// Whether the rows of q and k are those of rope on neighbouring pairs (0, 1), (2, 3), …
    pub interleaved: bool,
}

/// What a family differs in. Defaults are those of transformers' configuration class, for fields that files omit.
pub(super) struct Traits {
    /// Name in `architectures`.
    pub architecture: &'static str,
    /// Name in `model_type`.
    pub model_type: &'static str,
    /// How GGUF files are read; `None` for a family whose files are not.
    pub gguf: Option<Gguf>,
    /// Default of `head_dim`; `None` for `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Default of `num_key_value_heads`; `None` for `num_attention_heads`.
    pub num_key_value_heads: Option<usize>,
    /// Default of `max_position_embeddings`.
    pub max_position_embeddings: usize,
    /// Default of `rms_norm_eps`.
    pub rms_norm_eps: f64,
    /// Default of `rope_theta`.
    pub rope_theta: f64,
    /// Default of `rope_local_base_freq`, the base of a second rope where the window slides.
    pub local_rope_theta: Option<f64>,
    /// Default of `tie_word_embeddings`.
    pub tie_word_embeddings: bool,
    /// Layers with a sliding window, and the default of `sliding_window`.
    pub windows: (Windows, Option<usize>),
    /// Bias of the q, k and v projections.
    pub qkv_bias: Bias,
    /// Bias of the o projection.
    pub o_bias: Bias,
    /// Bias of the MLP's projections.
    pub mlp_bias: Bias,
    /// Norms on queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Norms around attention and MLP.
    pub norms: LayerNorms,
    /// Number added to the weight of every norm.
    pub norm_offset: f32,
    /// Whether q, k and v are one projection, and gate and up.
    pub fused_projections: bool,
    /// Field of the activation, and its default.
    pub activation: (&'static str, &'static str),
    /// Whether embeddings are multiplied by √hidden_size.
    pub scaled_embedding: bool,
    /// Mixture of experts, of which no family has biases, or a norm after it.
    pub experts: Option<ExpertTraits>,
    /// Defaults of `attn_logit_softcapping` and `final_logit_softcapping`.
    pub softcaps: [Option<f64>; 2],
    /// Fields of `config.json` that change the result and that only some families have.
    pub fields: &'static [&'static str],
}

const LLAMA: Traits = Traits {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    gguf: Some(Gguf {
        architecture: "llama",
        interleaved: true,
    }),
    head_dim: None,
    num_key_value_heads: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000.0,
    local_rope_theta: None,
    tie_word_embeddings: false,
    windows: (Windows::Never, None),
    qkv_bias: Bias::Configured,
    o_bias: Bias::Configured,
    mlp_bias: Bias::Configured,
    qk_norm: None,
    norms: LayerNorms {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
    },
    norm_offset: 0.0,
    fused_projections: false,
    activation: ("hidden_act", "silu"),
    scaled_embedding: false,
    experts: None,
    softcaps: [None, None],
    fields: &["attention_bias", "mlp_bias"],
};

const QWEN2: Traits = Traits {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    gguf: Some(Gguf {
        architecture: "qwen2",
        interleaved: false,
    }),
    max_position_embeddings: 32768,
    windows: (Windows::FromLayer, Some(4096)),
    qkv_bias: Bias::Always,
    o_bias: Bias::Never,
    mlp_bias: Bias::Never,
    fields: &[
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "layer_types",
    ],
    ..LLAMA
};

const QWEN3: Traits = Traits {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    gguf: Some(Gguf {
        architecture: "qwen3",
        interleaved: false,
    }),
    head_dim: Some(128),
    qkv_bias: Bias::Configured,
    o_bias: Bias::Configured,
    qk_norm: Some(QkNorm::PerHead),
    fields: &[
        "attention_bias",
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "layer_types",
    ],
    ..QWEN2
};

const MISTRAL: Traits = Traits {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    gguf: None, // converters write Mistral's models as Llama's
    num_key_value_heads: Some(8),
    max_position_embeddings: 131_072,
    windows: (Windows::EveryLayer, Some(4096)),
    qkv_bias: Bias::Never,
    o_bias: Bias::Never,
    mlp_bias: Bias::Never,
    fields: &["sliding_window"],
    ..LLAMA
};

const PHI3: Traits = Traits {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    gguf: Some(Gguf {
        architecture: "phi3",
        interleaved: false,
    }),
    num_key_value_heads: None,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    windows: (Windows::EveryLayer, None),
    fused_projections: true,
    fields: &["partial_rotary_factor", "sliding_window"],
    ..MISTRAL
};

const SMOLLM3: Traits = Traits {
    architecture: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    gguf: Some(Gguf {
        architecture: "smollm3",
        interleaved: true,
    }),
    num_key_value_heads: Some(4),
    max_position_embeddings: 32768,
    rope_theta: 2_000_000.0,
    tie_word_embeddings: true,
    windows: (Windows::WithoutRope, None),
    fields: &[
        "attention_bias",
        "layer_types",
        "mlp_bias",
        "no_rope_layer_interval",
        "no_rope_layers",
        "sliding_window",
        "use_sliding_window",
    ],
    ..LLAMA
};

const GRANITE: Traits = Traits {
    architecture: "GraniteForCausalLM",
    model_type: "granite",
    gguf: Some(Gguf {
        architecture: "granite",
        interleaved: true,
    }),
    fields: &[
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "mlp_bias",
        "residual_multiplier",
    ],
    ..LLAMA
};

const OLMO2: Traits = Traits {
    architecture: "Olmo2ForCausalLM",
    model_type: "olmo2",
    gguf: Some(Gguf {
        architecture: "olmo2",
        interleaved: false,
    }),
    rms_norm_eps: 1e-5,
    mlp_bias: Bias::Never,
    qk_norm: Some(QkNorm::AllHeads),
    norms: LayerNorms {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    },
    fields: &["attention_bias"],
    ..LLAMA
};

const GEMMA2: Traits = Traits {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    gguf: None, // their tokenizers are SentencePiece's
    head_dim: Some(256),
    num_key_value_heads: Some(4),
    max_position_embeddings: 8192,
    tie_word_embeddings: true,
    windows: (Windows::ButEvery(2), Some(4096)),
    mlp_bias: Bias::Never,
    norms: LayerNorms {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    },
    norm_offset: 1.0,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    scaled_embedding: true,
    softcaps: [Some(50.0), Some(30.0)],
    fields: &[
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    ],
    ..LLAMA
};

const GEMMA3: Traits = Traits {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    max_position_embeddings: 131_072,
    rope_theta: 1_000_000.0,
    local_rope_theta: Some(10_000.0),
    windows: (Windows::ButEvery(6), Some(4096)),
    qk_norm: Some(QkNorm::PerHead),
    softcaps: [None, None],
    fields: &[
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "sliding_window",
        "sliding_window_pattern",
    ],
    ..GEMMA2
};

const QWEN3_MOE: Traits = Traits {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    gguf: Some(Gguf {
        architecture: "qwen3moe",
        interleaved: false,
    }),
    head_dim: None,
    num_key_value_heads: Some(4),
    windows: (Windows::EveryLayer, Some(4096)),
    experts: Some(ExpertTraits {
        names: ExpertNames {
            block: "mlp",
            projections: ["gate_proj", "up_proj", "down_proj"],
        },
        width: ("moe_intermediate_size", Some(768)),
        count: 128,
        per_token: 8,
        normalized: false,
    }),
    fields: &[
        "attention_bias",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "sliding_window",
        "use_sliding_window",
    ],
    ..QWEN3
};

const MIXTRAL: Traits = Traits {
    architecture: "MixtralForCausalLM",
    model_type: "mixtral",
    gguf: LLAMA.gguf, // converters write Mixtral's models as Llama's
    rms_norm_eps: 1e-5,
    rope_theta: 1_000_000.0,
    windows: (Windows::EveryLayer, None),
    experts: Some(ExpertTraits {
        names: ExpertNames {
            block: "block_sparse_moe",
            projections: ["w1", "w3", "w2"],
        },
        width: ("intermediate_size", None),
        count: 8,
        per_token: 2,
        normalized: true,
    }),
    fields: &[
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "sliding_window",
    ],
    ..MISTRAL
};

impl Family {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Mistral,
        Self::Phi3,
        Self::SmolLm3,
        Self::Granite,
        Self::Olmo2,
        Self::Gemma2,
        Self::Gemma3,
        Self::Qwen3Moe,
        Self::Mixtral,
    ];

    pub(super) fn traits(self) -> &'static Traits {
        match self {
            Self::Llama => &LLAMA,
            Self::Qwen2 => &QWEN2,
            Self::Qwen3 => &QWEN3,
            Self::Mistral => &MISTRAL,
            Self::Phi3 => &PHI3,
            Self::SmolLm3 => &SMOLLM3,
            Self::Granite => &GRANITE,
            Self::Olmo2 => &OLMO2,
            Self::Gemma2 => &GEMMA2,
            Self::Gemma3 => &GEMMA3,
            Self::Qwen3Moe => &QWEN3_MOE,
            Self::Mixtral => &MIXTRAL,
        }
    }

    /// Returns the name in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.traits().architecture
    }

    /// Returns the name in `model_type`.
    pub fn model_type(self) -> &'static str {
        self.traits().model_type
    }

    /// Returns the name in `general.architecture` of GGUF files, if these are read.
    pub fn gguf_architecture(self) -> Option<&'static str> {
        self.traits().gguf.map(|gguf| gguf.architecture)
    }

    /// Returns whether layers have experts.
    pub fn has_experts(self) -> bool {
        self.traits().experts.is_some()
    }

    /// Returns whether GGUF files hold the rows of q and k for rope on neighbouring pairs.
    pub fn is_interleaved_in_gguf(self) -> bool {
        self.traits().gguf.is_some_and(|gguf| gguf.interleaved)
    }

    pub(super) fn from_config(fields: &Fields) -> Result<Self, ModelError> {
        let architecture = fields
            .0
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(Value::as_str);
        let model_type = fields.0.get("model_type").and_then(Value::as_str);
        let found = match architecture {
            Some(name) => Self::ALL.into_iter().find(|f| f.architecture() == name),
            None => Self::ALL.into_iter().find(|f| Some(f.model_type()) == model_type),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_have_no_biases_and_no_norm_after_them() {
        let mixtures: Vec<Family> = Family::ALL.into_iter().filter(|family| family.has_experts()).collect();
        assert!(!mixtures.is_empty());
        for family in mixtures {
            let traits = family.traits();
            let plain = traits.mlp_bias == Bias::Never && !traits.fused_projections;
            assert!(plain && traits.norms.after_mlp.is_none(), "{family:?}");
        }
    }
}
