//! Advantages from rewards, within the group of a task or over the batch.

use crate::config::schema::{AdvEstimator, Algorithm, SingletonGroup};

/// Maximum relative difference of equal rewards: floating-point noise is no signal.
const EQUAL_REWARDS: f64 = 1e-6;
/// Keeps the division by a group's standard deviation finite.
const GROUP_EPS: f64 = 1e-6;
/// Keeps the division by the batch's standard deviation finite.
const WHITEN_EPS: f64 = 1e-8;

/// One sample: an episode, or a row if rows count separately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of its group; equal for all repeats of a task.
    pub group: usize,
    /// Finite reward.
    pub reward: f64,
    /// Number of its masked-in tokens: its weight in means over the batch's tokens.
    pub tokens: usize,
}

/// Returns one advantage per sample; r is its reward, n its group's size, mean and (unbiased) std are over the group:
///
/// - `grpo` (arXiv 2402.03300): (r − mean) / (std + 1e-6), without the division for Dr.GRPO (2503.20783)
/// - `rloo` (2402.14740): (r − mean)·n / (n − 1)
/// - `reinforce_plus_plus` (2501.03262): r, whitened over all masked-in tokens of the batch
/// - `reinforce_plus_plus_baseline`: r − mean, then whitened over the batch
///
/// The advantage is 0 if all compared rewards are equal. A group of one has 0 or its reward.
pub fn advantages(samples: &[Sample], algorithm: &Algorithm, singleton: SingletonGroup) -> Vec<f64> {
    match algorithm.adv_estimator {
        AdvEstimator::Grpo => {
            let by_std = algorithm.norm_adv_by_std_in_grpo;
            grouped(samples, singleton, |r, group| {
                (r - group.mean) / if by_std { group.std + GROUP_EPS } else { 1.0 }
            })
        }
        AdvEstimator::Rloo => grouped(samples, singleton, |r, group| {
            (r - group.mean) * group.n as f64 / (group.n - 1) as f64
        }),
        AdvEstimator::ReinforcePlusPlus => {
            let rewards: Vec<f64> = samples.iter().map(|s| s.reward).collect();
            if all_equal(&rewards) {
                vec![0.0; samples.len()]
            } else {
                whiten(samples, &rewards)
            }
        }
        AdvEstimator::ReinforcePlusPlusBaseline => {
            let centred = compared(samples, singleton, |r, group| r - group.mean);
            let values: Vec<f64> = centred.iter().map(|c| c.unwrap_or(0.0)).collect();
            let whitened = whiten(samples, &values).into_iter();
            whitened
                .zip(centred)
                .map(|(a, centred)| centred.map_or(0.0, |_| a))
                .collect()
        }
    }
}

/// Returns whether rewards are equal up to floating-point noise. NaN differs from everything, so that it shows.
pub fn all_equal(rewards: &[f64]) -> bool {
    if rewards.iter().any(|reward| reward.is_nan()) {
        return false;
    }
    let max = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = rewards.iter().copied().fold(f64::INFINITY, f64::min);
    rewards.is_empty() || max - min <= EQUAL_REWARDS * max.abs().max(min.abs())
}

/// Returns mean and unbiased standard deviation; the latter is 0 for fewer than two numbers.
pub fn mean_std(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    if numbers.is_empty() {
        return (0.0, 0.0);
    }
    let mean = numbers.iter().sum::<f64>() / n;
    let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
    (
        mean,
        if numbers.len() > 1 {
            (squares / (n - 1.0)).sqrt()
        } else {
            0.0
        },
    )
}

/// What an estimator may know about a group.
struct Group {
    n: usize,
    mean: f64,
    std: f64,
}

/// Returns one advantage per sample; 0 if there is nothing to compare.
fn grouped(samples: &[Sample], singleton: SingletonGroup, advantage: impl Fn(f64, &Group) -> f64) -> Vec<f64> {
    let found = compared(samples, singleton, advantage).into_iter();
    found.map(|advantage| advantage.unwrap_or(0.0)).collect()
}

/// Returns one advantage per sample; `None` in a group without a signal: one with equal rewards, or a single sample
/// unless its reward is used directly.
fn compared(samples: &[Sample], singleton: SingletonGroup, advantage: impl Fn(f64, &Group) -> f64) -> Vec<Option<f64>> {
    let groups = samples.iter().map(|s| s.group + 1).max().unwrap_or(0);
    let mut rewards = vec![Vec::new(); groups];
    for sample in samples {
        rewards[sample.group].push(sample.reward);
    }
    let one = |sample: &Sample| {
        let rewards = &rewards[sample.group];
        if rewards.len() == 1 && singleton == SingletonGroup::Raw {
            return Some(sample.reward);
        }
        let (mean, std) = mean_std(rewards);
        let n = rewards.len();
        (!all_equal(rewards)).then(|| advantage(sample.reward, &Group { n, mean, std }))
    };
    samples.iter().map(one).collect()
}

