//! Every configuration key that has an effect, with its default, under AgentJet's names.
//!
//! The doc comment of a field is its documentation: `docs/configuration.md` is generated from this file.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A whole configuration: the `ajet:` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ajet {
    /// Name of the project, which groups experiments in loggers.
    pub project_name: String,
    /// Name of the experiment; `read_yaml_name` is replaced by a unique name with a timestamp.
    pub experiment_name: String,
    /// Where checkpoints and metrics go. `auto` is `saved_experiments/<experiment_name>`; a directory that does not
    /// contain the experiment's name is a base for it.
    pub experiment_dir: String,
    /// The model.
    pub model: Model,
    /// Lengths and batch size.
    pub data: Data,
    /// Sampling.
    pub rollout: Rollout,
    /// The weight update.
    pub trainer_common: TrainerCommon,
    /// Low-rank adaptation.
    pub lora: Lora,
    /// How LLM calls become training rows.
    pub context_tracker: ContextTracker,
    /// When a batch is full.
    pub swarm_mode_sample_collection_method: CollectionMethod,
    /// Maximum number of finished episodes in a batch.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub swarm_mode_sample_collection_max_cached_episodes: u64,
    /// Seconds after which ROLLING_POST discards the running episodes.
    #[schemars(range(min = 0.0, max = 31_536_000.0))]
    pub swarm_mode_rolling_post_timeout: f64,
    /// Device and precision of the model's computation.
    pub engine: Engine,
    /// Where tasks come from; read by `roll` only.
    pub task_reader: TaskReader,
}

impl Default for Ajet {
    fn default() -> Self {
        Self {
            project_name: "ajet-swarm".into(),
            experiment_name: "read_yaml_name".into(),
            experiment_dir: "auto".into(),
            model: Model::default(),
            data: Data::default(),
            rollout: Rollout::default(),
            trainer_common: TrainerCommon::default(),
            lora: Lora::default(),
            context_tracker: ContextTracker::default(),
            swarm_mode_sample_collection_method: CollectionMethod::default(),
            swarm_mode_sample_collection_max_cached_episodes: 9999,
            swarm_mode_rolling_post_timeout: 1800.0,
            engine: Engine::default(),
            task_reader: TaskReader::default(),
        }
    }
}

/// `ajet.model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// A Hugging Face directory, a `.gguf` file, a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`, `builtin:tiny`, or, for
    /// checks of agents, `builtin:scripted:FILE`, which gives the answers of a file.
    pub path: String,
}

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
    /// Remove the tools from every request.
    pub force_disable_toolcalls: bool,
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
            force_disable_toolcalls: false,
            gpu_memory_utilization: 0.85,
            tensor_model_parallel_size: 1,
            default_system_prompt: None,
            tool_parser: None,
            reasoning_parser: None,
            on_context_overflow: OnContextOverflow::default(),
        }
    }
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

