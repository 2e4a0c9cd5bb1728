//! The architecture of a model: Hugging Face's `config.json`, families as data.

/// The supported architectures. What differs between them is data of [`ModelConfig`], not code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on q and k, heads of their own size.
    Qwen3,
}

/// Shapes and constants of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key-value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Added under the root of rms-norms.
    pub rms_norm_eps: f32,
    /// Whether the LM head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the o projection has a bias (Llama's `attention_bias`).
    pub o_bias: bool,
    /// Whether gate, up and down projections have a bias (Llama's `mlp_bias`).
    pub mlp_bias: bool,
    /// Whether q and k are rms-normed per head before rope.
    pub qk_norm: bool,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
    /// Rotary embedding, half-split as in Hugging Face files.
    pub rope: Rope,
}

/// Rotary position embedding, already scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Inverse frequencies after scaling (`llama3`, `linear`, `yarn`), `head_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin (yarn's attention factor; 1 elsewhere).
    pub attention_factor: f32,
}
