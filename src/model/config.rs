//! Architecture of a model: shapes and constants. `config_json.rs` reads them.

use super::experts::Experts;
pub use super::family::{Family, LayerNorms, QkNorm};
use super::kernels::{Activation, AttentionScores, LogitScaling};
pub use super::rope::Rope;

/// Shapes and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP of layers without experts.
    pub intermediate_size: usize,
    /// Mixture of experts, of the layers that have one.
    pub experts: Option<Experts>,
    /// What differs from layer to layer; one entry per layer.
    pub layers: Vec<LayerConfig>,
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
    /// RMS norms on q and k before the rotary embedding.
    pub qk_norm: Option<QkNorm>,
    /// RMS norms around attention and MLP.
    pub norms: LayerNorms,
    /// Number added to the weight of every norm: 1 where files hold weights around 0 (Gemma).
    pub norm_offset: f32,
    /// Whether q, k and v are one projection, and gate and up (Phi-3).
    pub fused_projections: bool,
    /// Activation of the MLP's gate.
    pub activation: Activation,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    /// Factor of query · key.
    pub attention_scale: f32,
    /// c of the soft cap c·tanh(score / c) of attention scores.
    pub attention_softcap: Option<f32>,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// c of the soft cap of logits.
    pub logit_softcap: Option<f32>,
    /// Maximum context length of the model.
    pub max_position_embeddings: usize,
    /// Rotary embeddings, in the half-split layout of Hugging Face files; each layer names its own.
    pub ropes: Vec<Rope>,
}

/// Names of the projections of one input: one each, or fused into one.
pub struct ProjectionNames<const N: usize> {
    /// Names where each is one of its own.
    pub separate: [&'static str; N],
    /// Name where they are one, whose result has theirs side by side.
    pub fused: &'static str,
}

/// Queries, keys and values.
pub const QKV: ProjectionNames<3> = ProjectionNames {
    separate: ["q_proj", "k_proj", "v_proj"],
    fused: "qkv_proj",
};

/// Gate and up.
pub const GATE_UP: ProjectionNames<2> = ProjectionNames {
    separate: ["gate_proj", "up_proj"],
    fused: "gate_up_proj",
};

/// What differs from layer to layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Number of last positions that a query sees, its own included; `None` for all.
    pub window: Option<usize>,
    /// Index of the rotary embedding in [`ModelConfig::ropes`]; `None` for none.
    pub rope: Option<usize>,
    /// Whether experts take the place of the MLP.
    pub has_experts: bool,
}

impl ModelConfig {
    /// Returns how a layer's attention scores are computed.
    pub fn attention_scores(&self, layer: usize) -> AttentionScores {
        AttentionScores {
            scale: self.attention_scale,
            softcap: self.attention_softcap,
            window: self.layers[layer].window,
        }
    }