/// `ajet.trainer_common`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerCommon {
    /// The advantage.
    pub algorithm: Algorithm,
    /// The optimizer.
    pub optim: Optim,
    /// The per-token loss.
    pub policy_loss: PolicyLoss,
    /// How token losses become one number.
    pub loss_agg_mode: LossAggMode,
    /// Clip range below 1. Default: 0.2; for `gspo` 3e-4.
    pub clip_ratio_low: Option<f64>,
    /// Clip range above 1. Default: 0.2; for `gspo` 4e-4.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub clip_ratio_high: Option<f64>,
    /// Weight of the entropy bonus.
    #[schemars(range(min = -1e6, max = 1e6))]
    pub entropy_coeff: f64,
    /// Add the KL divergence from the reference weights to the loss.
    pub use_kl_loss: bool,
    /// Weight of the KL divergence, in the loss or in the reward.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_loss_coef: f64,
    /// Estimator of the divergence in the loss: `kl`, `mse` or `low_var_kl` (verl's `k1`, `k2` and `k3` too); a trailing
    /// `+` back-propagates `mse` and reports the named one.
    pub kl_loss_type: String,
    /// Subtract the KL divergence from the reward.
    pub use_kl_in_reward: bool,
    /// Estimator of the KL divergence in the reward, with the same names.
    pub kl_penalty_type: String,
    /// Weight each episode equally in the loss, regardless of its number of rows.
    pub loss_weight_normalization_episode_level: bool,
    /// Count each episode once in its group, regardless of its number of rows.
    pub advantage_estimation_episode_level: bool,
    /// Advantage of a group of one.
    pub singleton_group: SingletonGroup,
    /// Correction for differences between sampler and trainer.
    pub importance_sampling: ImportanceSampling,
    /// Soft penalty on long answers.
    pub overlong: Overlong,
    /// Exclude rows truncated by length from the loss.
    pub mask_truncated: bool,
    /// Number of optimizer steps per epoch over a batch.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub mini_batch_num: usize,
    /// Number of epochs over a batch.
    #[schemars(range(min = 1, max = 10_000))]
    pub ppo_epochs: usize,
    /// Maximum number of tokens in one forward and backward pass.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub ppo_max_token_len_per_gpu: usize,
    /// Gradient checkpointing by layer.
    pub recompute: Recompute,
    /// Compute shared prefixes of a group's rows once.
    pub share_prefixes: bool,
    /// Updates between checkpoints. With 0 or less there is one every 50 all the same, so that the journal and the way
    /// back after a crash stay short.
    pub save_freq: i64,
    /// Number of checkpoints kept.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep_last: usize,
    /// Maximum number of updates of the run, which is also the length of the learning-rate schedule. After the last one a
    /// checkpoint is written and the engine goes OFFLINE.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub total_training_steps: Option<u64>,
    /// Number of GPUs.
    #[schemars(range(min = 0, max = 1024))]
    pub n_gpus_per_node: usize,
    /// Number of machines; only 1 is supported.
    #[schemars(range(min = 1, max = 1024))]
    pub nnodes: usize,
    /// Where metrics go besides `metrics.jsonl`: `console` (a log line a step), `tensorboard` (event files below
    /// `tensorboard/` of the experiment). Any other logger is answered with TensorBoard's files.
    pub logger: Vec<String>,
    /// Write every finished episode's conversations below `trajectories/` of the experiment directory.
    pub save_trajectory_as_json_file: bool,
    /// File on the server's machine to which every step's metrics are appended, a line each, written as a Python dict.
    pub train_print_to_markdown_file_path: Option<String>,
    /// The same for a step's eval metrics by task.
    pub val_print_to_markdown_file_path: Option<String>,
    /// Factor of the loss.
    #[schemars(range(min = -1e6, max = 1e6))]
    pub loss_extra_scale_ratio: f64,
    /// Seed of all random numbers.
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
}

impl Default for TrainerCommon {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            optim: Optim::default(),
            policy_loss: PolicyLoss::default(),
            loss_agg_mode: LossAggMode::default(),
            clip_ratio_low: None,
            clip_ratio_high: None,
            entropy_coeff: 0.0,
            use_kl_loss: true,
            kl_loss_coef: 0.002,
            kl_loss_type: "low_var_kl".into(),
            use_kl_in_reward: false,
            kl_penalty_type: "kl".into(),
            loss_weight_normalization_episode_level: true,
            advantage_estimation_episode_level: true,
            singleton_group: SingletonGroup::default(),
            importance_sampling: ImportanceSampling::default(),
            overlong: Overlong::default(),
            mask_truncated: false,
            mini_batch_num: 1,
            ppo_epochs: 1,
            ppo_max_token_len_per_gpu: 16384,
            recompute: Recompute::default(),
            share_prefixes: true,
            save_freq: 20,
            keep_last: 2,
            total_training_steps: None,
            n_gpus_per_node: 1,
            nnodes: 1,
            logger: vec!["console".into()],
            save_trajectory_as_json_file: false,
            train_print_to_markdown_file_path: None,
            val_print_to_markdown_file_path: None,
            loss_extra_scale_ratio: 1.0,
            seed: 0,
        }
    }
}

/// `ajet.trainer_common.algorithm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Algorithm {
    /// How rewards become advantages.
    pub adv_estimator: AdvEstimator,
    /// Divide by the group's standard deviation (`false`: Dr.GRPO).
    pub norm_adv_by_std_in_grpo: bool,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            adv_estimator: AdvEstimator::default(),
            norm_adv_by_std_in_grpo: true,
        }
    }
}

