//! `ajet.data` and `ajet.rollout`: lengths, batch size, sampling.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ajet.data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Maximum number of tokens in a row before the first sampled one.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_prompt_length: usize,
    /// Maximum number of tokens in a row after the first prompt.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_response_length: usize,
    /// Number of tasks in a batch (B).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub train_batch_size: usize,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            max_prompt_length: 3000,
            max_response_length: 15000,
            train_batch_size: 32,
        }
    }
}

/// `ajet.rollout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Number of episodes per task in a batch (N), the group size of GRPO.
    #[schemars(range(min = 1, max = 100_000))]
    pub num_repeat: usize,
    /// Maximum number of episodes claimed at once; B·N if that is less.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_env_worker: usize,
    /// Maximum number of tokens sampled in one LLM call. Default: 4096, at most `max_response_length`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_response_length_in_one_turn: Option<usize>,
    /// Maximum number of tokens of prompt and answer together. Default: `max_prompt_length` + `max_response_length`.
    #[schemars(range(min = 1, max = 20_000_000))]
    pub max_model_len: Option<usize>,
    /// Maximum number of sequences in a batch of the sampler.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_num_seqs: usize,
    /// Maximum number of queued requests; further ones are answered with 429.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_queued_requests: usize,
    /// Sampling temperature of train episodes; overrides their requests.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub temperature: f64,
    /// Nucleus sampling of train episodes: the most likely tokens that together reach this probability.
    pub top_p: f64,
    /// Number of most likely tokens from which train episodes are sampled; −1 for all.
    #[schemars(range(min = -1, max = 16_777_216))]
    pub top_k: i64,
    /// Sampling parameters of eval episodes, unless set by the request.
    pub val_kwargs: ValKwargs,
    /// Limits of an episode's rows.
    pub multi_turn: MultiTurn,
    /// Checks of every answer for a model that lost control: `nonsense` (another turn is begun, or a few words or
    /// characters repeat), `non_ascii`, `un-paired-think`, `format_type_1` (thinking, then one block of Python),
    /// `wrong_toolcall` (a tool call's marker without a call).
    pub compute_madness_checklist: Vec<MadnessCheck>,
    /// Answer further calls of a flagged episode with an empty message and `finish_reason: length`.
    pub agent_madness_termination: bool,
    /// Reward of a flagged train episode; overrides its client's.
    #[schemars(range(min = -1e6, max = 1e6))]
    pub agent_madness_reward: f64,
    /// Sample on after a token that ends the answer, up to the request's maximum: every answer has the same length, as
    /// speed measurements need it.
    pub ignore_eos: bool,
    /// Remove the tools from every request.
    pub force_disable_toolcalls: bool,
    /// Sample on a CPU with weights and activations of fewer bits; training stays as it is. The log-probabilities as
    /// sampled are recorded, and the trainer corrects the difference: see `ajet.trainer_common.importance_sampling`.
    pub quantization: Quantization,
    /// URLs of samplers elsewhere, such as `http://box2:8000`: they sample the answers, and get the LoRA adapter after every
    /// update; see samplers.md. The engine samples what they cannot, and everything while none can be reached. Default: the
    /// engine samples alone.
    #[schemars(length(max = 1024))]
    pub endpoints: Vec<String>,
    /// API of the endpoints: `vllm`, which `ajet-swarm serve` speaks too. No effect without endpoints.
    pub name: String,
    /// Directory for the adapters that endpoints load, which they must see under the same path. Default: `samplers` in
    /// the experiment's directory.
    pub adapter_dir: Option<String>,
    /// Share of the GPU's memory for weights and caches.
    pub gpu_memory_utilization: f64,
    /// Number of GPUs that share one copy of the model; only 1 is supported.
    #[schemars(range(min = 1, max = 1024))]
    pub tensor_model_parallel_size: usize,
    /// System message for conversations without one.
    pub default_system_prompt: Option<String>,
    /// Tool-call format: `hermes`, `llama3_json`, `json` or `none`. Default: detected from the chat template.
    pub tool_parser: Option<String>,
    /// Reasoning format: `think` or `none`. Default: detected from the chat template.
    pub reasoning_parser: Option<String>,
    /// Answer to a prompt that does not fit.
    pub on_context_overflow: OnContextOverflow,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            num_repeat: 4,
            max_env_worker: 128,
            max_response_length_in_one_turn: None,
            max_model_len: None,
            max_num_seqs: 64,
            max_queued_requests: 1024,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            val_kwargs: ValKwargs::default(),
            multi_turn: MultiTurn::default(),
            compute_madness_checklist: vec![MadnessCheck::Nonsense],
            agent_madness_termination: true,
            agent_madness_reward: 0.0,
            ignore_eos: false,
            force_disable_toolcalls: false,
            quantization: Quantization::default(),
            endpoints: vec![],
            name: "vllm".into(),
            adapter_dir: None,
            gpu_memory_utilization: 0.85,
            tensor_model_parallel_size: 1,
            default_system_prompt: None,
            tool_parser: None,
            reasoning_parser: None,
            on_context_overflow: OnContextOverflow::default(),
        }
    }
}