    /// Returns the experts of a layer; `None` if it has an MLP.
    pub fn layer_experts(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|_| self.layers[layer].has_experts)
    }

    /// Returns the width inside the MLP of a layer, or inside all experts of a token together.
    pub fn layer_mlp_width(&self, layer: usize) -> usize {
        match self.layer_experts(layer) {
            Some(experts) => experts.per_token * experts.intermediate_size,
            None => self.intermediate_size,
        }
    }

    /// Returns the largest width inside the MLP of a layer.
    pub fn mlp_width(&self) -> usize {
        let widths = (0..self.layers.len()).map(|layer| self.layer_mlp_width(layer));
        widths.max().unwrap_or(0)
    }

    /// Returns the widths of the norms on queries and keys, if there are any.
    pub fn qk_norm_widths(&self) -> Option<[usize; 2]> {
        Some(match self.qk_norm? {
            QkNorm::PerHead => [self.head_dim; 2],
            QkNorm::AllHeads => [self.num_heads, self.num_kv_heads].map(|heads| heads * self.head_dim),
        })
    }

    /// Returns how products of hidden states and head become logits over a temperature.
    pub fn logit_scaling(&self, temperature: f64) -> LogitScaling {
        LogitScaling {
            scale: f64::from(self.logit_scale) / temperature,
            softcap: self.logit_softcap.map(|cap| f64::from(cap) / temperature),
        }
    }

    /// Returns names and shapes of all parameters, in the model's order; linear weights are out × in. A tied head is
    /// omitted.
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab_size, hidden])];
        for layer in 0..self.layers.len() {
            let mut linear = |name: &str, rows: usize, columns: usize, bias: bool| {
                shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![rows, columns]));
                if bias {
                    shapes.push((format!("model.layers.{layer}.{name}.bias"), vec![rows]));
                }
            };
            if self.fused_projections {
                linear("self_attn.qkv_proj", q + 2 * kv, hidden, self.qkv_bias);
            } else {
                linear("self_attn.q_proj", q, hidden, self.qkv_bias);
                linear("self_attn.k_proj", kv, hidden, self.qkv_bias);
                linear("self_attn.v_proj", kv, hidden, self.qkv_bias);
            }
            linear("self_attn.o_proj", hidden, q, self.o_bias);
            match self.layer_experts(layer) {
                Some(experts) => shapes.extend(experts.tensor_shapes(layer, hidden)),
                None if self.fused_projections => {
                    linear("mlp.gate_up_proj", 2 * inner, hidden, self.mlp_bias);
                    linear("mlp.down_proj", hidden, inner, self.mlp_bias);
                }
                None => {
                    linear("mlp.gate_proj", inner, hidden, self.mlp_bias);
                    linear("mlp.up_proj", inner, hidden, self.mlp_bias);
                    linear("mlp.down_proj", hidden, inner, self.mlp_bias);
                }
            }
            let mut norm = |name: &str, width: usize| {
                shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![width]));
            };
            if let Some([q, k]) = self.qk_norm_widths() {
                norm("self_attn.q_norm", q);
                norm("self_attn.k_norm", k);
            }
            self.norms.names().for_each(|name| norm(name, hidden));
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

#[cfg(test)]
impl ModelConfig {
    /// A model of a few thousand parameters that has everything its family has.
    pub fn small(family: Family) -> Self {
        use super::family::Windows;

        let traits = family.traits();
        let head_dim = if traits.qk_norm == Some(QkNorm::PerHead) { 6 } else { 4 };
        let has_rope = |layer: usize| family != Family::SmolLm3 || layer > 0;
        let slides = |layer: usize| match traits.windows.0 {
            Windows::Never | Windows::WithoutRope => false,
            Windows::EveryLayer => true,
            Windows::FromLayer | Windows::ButEvery(_) => layer == 0,
        };
        let local_rope = traits.local_rope_theta.is_some();
        let rope = |base: f32| Rope {
            inv_freq: (0..head_dim / if traits.fused_projections { 4 } else { 2 })
                .map(|i| base.powf(-2.0 * i as f32 / head_dim as f32))
                .collect(),
            attention_factor: 1.0,
            max_context: None,
        };
        let scaled = |scale: f32| if family == Family::Granite { scale } else { 1.0 };
        Self {
            family,
            hidden_size: 16,
            intermediate_size: 24,
            experts: traits.experts.map(|experts| Experts {
                count: 3,
                per_token: 2,
                intermediate_size: 12,
                normalized: experts.normalized,
                names: experts.names,
            }),
            layers: (0..2)
                .map(|layer| LayerConfig {
                    window: slides(layer).then_some(4),
                    rope: has_rope(layer).then_some(usize::from(local_rope && slides(layer))),
                    has_experts: family == Family::Mixtral || family == Family::Qwen3Moe && layer == 1,
                })
                .collect(),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim,
            vocab_size: 32,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: family != Family::Qwen2,
            qkv_bias: family == Family::Qwen2,
            o_bias: false,
            mlp_bias: false,
            qk_norm: traits.qk_norm,
            norms: traits.norms,
            norm_offset: traits.norm_offset,
            fused_projections: traits.fused_projections,
            activation: match traits.activation.1 {
                "silu" => Activation::Silu,
                _ => Activation::GeluTanh,
            },
            embedding_scale: if traits.scaled_embedding { 4.0 } else { scaled(1.5) },
            residual_scale: scaled(0.4),
            attention_scale: scaled(0.6) / (head_dim as f32).sqrt(),
            attention_softcap: traits.softcaps[0].map(|_| 2.0),
            logit_scale: scaled(0.7),
            logit_softcap: traits.softcaps[1].map(|_| 3.0),
            max_position_embeddings: 128,
            ropes: [100.0, 30.0][..1 + usize::from(local_rope)]
                .iter()
                .map(|base| rope(*base))
                .collect(),
        }
    }
}
