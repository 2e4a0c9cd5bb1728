//! Report of an update.

use indexmap::IndexMap;

use super::loss::objective::Totals;

/// Reason why an episode was not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Untrained {
    /// No row has a sampled token.
    NoResponse,
    /// All rows were truncated by length and `mask_truncated` is set.
    Truncated,
    /// Loss or gradient was not finite in every optimizer step with it.
    NonFinite,
}

/// The outcome of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Metrics by their names in `metrics.jsonl`.
    pub metrics: IndexMap<String, f64>,
    /// Why an episode was not trained on, by its id.
    pub dropped: IndexMap<String, Untrained>,
    /// Advantage of each row by its episode's id; `None` for a row that was not trained on.
    pub advantages: IndexMap<String, Vec<Option<f64>>>,
    /// Messages about optimizer steps skipped because of non-finite values, with the rows.
    pub skipped_steps: Vec<String>,
}

/// Seconds by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// logπ_old and logπ_ref.
    pub scoring: f64,
    /// Forward passes for training.
    pub forward: f64,
    /// Backward passes, including recomputation.
    pub backward: f64,
    /// Clipping and optimizer.
    pub optimizer: f64,
}

impl Seconds {
    /// Returns the sum of all phases.
    pub fn total(&self) -> f64 {
        self.scoring + self.forward + self.backward + self.optimizer
    }

    /// Returns the metrics by their names in `metrics.jsonl`.
    pub fn metrics(&self) -> [(&'static str, f64); 5] {
        [
            ("seconds/update", self.total()),
            ("seconds/update_scoring", self.scoring),
            ("seconds/update_forward", self.forward),
            ("seconds/update_backward", self.backward),
            ("seconds/update_optimizer", self.optimizer),
        ]
    }
}

/// Returns the sums of the loss as means by their names in `metrics.jsonl`; `loss` and `pg_loss` are means over
/// optimizer steps, the others over the computed tokens, without which they are missing.
pub fn loss_metrics(totals: &Totals, steps: usize, with_kl: bool) -> IndexMap<String, f64> {
    let (tokens, steps) = (totals.tokens, steps.max(1) as f64);
    let mut metrics = IndexMap::from([
        ("loss".to_owned(), totals.loss / steps),
        ("pg_loss".to_owned(), totals.policy / steps),
    ]);
    if tokens == 0.0 {
        return metrics;
    }
    let by_token = [
        ("entropy", totals.entropy / tokens),
        ("clip_frac_low", totals.clipped_low / tokens),
        ("clip_frac_high", totals.clipped_high / tokens),
        ("ratio_mean", totals.ratio / tokens),
        ("ratio_max", totals.ratio_max),
        ("mismatch_kl", totals.mismatch_kl / tokens),
        ("importance_truncated_share", totals.truncated / tokens),
    ];
    metrics.extend(by_token.map(|(name, value)| (name.to_owned(), value)));
    if with_kl {
        metrics.insert("kl".into(), totals.kl / tokens);
    }
    metrics
}
