//! Loss of one row, with its derivatives by the log-probabilities and entropies of its masked-in tokens, and the
//! reported sums. Without tensors: the trainer back-propagates the derivatives through the model.

use serde::{Deserialize, Serialize};

use super::importance::{importance_weights, mismatch_kl};
use super::kl::Kl;
use super::policy::{Clipped, PolicyLoss};
use crate::config::schema::{ImportanceMode, ImportanceSampling};

/// Loss of a token with weight w in the mini-batch:
/// `scale · w · (importance · policy + kl_coefficient · KL − entropy_coefficient · entropy)`.
#[derive(Clone, Debug)]
pub struct Objective {
    /// Policy loss.
    pub policy: PolicyLoss,
    /// Correction of the mismatch between sampler and trainer.
    pub importance: ImportanceSampling,
    /// KL divergence from the reference and its coefficient, if it is part of the loss.
    pub kl: Option<(Kl, f64)>,
    /// Coefficient of the entropy bonus.
    pub entropy_coefficient: f64,
    /// Factor of the whole loss.
    pub scale: f64,
}

/// Data of a row's masked-in tokens, one entry per token.
#[derive(Clone, Copy, Debug)]
pub struct RowTokens<'a> {
    /// The row's advantage.
    pub advantage: f64,
    /// Each token's weight in the loss.
    pub weight: f64,
    /// logπ_θ.
    pub new: &'a [f32],
    /// logπ_old.
    pub old: &'a [f32],
    /// Log-probabilities with which the tokens were sampled.
    pub sampler: &'a [f32],
    /// logπ_ref, empty if no KL divergence is needed.
    pub reference: &'a [f32],
    /// Entropy of π_θ at each token.
    pub entropy: &'a [f32],
}

/// Derivatives of the loss, one entry per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowSlopes {
    /// By logπ_θ.
    pub by_log_prob: Vec<f32>,
    /// By the entropy.
    pub by_entropy: Vec<f32>,
}

/// Sums over tokens, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Masked-in tokens.
    pub tokens: f64,
    /// The loss.
    pub loss: f64,
    /// Its policy part.
    pub policy: f64,
    /// KL divergence from the reference.
    pub kl: f64,
    /// Entropy.
    pub entropy: f64,
    /// Tokens clipped at 1 − ε_low.
    pub clipped_low: f64,
    /// Tokens clipped at 1 + ε_high.
    pub clipped_high: f64,
    /// Sum of ratios.
    pub ratio: f64,
    /// Largest ratio.
    pub ratio_max: f64,
    /// Mismatch of sampler and trainer.
    pub mismatch_kl: f64,
    /// Tokens whose importance weight was cut to its maximum.
    pub truncated: f64,
}

impl Objective {
    /// Returns the derivatives of a row's loss and adds its sums to `totals`. Returns `None` and adds nothing if the
    /// loss is not finite.
    pub fn row(&self, row: &RowTokens, totals: &mut Totals) -> Option<RowSlopes> {
        let terms = self.policy.row(row.new, row.old, row.advantage);
        let importance = importance_weights(row.old, row.sampler, &self.importance);
        let corrected = matches!(self.importance.mode, ImportanceMode::Token | ImportanceMode::Sequence);
        let weight = self.scale * row.weight;
        let mut slopes = RowSlopes::default();
        let mut sums = Totals {
            tokens: row.new.len() as f64,
            ..Totals::default()
        };
        for (t, term) in terms.iter().enumerate() {
            let (mut value, mut slope) = (importance[t] * term.value, importance[t] * term.slope);
            sums.policy += weight * value;
            if let Some((kl, coefficient)) = self.kl {
                let (divergence, by_log_prob) = kl.at(row.new[t] as f64 - row.reference[t] as f64);
                value += coefficient * divergence;
                slope += coefficient * by_log_prob;
                sums.kl += divergence;
            }
            value -= self.entropy_coefficient * row.entropy[t] as f64;
            sums.loss += weight * value;
            sums.entropy += row.entropy[t] as f64;
            sums.clipped_low += (term.clipped == Clipped::Low) as u8 as f64;
            sums.clipped_high += (term.clipped == Clipped::High) as u8 as f64;
            sums.ratio += term.ratio;
            sums.ratio_max = sums.ratio_max.max(term.ratio);
            sums.mismatch_kl += mismatch_kl(row.old[t], row.sampler[t]);
            sums.truncated += (corrected && importance[t] >= self.importance.cap) as u8 as f64;
            slopes.by_log_prob.push((weight * slope) as f32);
            slopes.by_entropy.push((-weight * self.entropy_coefficient) as f32);
        }
        let finite = row
            .new
            .iter()
            .chain(row.old)
            .chain(row.entropy)
            .chain(row.reference)
            .all(|x| x.is_finite());
        if !finite || !sums.loss.is_finite() {
            return None;
        }
        totals.add(&sums);
        Some(slopes)
    }
}