/// (x − mean) / √(variance + 1e-8), both over all tokens, each token having its sample's value.
fn whiten(samples: &[Sample], values: &[f64]) -> Vec<f64> {
    let weighted = |f: &dyn Fn(f64) -> f64| {
        samples
            .iter()
            .zip(values)
            .map(|(s, x)| s.tokens as f64 * f(*x))
            .sum::<f64>()
    };
    let tokens = weighted(&|_| 1.0);
    if tokens < 2.0 {
        return vec![0.0; samples.len()];
    }
    let mean = weighted(&|x| x) / tokens;
    let variance = weighted(&|x| (x - mean).powi(2)) / (tokens - 1.0);
    values
        .iter()
        .map(|x| (x - mean) / (variance + WHITEN_EPS).sqrt())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use AdvEstimator::{Grpo, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Rloo};

    fn run(
        estimator: AdvEstimator,
        by_std: bool,
        singleton: SingletonGroup,
        samples: &[(usize, f64, usize)],
    ) -> Vec<f64> {
        let samples: Vec<Sample> = samples
            .iter()
            .map(|&(group, reward, tokens)| Sample { group, reward, tokens })
            .collect();
        let algorithm = Algorithm {
            adv_estimator: estimator,
            norm_adv_by_std_in_grpo: by_std,
        };
        advantages(&samples, &algorithm, singleton)
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 1e-5, "{found:?}, not {expected:?}");
        }
    }

    #[test]
    fn by_hand() {
        // group 0: mean 1, unbiased variance (1 + 0 + 1) / 2 = 1; group 1: mean 2, variance 2
        let two_groups = [(0, 0.0, 1), (1, 1.0, 1), (0, 1.0, 1), (0, 2.0, 1), (1, 3.0, 1)];
        let half = 1.0 / 2f64.sqrt();
        let zero = SingletonGroup::Zero;
        assert_close(&run(Grpo, true, zero, &two_groups), &[-1.0, -half, 0.0, 1.0, half]);
        assert_close(&run(Grpo, false, zero, &two_groups), &[-1.0, -1.0, 0.0, 1.0, 1.0]);
        // times 3/2 in the group of three, 2 in the group of two
        assert_close(&run(Rloo, true, zero, &two_groups), &[-1.5, -2.0, 0.0, 1.5, 2.0]);
        // tokens 3 and 1: mean (0·3 + 4) / 4 = 1, variance (3·1 + 9) / 3 = 4
        assert_close(
            &run(ReinforcePlusPlus, true, zero, &[(0, 0.0, 3), (0, 4.0, 1)]),
            &[-0.5, 1.5],
        );
        // centred −1, 1, 0: over one token each mean 0, variance 1; the equal group stays 0
        let samples = [(0, 1.0, 1), (0, 3.0, 1), (1, 7.0, 1)];
        assert_close(&run(ReinforcePlusPlusBaseline, true, zero, &samples), &[-1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_reward_at_its_groups_mean_is_whitened_like_the_others() {
        // centred −1, 0, 1 over 1, 1 and 2 tokens: mean 1/4, variance (25 + 1 + 2·9)/16 / 3 = 11/12
        let samples = [(0, 1.0, 1), (0, 2.0, 1), (0, 3.0, 2)];
        let std = (11.0f64 / 12.0).sqrt();
        let expected = [-1.25 / std, -0.25 / std, 0.75 / std];
        assert_close(
            &run(ReinforcePlusPlusBaseline, true, SingletonGroup::Zero, &samples),
            &expected,
        );
    }

    #[test]
    fn rloo_is_the_mean_of_the_others_as_baseline() {
        let rewards = [0.25, 1.0, -2.0, 0.5];
        let samples: Vec<_> = rewards.iter().map(|r| (0, *r, 1)).collect();
        let found = run(Rloo, true, SingletonGroup::Zero, &samples);
        let total: f64 = rewards.iter().sum();
        let expected: Vec<f64> = rewards.iter().map(|r| r - (total - r) / 3.0).collect();
        assert_close(&found, &expected);
    }

    #[test]
    fn equal_rewards_and_float_noise_are_no_signal() {
        for estimator in [Grpo, Rloo, ReinforcePlusPlus, ReinforcePlusPlusBaseline] {
            for rewards in [[0.3, 0.1 + 0.2], [0.0, 0.0], [-5.0, -5.0], [1e9, 1e9 + 1.0]] {
                let samples = [(0, rewards[0], 5), (0, rewards[1], 2)];
                assert_eq!(
                    run(estimator, true, SingletonGroup::Zero, &samples),
                    [0.0, 0.0],
                    "{estimator:?} {rewards:?}"
                );
            }
        }
    }

    #[test]
    fn a_singleton_has_nothing_or_its_reward() {
        for estimator in [Grpo, Rloo] {
            assert_eq!(run(estimator, true, SingletonGroup::Zero, &[(0, 3.0, 1)]), [0.0]);
            assert_eq!(run(estimator, true, SingletonGroup::Raw, &[(0, 3.0, 1)]), [3.0]);
        }
        assert_eq!(
            run(ReinforcePlusPlusBaseline, true, SingletonGroup::Zero, &[(0, 3.0, 1)]),
            [0.0]
        );
    }

    #[test]
    fn nothing_is_fine() {
        for estimator in [Grpo, Rloo, ReinforcePlusPlus, ReinforcePlusPlusBaseline] {
            assert!(run(estimator, true, SingletonGroup::Zero, &[]).is_empty());
        }
    }
}
