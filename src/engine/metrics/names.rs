//! Names of metrics.
//!
//! A step's metrics are a flat map from name to number, the same in `metrics.jsonl`, in
//! [`crate::protocol::engine::EngineEvent::Metrics`] and wherever they are displayed.

use indexmap::IndexMap;

/// Name → value.
pub type Metrics = IndexMap<String, f64>;

/// All metrics with their descriptions. A name that ends in `/` is a family, such as `dropped/idle`.
#[rustfmt::skip]
pub const NAMES: &[(&str, &str)] = &[
    ("global_step", "the step at which the batch was sampled, from 1"),
    ("episodes", "train episodes that the update trained on"),
    ("tasks", "groups that the update trained on"),
    ("dummy_tasks", "groups of the batch with equal rewards, trained on or left out"),
    ("reward_mean", "mean reward of the train episodes"),
    ("reward_std", "unbiased standard deviation of the rewards; 0 for a single episode"),
    ("reward_min", "smallest reward"),
    ("reward_max", "largest reward"),
    ("reward_p10", "10th percentile of the rewards"),
    ("reward_p90", "90th percentile of the rewards"),
    ("reward_mean/", "mean reward of the episodes with this `metadata.tag`"),
    ("success_rate", "share of successful episodes, among those whose client reported it"),
    ("rows", "training rows"),
    ("prompt_tokens", "context tokens of the rows"),
    ("response_tokens", "sampled tokens of the rows, which are trained on"),
    ("response_length_mean", "mean number of sampled tokens per row"),
    ("response_length_max", "maximum number of sampled tokens in a row"),
    ("truncated_share", "share of rows whose last turn was truncated by a limit"),
    ("llm_calls_per_episode", "mean number of answered LLM calls per episode"),
    ("counts/", "counters of the batch's episodes, such as `counts/row_cut`, `counts/timeline_splits/history_edited` or `counts/madness/nonsense`, the answers that the check flagged"),
    ("loss", "minimised loss"),
    ("pg_loss", "policy-gradient part of the loss"),
    ("kl", "estimated KL divergence from the reference weights"),
    ("entropy", "mean entropy of the next-token distribution at the sampled tokens of the computed rows"),
    ("entropy_sampled", "mean of -log-probability of all rows' tokens when they were sampled: an estimate of the entropy that includes rows which were not computed"),
    ("clip_frac_low", "share of computed tokens clipped at the lower bound"),
    ("clip_frac_high", "share of computed tokens clipped at the upper bound"),
    ("ratio_mean", "mean of pi_theta / pi_old"),
    ("ratio_max", "maximum of pi_theta / pi_old"),
    ("grad_norm", "global gradient norm before clipping"),
    ("lr", "learning rate of the step"),
    ("mismatch_kl", "KL divergence of the sampler's log-probabilities from the trainer's"),
    ("importance_truncated_share", "share of computed tokens whose importance weight was cut to `importance_sampling.cap`"),
    ("advantage_mean", "mean of the batch's advantages"),
    ("advantage_std", "standard deviation of the batch's advantages"),
    ("optimizer_steps", "optimizer steps taken in this update"),
    ("skipped_steps", "optimizer steps skipped because loss or gradient was not finite"),
    ("tokens_computed", "tokens computed by the update; shared prefixes count once"),
    ("shared_tokens", "tokens that the update did not compute again, since rows share prefixes"),
    ("skipped_rows", "rows that the update did not compute: their advantage is 0 and nothing else in the loss has a gradient"),
    ("experts/", "load of the experts in the update of a mixture of experts, means over layers: `busiest_share`, the busiest expert's share of the tokens of all experts (1 / experts if loads are equal); `load_variation`, the standard deviation of their tokens over the mean; `unused_share`, the share of experts without a token"),
    ("dropped/", "train episodes dropped, by reason"),
    ("seconds/", "duration of phases: `rolling` until the batch was full, `post` until the last running episode ended, `update` with its parts `update_scoring`, `update_forward`, `update_backward`, `update_optimizer`, and `export`"),
    ("tokens_per_second/", "`sampling`: sampled tokens per second of sampling; `training`: computed tokens per second of the update"),
    ("endpoints/", "with `ajet.rollout.endpoints`: `ready`, the samplers elsewhere that have the weights after the update, and `token_share`, the share of tokens that they sampled before it"),
    ("prefix_cache_share", "share of prompt tokens served from the prefix cache"),
    ("peak_memory_mb", "peak resident memory of the engine, in MiB"),
    ("export_failed", "1 if the step's checkpoint could not be written"),
    ("eval/", "of eval episodes claimed at this step: `episodes`, `reward_mean`, `reward_std`, `success_rate`, and their clients' own metrics"),
    ("client/", "a client's own metric whose name is also an engine's; other names stay unchanged"),
];

/// Returns whether the engine reports a metric with this name, so that a client may not.
pub(super) fn is_ours(name: &str) -> bool {
    NAMES
        .iter()
        .any(|(ours, _)| *ours == name || ours.ends_with('/') && name.starts_with(ours))
}
