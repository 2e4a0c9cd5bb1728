//! `ajet.model`, `ajet.lora` and `ajet.engine`: which weights, and how they are computed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ajet.model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// A Hugging Face directory, a `.gguf` file, a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`, `builtin:tiny`, or, for
    /// checks of agents, `builtin:scripted:FILE`, which gives the answers of a file.
    pub path: String,
    /// Keep the matrices of a `.gguf` file in memory as the file has them, in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or
    /// Q6_K; everything else is f32. Sampling and training compute with the values that these stand for, and LoRA adapters
    /// are trained. Needs a CPU.
    pub keep_quantized: bool,
}

/// `ajet.lora`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    /// Rank; 0 trains all parameters.
    #[schemars(range(min = 0, max = 4096))]
    pub lora_rank: usize,
    /// Scale: alpha / rank.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub lora_alpha: f64,
    /// `all-linear`, or a list of the model's projection names.
    pub target_modules: TargetModules,
}

impl Default for Lora {
    fn default() -> Self {
        Self {
            lora_rank: 0,
            lora_alpha: 16.0,
            target_modules: TargetModules::default(),
        }
    }
}

/// `ajet.lora.target_modules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TargetModules {
    /// `all-linear`: all projections of attention and MLP.
    Name(String),
    /// Projection names, such as `q_proj`.
    List(Vec<String>),
}

impl Default for TargetModules {
    fn default() -> Self {
        Self::Name("all-linear".into())
    }
}

/// `ajet.engine`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// `auto`, `cpu`, `cuda:N` or `metal`.
    pub device: String,
    /// Type of weights and matrix products. On a CPU `bf16` is that of the products, in the sampler and the trainer; the
    /// trainer's weights and moments stay f32, and importance correction is wanted.
    pub dtype: Dtype,
    /// Kernels to use.
    pub kernels: Kernels,
    /// Number of compute threads, at most the machine's logical CPUs. Default: physical cores.
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<usize>,
    /// Whether an engine with other than `n_gpus_per_node` × `nnodes` ranks is an error.
    pub ranks: Ranks,
    /// Restart a crashed engine, at most three times.
    pub restart_on_crash: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            device: "auto".into(),
            dtype: Dtype::default(),
            kernels: Kernels::default(),
            threads: None,
            ranks: Ranks::default(),
            restart_on_crash: true,
        }
    }
}

/// Type of weights and matmuls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Dtype {
    /// f32 on CPU, the checkpoint's type on a GPU.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// 32-bit floats.
    #[serde(rename = "f32")]
    F32,
    /// bfloat16 with f32 accumulation.
    #[serde(rename = "bf16")]
    Bf16,
}

/// Kernels to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kernels {
    /// The fastest for the device.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// candle's own tensor operations.
    #[serde(rename = "plain")]
    Plain,
}

/// What counts as enough ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ranks {
    /// As many as were started; fewer than configured are a warning.
    #[default]
    #[serde(rename = "available")]
    Available,
    /// As many as configured.
    #[serde(rename = "exact")]
    Exact,
}