/// `ajet.trainer_common.optim`: AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Optim {
    /// Learning rate. LoRA needs a larger one, around 1e-4.
    #[schemars(range(min = 0.0, max = 1e3))]
    pub lr: f64,
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Constant added to the denominator of a step.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub eps: f64,
    /// Weight decay, except for norms and biases.
    #[schemars(range(min = 0.0, max = 1e3))]
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub grad_clip: f64,
    /// Schedule of the learning rate after warm-up.
    pub lr_scheduler_type: LrScheduler,
    /// Number of updates of linear warm-up; if negative or absent, `lr_warmup_steps_ratio` applies.
    #[schemars(range(min = -1_000_000_000, max = 1_000_000_000))]
    pub lr_warmup_steps: Option<i64>,
    /// Share of `total_training_steps` used for warm-up.
    pub lr_warmup_steps_ratio: f64,
    /// Share of the learning rate at the end of the schedule.
    pub min_lr_ratio: f64,
}

impl Default for Optim {
    fn default() -> Self {
        Self {
            lr: 1e-6,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            grad_clip: 1.0,
            lr_scheduler_type: LrScheduler::default(),
            lr_warmup_steps: None,
            lr_warmup_steps_ratio: 0.0,
            min_lr_ratio: 0.0,
        }
    }
}

/// `ajet.trainer_common.importance_sampling`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImportanceSampling {
    /// Correction per token, per sequence or off.
    pub mode: ImportanceMode,
    /// Maximum correction weight.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub cap: f64,
}

impl Default for ImportanceSampling {
    fn default() -> Self {
        Self {
            mode: ImportanceMode::default(),
            cap: 2.0,
        }
    }
}

/// `ajet.trainer_common.overlong`: DAPO's soft penalty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Overlong {
    /// Number of tokens before the limit at which the penalty starts; 0 disables it.
    #[schemars(range(min = 0, max = 10_000_000))]
    pub buffer_len: usize,
    /// Penalty at the limit.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub penalty_factor: f64,
}

impl Default for Overlong {
    fn default() -> Self {
        Self {
            buffer_len: 0,
            penalty_factor: 1.0,
        }
    }
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
    /// `all-linear`, or a list of projection names.
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

/// `ajet.context_tracker`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct ContextTracker {
    /// When two LLM calls become one training row.
    pub timeline_merging_policy: TimelineMergingPolicy,
}

/// `ajet.context_tracker.timeline_merging_policy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TimelineMergingPolicy {
    /// How to compare calls to detect that one continues another. `text_and_image` means `text`.
    pub timeline_compare_level: CompareLevel,
    /// Ignore a changed tool list.
    pub ignore_tools: bool,
}

impl Default for TimelineMergingPolicy {
    fn default() -> Self {
        Self {
            timeline_compare_level: CompareLevel::default(),
            ignore_tools: true,
        }
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
            restart_on_crash: true,
        }
    }
}

/// `ajet.task_reader`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskReader {
    /// `jsonl_dataset_file`, `huggingface_dat_repo`, `command`, `random_dummy`, `arithmetic` or `reverse_text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Maximum number of tasks of each set, training and validation; reading stops there.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub limit: Option<usize>,
    /// Expression over a row's columns, such as `level <= 3 and answer`; rows of which it is true are kept.
    pub filter: String,
    /// Templates over a row's columns. `main_query`, `task_id`, `env_type` and `init_messages` are the task's; any other
    /// name is a field of its `metadata`, which is the whole row where no such name is given.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub columns: IndexMap<String, String>,
    /// For type `jsonl_dataset_file`.
    pub jsonl_dataset_file: JsonlDatasetFile,
    /// For type `huggingface_dat_repo`.
    pub huggingface_dat_repo: HuggingfaceDatRepo,
    /// For type `command`.
    pub command: TaskCommands,
    /// For type `random_dummy`.
    pub random_dummy: RandomDummy,
    /// For type `arithmetic`.
    pub arithmetic: Generated,
    /// For type `reverse_text`.
    pub reverse_text: Generated,
}

impl Default for TaskReader {
    fn default() -> Self {
        Self {
            kind: "jsonl_dataset_file".into(),
            limit: None,
            filter: String::new(),
            columns: IndexMap::new(),
            jsonl_dataset_file: JsonlDatasetFile::default(),
            huggingface_dat_repo: HuggingfaceDatRepo::default(),
            command: TaskCommands::default(),
            random_dummy: RandomDummy::default(),
            arithmetic: Generated::default(),
            reverse_text: Generated::default(),
        }
    }
}

