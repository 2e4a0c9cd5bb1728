//! Per-token policy loss, as value and derivative by the token's log-probability.

use super::kl::MAX_LOG_RATIO;
use crate::config::schema::{self, TrainerCommon};

/// Dual clip: for a negative advantage, the loss is at most this times |A| (arXiv 1912.09729).
const DUAL_CLIP: f64 = 3.0;

/// A policy loss with its clip range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyLoss {
    kind: schema::PolicyLoss,
    low: f64,
    high: f64,
}

/// Whether and at which bound a ratio was clipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clipped {
    /// Not clipped.
    No,
    /// At 1 − ε_low, with a negative advantage.
    Low,
    /// At 1 + ε_high, with a positive advantage.
    High,
}

/// Loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Value.
    pub value: f64,
    /// Derivative by the token's logπ_θ.
    pub slope: f64,
    /// ρ: the token's ratio, or for `gspo` its row's.
    pub ratio: f64,
    /// Whether the ratio was clipped.
    pub clipped: Clipped,
}

impl PolicyLoss {
    /// Returns the configured policy loss; ε defaults to 0.2 / 0.2, for `gspo` to 3e-4 / 4e-4.
    pub fn new(config: &TrainerCommon) -> Self {
        let (low, high) = match config.policy_loss {
            schema::PolicyLoss::Gspo => (3e-4, 4e-4),
            _ => (0.2, 0.2),
        };
        Self {
            kind: config.policy_loss,
            low: config.clip_ratio_low.unwrap_or(low),
            high: config.clip_ratio_high.unwrap_or(high),
        }
    }

    /// Returns the terms of one row's masked-in tokens. `new` is logπ_θ and `old` is logπ_old of each, A the advantage;
    /// Δ = new − old is clamped to ±20, ρ = e^Δ.
    ///
    /// - `ppo_clip` (arXiv 1707.06347): −min(ρA, clip(ρ, 1−ε_low, 1+ε_high)·A), for A < 0 at most 3·|A|
    /// - `gspo` (2507.18071): the same without the last bound, and one ρ for all of the row: exp(mean Δ)
    /// - `cispo` (2506.13585): −stopgrad(min(ρ, 1+ε_high))·A·logπ_θ
    pub fn row(&self, new: &[f32], old: &[f32], advantage: f64) -> Vec<Term> {
        let delta = |(new, old): (&f32, &f32)| *new as f64 - *old as f64;
        match self.kind {
            schema::PolicyLoss::PpoClip => new
                .iter()
                .zip(old)
                .map(|pair| self.clipped_surrogate(delta(pair), advantage, true))
                .collect(),
            schema::PolicyLoss::Gspo => {
                let mean = new.iter().zip(old).map(delta).sum::<f64>() / new.len().max(1) as f64;
                vec![self.clipped_surrogate(mean, advantage, false); new.len()]
            }
            schema::PolicyLoss::Cispo => new
                .iter()
                .zip(old)
                .map(|pair| self.clipped_weight(delta(pair), *pair.0 as f64, advantage))
                .collect(),
        }
    }

    /// A row's mean Δ changes by 1/n per token and occurs in n tokens' terms, so its derivative equals that of a single
    /// token.
    fn clipped_surrogate(&self, delta: f64, advantage: f64, dual: bool) -> Term {
        let (ratio, inside) = ratio(delta);
        let free = -ratio * advantage;
        let bounded = -ratio.clamp(1.0 - self.low, 1.0 + self.high) * advantage;
        let clipped = match bounded > free {
            false => Clipped::No,
            true if advantage < 0.0 => Clipped::Low,
            true => Clipped::High,
        };
        let value = free.max(bounded);
        let limit = -DUAL_CLIP * advantage;
        if dual && advantage < 0.0 && value > limit {
            return Term {
                value: limit,
                slope: 0.0,
                ratio,
                clipped,
            };
        }
        let slope = if clipped == Clipped::No && inside { free } else { 0.0 };
        Term {
            value,
            slope,
            ratio,
            clipped,
        }
    }

    fn clipped_weight(&self, delta: f64, log_prob: f64, advantage: f64) -> Term {
        let (ratio, _) = ratio(delta);
        let weight = ratio.min(1.0 + self.high);
        let clipped = if ratio > 1.0 + self.high {
            Clipped::High
        } else {
            Clipped::No
        };
        Term {
            value: -weight * advantage * log_prob,
            slope: -weight * advantage,
            ratio,
            clipped,
        }
    }
}

