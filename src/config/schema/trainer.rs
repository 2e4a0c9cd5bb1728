//! `ajet.trainer_common`: advantage, loss, optimizer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Train the routers of a mixture of experts too. By default they are frozen, so that the sampler and the trainer
    /// choose the same experts as long as possible. Not with LoRA.
    pub train_router: bool,
    /// Updates between checkpoints. With 0 or less there is one every 50 all the same, so that the journal and the way
    /// back after a crash stay short.
    pub save_freq: i64,
    /// Number of checkpoints kept.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep_last: usize,
    /// Metric of `metrics.jsonl` by which the best checkpoint is kept too, named in `checkpoints/best`; higher is better,
    /// `none` keeps no best one. A step's metrics, of eval and train episodes, measure the checkpoint of the step before.
    pub keep_best: String,
    /// Maximum number of updates of the run, which is also the length of the learning-rate schedule. After the last one a
    /// checkpoint is written and the engine goes OFFLINE.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub total_training_steps: Option<u64>,
    /// Number of GPUs, and so of ranks, on each machine; a warning where fewer train. The server's `--launcher` starts them.
    #[schemars(range(min = 0, max = 1024))]
    pub n_gpus_per_node: usize,
    /// Number of machines. The server's `--launcher` decides which.
    #[schemars(range(min = 1, max = 1024))]
    pub nnodes: usize,
    /// Where metrics go besides `metrics.jsonl`: `console` (a log line a step), `tensorboard` (event files below
    /// `tensorboard/` of the experiment). Any other logger is answered with TensorBoard's files.
    pub logger: Vec<String>,
    /// Write every finished episode's conversations, tokens and advantages below `trajectories/` of the experiment
    /// directory.
    pub save_trajectory_as_json_file: bool,
    /// Maximum size of `trajectories/`, in MiB; the oldest steps are deleted first.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub trajectory_limit_mb: u64,
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
            train_router: false,
            save_freq: 20,
            keep_last: 2,
            keep_best: "eval/reward_mean".into(),
            total_training_steps: None,
            n_gpus_per_node: 1,
            nnodes: 1,
            logger: vec!["console".into()],
            save_trajectory_as_json_file: true,
            trajectory_limit_mb: 2048,
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
    /// Weights tokens by how much more likely the trainer finds them than the sampler did.
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
    /// `token` with `ajet.rollout.quantization: int8`, `ajet.engine.dtype: bf16` or `ajet.rollout.endpoints`, or else `off`.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// None.
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
