//! The names of metrics.
//!
//! A step's metrics are a flat map from name to number, the same in `metrics.jsonl`, in
//! [`crate::protocol::engine::EngineEvent::Metrics`] and wherever they are shown.

use indexmap::IndexMap;

/// Name → value.
pub type Metrics = IndexMap<String, f64>;

/// Every metric with its meaning. A name that ends with `/` is a family, such as `dropped/idle`.
#[rustfmt::skip]
pub const NAMES: &[(&str, &str)] = &[
    ("global_step", "the step at which the batch was sampled, from 1"),
    ("episodes", "train episodes that the update trained on"),
    ("tasks", "groups among them"),
    ("dummy_tasks", "groups of the batch whose rewards do not differ, trained on or left out"),
    ("reward_mean", "over the train episodes, as is all of reward_*"),
    ("reward_std", "unbiased standard deviation; 0 of a single episode"),
    ("reward_min", "smallest reward"),
    ("reward_max", "largest reward"),
    ("reward_mean/", "mean over the episodes whose client sent this `metadata.tag`"),
    ("success_rate", "share of successes among the episodes whose client said"),
    ("rows", "training rows"),
    ("prompt_tokens", "tokens of the rows that are context"),
    ("response_tokens", "tokens of the rows that were sampled, and train"),
    ("response_length_mean", "sampled tokens a row"),
    ("response_length_max", "most sampled tokens in a row"),
    ("truncated_share", "share of rows whose last turn was cut by a limit"),
    ("llm_calls_per_episode", "answered LLM calls"),
    ("counts/", "what happened in the batch's episodes, such as `counts/row_cut`, `counts/timeline_splits/history_edited` or `counts/madness/nonsense`, answers that the check flagged"),
    ("loss", "what was minimised"),
    ("pg_loss", "its policy part"),
    ("kl", "estimated divergence from the reference weights"),
    ("entropy", "mean entropy of the next-token distribution at sampled tokens"),
    ("clip_frac_low", "share of tokens clipped at the low end"),
    ("clip_frac_high", "share of tokens clipped at the high end"),
    ("ratio_mean", "mean of pi_theta / pi_old"),
    ("ratio_max", "largest of them"),
    ("grad_norm", "global norm before clipping"),
    ("lr", "learning rate of the step"),
    ("mismatch_kl", "divergence of the sampler's log-probabilities from the trainer's"),
    ("advantage_mean", "over the batch's advantages"),
    ("advantage_std", "over the batch's advantages"),
    ("optimizer_steps", "steps taken in this update"),
    ("skipped_steps", "steps left out because loss or gradient was not finite"),
    ("tokens_computed", "tokens that the update computed; shared prefixes count once"),
    ("dropped/", "episodes that were begun and did not train, by reason"),
    ("seconds/", "`rolling` until the batch was full, `post` until the last running episode ended, `update` with its parts `update_scoring`, `update_forward`, `update_backward`, `update_optimizer`, and `export`"),
    ("tokens_per_second/", "`sampling`: tokens sampled a second of sampling; `training`: tokens computed a second of the update"),
    ("prefix_cache_share", "share of prompt tokens that the prefix cache gave"),
    ("peak_memory_mb", "peak resident memory of the engine, in MiB"),
    ("export_failed", "1 where the step's checkpoint could not be written"),
    ("eval/", "of eval episodes claimed at this step: `episodes`, `reward_mean`, `reward_std`, `success_rate`, and their clients' own metrics"),
    ("client/", "a client's own metric whose name is one of these; others keep their names"),
];

/// Whether the engine reports a metric of this name, so that a client may not.
pub(super) fn is_ours(name: &str) -> bool {
    NAMES
        .iter()
        .any(|(ours, _)| *ours == name || ours.ends_with('/') && name.starts_with(ours))
}