/// Returns e^Δ with Δ clamped to ±20, and whether it was within the bounds.
fn ratio(delta: f64) -> (f64, bool) {
    (
        delta.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(),
        delta.abs() <= MAX_LOG_RATIO,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::PolicyLoss::{Cispo, Gspo, PpoClip};

    fn loss(kind: schema::PolicyLoss) -> PolicyLoss {
        PolicyLoss {
            kind,
            low: 0.2,
            high: 0.3,
        }
    }

    #[test]
    fn ppo_clip_by_hand() {
        // (ratio, advantage) → (value, slope, clipped)
        for (ratio, advantage, value, slope, clipped) in [
            (1.0, 2.0, -2.0, -2.0, Clipped::No),
            (1.0, -2.0, 2.0, 2.0, Clipped::No),
            (1.0, 0.0, 0.0, 0.0, Clipped::No),
            (1.25, 2.0, -2.5, -2.5, Clipped::No),
            (1.5, 2.0, -2.6, 0.0, Clipped::High),
            (0.5, 2.0, -1.0, -1.0, Clipped::No),
            (0.5, -2.0, 1.6, 0.0, Clipped::Low),
            (1.5, -2.0, 3.0, 3.0, Clipped::No),
            // dual clip: at most 3·|A|
            (4.0, -2.0, 6.0, 0.0, Clipped::No),
        ] {
            let terms = loss(PpoClip).row(&[f64::ln(ratio) as f32], &[0.0], advantage);
            let term = terms[0];
            assert!((term.value - value).abs() < 1e-6, "{ratio} {advantage}: {term:?}");
            assert!((term.slope - slope).abs() < 1e-6, "{ratio} {advantage}: {term:?}");
            assert_eq!(term.clipped, clipped, "{ratio} {advantage}");
        }
    }

    #[test]
    fn a_huge_difference_stays_finite() {
        for kind in [PpoClip, Gspo, Cispo] {
            for new in [-1e30f32, -200.0, 200.0, 1e30] {
                for advantage in [-1.0, 1.0] {
                    let term = loss(kind).row(&[new], &[0.0], advantage)[0];
                    assert!(
                        term.value.is_finite() && term.slope.is_finite() && term.ratio.is_finite(),
                        "{kind:?} {new}"
                    );
                }
            }
        }
        assert_eq!(loss(PpoClip).row(&[-90.0], &[0.0], 1.0)[0].slope, 0.0);
    }

    #[test]
    fn gspo_has_one_ratio_a_row() {
        // mean Δ = (0.3 − 0.1) / 2 = 0.1
        let terms = loss(Gspo).row(&[-1.0, -2.0], &[-1.3, -1.9], 2.0);
        let expected = 0.1f64.exp();
        for term in terms {
            assert!((term.ratio - expected).abs() < 1e-6);
            assert!((term.value + 2.0 * expected).abs() < 1e-6);
            assert!((term.slope + 2.0 * expected).abs() < 1e-6);
        }
        // no dual clip
        assert!((loss(Gspo).row(&[f32::ln(4.0)], &[0.0], -2.0)[0].value - 8.0).abs() < 1e-5);
    }

    #[test]
    fn cispo_keeps_the_slope_of_clipped_tokens() {
        let term = loss(Cispo).row(&[f32::ln(2.0)], &[0.0], 2.0)[0];
        assert!((term.slope + 2.6).abs() < 1e-6);
        assert!((term.value + 2.6 * f64::ln(2.0)).abs() < 1e-6);
        assert_eq!(term.clipped, Clipped::High);
        assert!((loss(Cispo).row(&[f32::ln(0.5)], &[0.0], 2.0)[0].slope + 1.0).abs() < 1e-6);
    }

    #[test]
    fn slopes_are_derivatives() {
        let h = 1e-3f32;
        for kind in [PpoClip, Gspo] {
            for advantage in [-1.5, 0.7] {
                let (new, old) = ([-0.9f32, -2.0, -0.05], [-1.0f32, -2.05, -0.1]);
                let total = |new: &[f32]| {
                    loss(kind)
                        .row(new, &old, advantage)
                        .iter()
                        .map(|t| t.value)
                        .sum::<f64>()
                };
                for i in 0..new.len() {
                    let moved = |by: f32| {
                        let mut moved = new;
                        moved[i] += by;
                        total(&moved)
                    };
                    let numeric = (moved(h) - moved(-h)) / (2.0 * h as f64);
                    let slope = loss(kind).row(&new, &old, advantage)[i].slope;
                    assert!(
                        (slope - numeric).abs() < 1e-3,
                        "{kind:?} {advantage} {i}: {slope}, not {numeric}"
                    );
                }
            }
        }
    }

    #[test]
    fn defaults_depend_on_the_loss() {
        let range = |policy_loss| {
            let config = TrainerCommon {
                policy_loss,
                ..TrainerCommon::default()
            };
            let loss = PolicyLoss::new(&config);
            (loss.low, loss.high)
        };
        assert_eq!(range(PpoClip), (0.2, 0.2));
        assert_eq!(range(Cispo), (0.2, 0.2));
        assert_eq!(range(Gspo), (3e-4, 4e-4));
    }

    #[test]
    fn a_row_without_tokens_has_no_terms() {
        for kind in [PpoClip, Gspo, Cispo] {
            assert!(loss(kind).row(&[], &[], 1.0).is_empty());
        }
    }
}