/// `ajet.task_reader.jsonl_dataset_file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct JsonlDatasetFile {
    /// Tasks to train on.
    pub training: JsonlFile,
    /// Tasks to evaluate on.
    pub validation: JsonlFile,
}

/// A file of tasks, a JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct JsonlFile {
    /// Path; relative to the working directory. May end in `.gz`, `.zst` or `.bz2`.
    pub file_path: String,
}

/// `ajet.task_reader.huggingface_dat_repo`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HuggingfaceDatRepo {
    /// Directory or file of a data set, or a hub id such as `openai/gsm8k` or `openai/gsm8k@REVISION`.
    pub dataset_path: String,
    /// Configuration of the data set, such as `main`, or a directory in it. Default: the data set's own default.
    pub dataset_name: Option<String>,
    /// Split to train on, or a part of it, such as `train[:90%]`.
    pub training_split: String,
    /// Split to evaluate on, or a part of one, such as `train[90%:]`. Default: `validation`, where the data set has it.
    pub validation_split: Option<String>,
    /// Key of the list of rows, for JSON files whose top level is an object.
    pub field: Option<String>,
    /// Character between the values of CSV files. Default: `,`, for `.tsv` a tab.
    pub delimiter: Option<String>,
}

impl Default for HuggingfaceDatRepo {
    fn default() -> Self {
        Self {
            dataset_path: String::new(),
            dataset_name: None,
            training_split: "train".into(),
            validation_split: None,
            field: None,
            delimiter: None,
        }
    }
}

/// `ajet.task_reader.command`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskCommands {
    /// Program and arguments; prints the training tasks, one JSON object per line.
    pub training: Vec<String>,
    /// Program and arguments; prints the evaluation tasks.
    pub validation: Vec<String>,
    /// Maximum run time of a program in seconds.
    #[schemars(range(min = 0.1, max = 86_400.0))]
    pub timeout: f64,
}

impl Default for TaskCommands {
    fn default() -> Self {
        Self {
            training: vec![],
            validation: vec![],
            timeout: 600.0,
        }
    }
}

/// `ajet.task_reader.random_dummy`: tasks with a random number and no question, for agents that bring their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RandomDummy {
    /// Number of training tasks.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub tasks: usize,
    /// Number of evaluation tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub validation_tasks: usize,
    /// Seed of the task set.
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
}

impl Default for RandomDummy {
    fn default() -> Self {
        Self {
            tasks: 256,
            validation_tasks: 64,
            seed: 0,
        }
    }
}

/// A task set made from a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Generated {
    /// Number of training tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub tasks: usize,
    /// Number of evaluation tasks; they differ from the training tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub validation_tasks: usize,
    /// Seed of the task set.
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
    /// Minimum number of letters (`reverse_text`) or digits (`arithmetic`).
    #[schemars(range(min = 0, max = 1000))]
    pub min_length: usize,
    /// Maximum number of letters or digits.
    #[schemars(range(min = 0, max = 1000))]
    pub max_length: usize,
}

impl Default for Generated {
    fn default() -> Self {
        Self {
            tasks: 256,
            validation_tasks: 64,
            seed: 0,
            min_length: 3,
            max_length: 5,
        }
    }
}

/// When a batch is full. B is `data.train_batch_size`, N is `rollout.num_repeat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CollectionMethod {
    /// B·N episodes.
    #[serde(rename = "rollout_until_finish_enough_episodes")]
    RolloutUntilFinishEnoughEpisodes,
    /// B tasks with N episodes.
    #[default]
    #[serde(rename = "rollout_until_finish_enough_tasks")]
    RolloutUntilFinishEnoughTasks,
    /// B tasks with N episodes and rewards that differ.
    #[serde(rename = "rollout_until_finish_enough_non_dummy_tasks")]
    RolloutUntilFinishEnoughNonDummyTasks,
    /// An active client agreed.
    #[serde(rename = "rollout_until_any_client_agree_sync_weight")]
    RolloutUntilAnyClientAgreeSyncWeight,
    /// All active clients agreed.
    #[serde(rename = "rollout_until_all_clients_agree_sync_weight")]
    RolloutUntilAllClientsAgreeSyncWeight,
}

