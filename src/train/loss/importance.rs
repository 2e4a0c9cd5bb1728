//! Mismatch of sampler and trainer: measurement, and correction by truncated importance sampling.

use super::kl::MAX_LOG_RATIO;
use crate::config::schema::{ImportanceMode, ImportanceSampling};

/// Returns the constant weight of each of a row's masked-in tokens. With d = logπ_old − logπ_sampler:
///
/// - `token`: min(e^d, cap)
/// - `sequence`: min(exp(Σ d over the row), cap) for all of them
/// - `off`: 1
///
/// The exponent is clamped to ±20.
pub fn importance_weights(old: &[f32], sampler: &[f32], config: &ImportanceSampling) -> Vec<f64> {
    let difference = |(old, sampler): (&f32, &f32)| *old as f64 - *sampler as f64;
    let weight = |d: f64| {
        let ratio = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
        // Not `min`, which would turn NaN into the cap.
        if ratio > config.cap { config.cap } else { ratio }
    };
    let differences = old.iter().zip(sampler).map(difference);
    match config.mode {
        // `auto` is decided by then: see `Ajet::importance_sampling`.
        ImportanceMode::Off | ImportanceMode::Auto => vec![1.0; old.len()],
        ImportanceMode::Token => differences.map(weight).collect(),
        ImportanceMode::Sequence => vec![weight(differences.sum()); old.len()],
    }
}

/// Returns e^d − d − 1 of one token: the divergence of the sampler's distribution from the trainer's. Never negative.
pub fn mismatch_kl(old: f32, sampler: f32) -> f64 {
    let d = (old as f64 - sampler as f64).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    d.exp() - d - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(mode: ImportanceMode, old: &[f32], sampler: &[f32]) -> Vec<f64> {
        importance_weights(old, sampler, &ImportanceSampling { mode, cap: 2.0 })
    }

    #[test]
    fn by_hand() {
        let (ln2, ln3) = (2f32.ln(), 3f32.ln());
        let old = [-1.0, -1.0, -1.0];
        let sampler = [-1.0, -1.0 + ln2, -1.0 - ln3];
        for (mode, expected) in [
            (ImportanceMode::Off, [1.0, 1.0, 1.0]),
            (ImportanceMode::Token, [1.0, 0.5, 2.0]),
            (ImportanceMode::Sequence, [1.5, 1.5, 1.5]),
        ] {
            for (found, expected) in weights(mode, &old, &sampler).iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{mode:?}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn extremes() {
        for mode in [ImportanceMode::Token, ImportanceMode::Sequence] {
            assert_eq!(weights(mode, &[0.0], &[-1e30]), [2.0]);
            assert!(weights(mode, &[-1e30], &[0.0])[0] > 0.0);
            assert!(weights(mode, &[], &[]).is_empty());
        }
    }

    #[test]
    fn mismatch_by_hand() {
        assert_eq!(mismatch_kl(-1.0, -1.0), 0.0);
        assert!((mismatch_kl(-1.0, -2.0) - (std::f64::consts::E - 2.0)).abs() < 1e-9);
        assert!(mismatch_kl(0.0, -1e30).is_finite() && mismatch_kl(-1e30, 0.0).is_finite());
    }
}