/// What the sampler computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Quantization {
    /// `ajet.engine.dtype`.
    #[default]
    #[serde(rename = "none")]
    None,
    /// 8-bit integers, with a scale for each output of a weight and for each token; head and norms in f32.
    #[serde(rename = "int8")]
    Int8,
}

/// Smallest temperature by which logits are divided; below it, log-probabilities leave the range of f32.
pub const LEAST_TEMPERATURE: f64 = 0.001;

/// `ajet.rollout.val_kwargs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValKwargs {
    /// Sampling temperature of eval episodes; 0 is greedy.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub temperature: f64,
    /// Nucleus sampling of eval episodes; 0 is greedy.
    pub top_p: f64,
    /// Number of most likely tokens from which eval episodes are sampled; −1 for all.
    #[schemars(range(min = -1, max = 16_777_216))]
    pub top_k: i64,
    /// `false` is greedy.
    pub do_sample: bool,
}

impl Default for ValKwargs {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            do_sample: true,
        }
    }
}

/// `ajet.rollout.multi_turn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MultiTurn {
    /// Maximum number of rows of an episode; beyond it, a seeded sample is kept.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_sample_per_task: usize,
}

impl Default for MultiTurn {
    fn default() -> Self {
        Self {
            max_sample_per_task: 30,
        }
    }
}

/// A sign that the model lost control of what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MadnessCheck {
    /// It begins another turn, or repeats a few words or characters.
    #[serde(rename = "nonsense")]
    Nonsense,
    /// It holds a character beyond ASCII.
    #[serde(rename = "non_ascii")]
    NonAscii,
    /// A thinking tag without its partner.
    #[serde(rename = "un-paired-think")]
    UnpairedThink,
    /// It is not thinking and then one block of Python.
    #[serde(rename = "format_type_1")]
    FormatType1,
    /// A tool call's marker with nothing in it that can be called.
    #[serde(rename = "wrong_toolcall")]
    WrongToolcall,
}

impl MadnessCheck {
    /// Its name in the configuration and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nonsense => "nonsense",
            Self::NonAscii => "non_ascii",
            Self::UnpairedThink => "un-paired-think",
            Self::FormatType1 => "format_type_1",
            Self::WrongToolcall => "wrong_toolcall",
        }
    }
}

/// Answer to a prompt that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnContextOverflow {
    /// An answer that is not trained, with `finish_reason: length`, that begins `AgentJet: Exceeded max model context length. token_overflow(`.
    #[default]
    #[serde(rename = "length")]
    Length,
    /// 400 `context_length_exceeded` in the wording that agents compact their history on.
    #[serde(rename = "error")]
    Error,
}