impl CollectionMethod {
    const ALL: [Self; 5] = [
        Self::RolloutUntilFinishEnoughEpisodes,
        Self::RolloutUntilFinishEnoughTasks,
        Self::RolloutUntilFinishEnoughNonDummyTasks,
        Self::RolloutUntilAnyClientAgreeSyncWeight,
        Self::RolloutUntilAllClientsAgreeSyncWeight,
    ];

    /// Name in the configuration and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::RolloutUntilFinishEnoughEpisodes => "rollout_until_finish_enough_episodes",
            Self::RolloutUntilFinishEnoughTasks => "rollout_until_finish_enough_tasks",
            Self::RolloutUntilFinishEnoughNonDummyTasks => "rollout_until_finish_enough_non_dummy_tasks",
            Self::RolloutUntilAnyClientAgreeSyncWeight => "rollout_until_any_client_agree_sync_weight",
            Self::RolloutUntilAllClientsAgreeSyncWeight => "rollout_until_all_clients_agree_sync_weight",
        }
    }

    /// Method of that name; `None` for one that only another server knows.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
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

/// How rewards become advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdvEstimator {
    /// Group mean and standard deviation.
    #[default]
    #[serde(rename = "grpo")]
    Grpo,
    /// Leave one out.
    #[serde(rename = "rloo")]
    Rloo,
    /// Whitened over the batch.
    #[serde(rename = "reinforce_plus_plus")]
    ReinforcePlusPlus,
    /// Group mean taken off, then whitened over the batch.
    #[serde(rename = "reinforce_plus_plus_baseline")]
    ReinforcePlusPlusBaseline,
}

/// The per-token loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyLoss {
    /// PPO's clipped ratio with dual clip.
    #[default]
    #[serde(rename = "ppo_clip")]
    PpoClip,
    /// One ratio per row.
    #[serde(rename = "gspo")]
    Gspo,
    /// Clipped ratio as a constant weight.
    #[serde(rename = "cispo")]
    Cispo,
}

/// How token losses become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LossAggMode {
    /// Mean over tokens, then over sequences.
    #[default]
    #[serde(rename = "seq-mean-token-mean")]
    SeqMeanTokenMean,
    /// Mean over all tokens of the batch.
    #[serde(rename = "token-mean")]
    TokenMean,
    /// Sum over tokens by a constant, mean over sequences.
    #[serde(rename = "seq-mean-token-sum-norm")]
    SeqMeanTokenSumNorm,
}

/// Advantage of a group of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SingletonGroup {
    /// 0.
    #[default]
    #[serde(rename = "zero")]
    Zero,
    /// Its reward.
    #[serde(rename = "raw")]
    Raw,
}

/// Correction for differences between sampler and trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImportanceMode {
    /// None.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// One weight per token.
    #[serde(rename = "token")]
    Token,
    /// A weight a row.
    #[serde(rename = "sequence")]
    Sequence,
}

/// Gradient checkpointing by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Recompute {
    /// Where memory asks for it.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// Always.
    #[serde(rename = "on")]
    On,
    /// Never.
    #[serde(rename = "off")]
    Off,
}

/// Schedule of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LrScheduler {
    /// Stays.
    #[default]
    #[serde(rename = "constant")]
    Constant,
    /// Falls linearly.
    #[serde(rename = "linear")]
    Linear,
    /// Falls along a cosine.
    #[serde(rename = "cosine")]
    Cosine,
}

/// What is compared to find that a call continues another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompareLevel {
    /// Token ids.
    #[serde(rename = "token")]
    Token,
    /// Text; the sampled ids are taken.
    #[default]
    #[schemars(extend("x-aliases" = ["text_and_image"]))]
    #[serde(rename = "text")]
    Text,
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

/// `ajet.lora.target_modules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TargetModules {
    /// `all-linear`: q, k, v, o, gate, up and down projections.
    Name(String),
    /// Projection names, such as `q_proj`.
    List(Vec<String>),
}

impl Default for TargetModules {
    fn default() -> Self {
        Self::Name("all-linear".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collection_methods_have_the_same_name_everywhere() {
        for method in CollectionMethod::ALL {
            assert_eq!(serde_json::to_value(method).unwrap(), method.name());
            assert_eq!(CollectionMethod::from_name(method.name()), Some(method));
        }
        assert_eq!(CollectionMethod::from_name(""), None);
    }
}