impl Totals {
    /// Adds other sums.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.policy += other.policy;
        self.kl += other.kl;
        self.entropy += other.entropy;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.ratio += other.ratio;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
        self.mismatch_kl += other.mismatch_kl;
        self.truncated += other.truncated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema::TrainerCommon;

    fn objective() -> Objective {
        Objective {
            policy: PolicyLoss::new(&TrainerCommon::default()),
            importance: ImportanceSampling {
                mode: ImportanceMode::Token,
                cap: 2.0,
            },
            kl: Kl::parse("low_var_kl").map(|kl| (kl, 0.5)),
            entropy_coefficient: 0.1,
            scale: 2.0,
        }
    }

    #[test]
    fn one_token_by_hand() {
        let row = RowTokens {
            advantage: 3.0,
            weight: 0.25,
            new: &[-1.0],
            old: &[-1.0],
            sampler: &[-1.0 - 1.5f32.ln()],
            reference: &[-2.0],
            entropy: &[0.7],
        };
        let mut totals = Totals::default();
        let slopes = objective().row(&row, &mut totals).unwrap();
        // importance 1.5, policy −3, k3 at d = 1 is 1/e
        let k3 = (-1f64).exp();
        let loss = 0.5 * (-4.5 + 0.5 * k3 - 0.07);
        assert!((totals.loss - loss).abs() < 1e-6, "{totals:?}");
        assert!((totals.policy + 2.25).abs() < 1e-6);
        assert!((slopes.by_log_prob[0] as f64 - 0.5 * (-4.5 + 0.5 * (1.0 - k3))).abs() < 1e-6);
        assert!((slopes.by_entropy[0] + 0.05).abs() < 1e-7);
        assert_eq!(totals.ratio_max, 1.0);
        assert_eq!(totals.truncated, 0.0);
    }

    #[test]
    fn cut_importance_weights_are_counted() {
        let (new, sampler) = ([-1.0; 4], [1.5f32, 1.9, 2.1, 50.0].map(|ratio| -1.0 - ratio.ln()));
        let row = RowTokens {
            advantage: 3.0,
            weight: 0.25,
            new: &new,
            old: &new,
            sampler: &sampler,
            reference: &new,
            entropy: &new,
        };
        let mut totals = Totals::default();
        objective().row(&row, &mut totals).unwrap();
        assert_eq!(totals.truncated, 2.0);
    }

    #[test]
    fn a_row_that_is_not_finite_adds_nothing() {
        let good = [-1.0];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let row = RowTokens {
                advantage: 1.0,
                weight: 1.0,
                new: &[bad],
                old: &[bad],
                sampler: &good,
                reference: &good,
                entropy: &good,
            };
            let mut totals = Totals::default();
            assert_eq!(objective().row(&row, &mut totals), None);
            assert_eq!(
                objective().row(
                    &RowTokens {
                        new: &good,
                        entropy: &[bad],
                        ..row
                    },
                    &mut totals
                ),
                None
            );
            assert_eq!(totals, Totals::default());
        }
    }

    #[test]
    fn an_empty_row_changes_nothing() {
        let row = RowTokens {
            advantage: 1.0,
            weight: 0.0,
            new: &[],
            old: &[],
            sampler: &[],
            reference: &[],
            entropy: &[],
        };
        let mut totals = Totals::default();
        assert_eq!(objective().row(&row, &mut totals), Some(RowSlopes::default()));
        assert_eq!(totals, Totals::default());
    }
}
