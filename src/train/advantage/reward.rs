//! Rewards after the trainer's penalties.

use super::estimate::Sample;
use super::overlong::overlong_penalty;
use crate::config::schema::Overlong;
use crate::train::loss::kl::Kl;
use crate::train::prepare::{Prepared, TrainRow};

/// Penalties of rewards.
#[derive(Clone, Debug)]
pub struct Shaping {
    /// Maximum number of tokens of an answer.
    pub response_limit: usize,
    /// Soft penalty on overlong answers.
    pub overlong: Overlong,
    /// KL divergence from the reference and its coefficient, if it is part of the reward instead of the loss.
    pub kl: Option<(Kl, f64)>,
}

impl Shaping {
    /// Returns one sample per episode, with the KL divergence of all its rows and the length of its longest; or one per
    /// row. In the order of the batch.
    pub fn samples(&self, batch: &Prepared, by_episode: bool) -> Vec<Sample> {
        if !by_episode {
            let sample = |row: &TrainRow| {
                let episode = &batch.episodes[row.episode];
                Sample {
                    group: episode.group,
                    reward: episode.reward + self.for_length(row.response_length()) - self.divergence(row),
                    tokens: row.targets.len(),
                }
            };
            return batch.rows.iter().map(sample).collect();
        }
        let episodes = batch.episodes.iter().map(|episode| Sample {
            group: episode.group,
            reward: episode.reward + self.for_length(episode.response_length),
            tokens: 0,
        });
        let mut samples: Vec<Sample> = episodes.collect();
        for row in &batch.rows {
            samples[row.episode].reward -= self.divergence(row);
            samples[row.episode].tokens += row.targets.len();
        }
        samples
    }

    fn for_length(&self, response_length: usize) -> f64 {
        overlong_penalty(response_length, self.response_limit, &self.overlong)
    }

    /// Returns coefficient · Σ KL(logπ_old − logπ_ref) over the row's masked-in tokens.
    fn divergence(&self, row: &TrainRow) -> f64 {
        let Some((kl, coefficient)) = self.kl else {
            return 0.0;
        };
        let differences = row
            .old
            .iter()
            .zip(&row.reference)
            .map(|(old, reference)| old - reference);
        coefficient * differences.map(|d| kl.at(f64::from(d)).0).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::prepare::Member;

    fn row(episode: usize, response: usize, difference: f32) -> TrainRow {
        TrainRow {
            index: 0,
            episode,
            name: String::new(),
            tokens: vec![0; 2 + response],
            targets: (2..2 + response).collect(),
            constrained: vec![],
            sampler: vec![0.0; response],
            old: vec![difference; response],
            reference: vec![0.0; response],
            advantage: 0.0,
            weight: 0.0,
        }
    }

    /// An episode of rows with 4 and 2 answered tokens, and one with 1.
    fn batch() -> Prepared {
        let member = |group, reward, response_length| Member {
            episode_uuid: String::new(),
            rows: 1,
            group,
            reward,
            response_length,
        };
        Prepared {
            episodes: vec![member(0, 1.0, 4), member(1, 2.0, 1)],
            rows: vec![row(0, 4, 0.5), row(0, 2, 1.0), row(1, 1, -1.0)],
            ..Prepared::default()
        }
    }

    fn samples(shaping: &Shaping, by_episode: bool) -> Vec<(usize, f64, usize)> {
        let found = shaping.samples(&batch(), by_episode);
        found.iter().map(|s| (s.group, s.reward, s.tokens)).collect()
    }

    fn shaping(buffer_len: usize, kl: Option<&str>) -> Shaping {
        Shaping {
            response_limit: 4,
            overlong: Overlong {
                buffer_len,
                penalty_factor: 1.0,
            },
            kl: kl.map(|name| (Kl::parse(name).unwrap(), 0.1)),
        }
    }

    #[test]
    fn without_penalties_rewards_are_as_sent() {
        assert_eq!(samples(&shaping(0, None), true), [(0, 1.0, 6), (1, 2.0, 1)]);
        assert_eq!(
            samples(&shaping(0, None), false),
            [(0, 1.0, 4), (0, 1.0, 2), (1, 2.0, 1)]
        );
    }

    #[test]
    fn length_and_divergence_count_of_the_whole_episode_or_of_the_row() {
        // a buffer of 4 before the limit of 4: −length / 4; k1 sums to 4 · 0.5, 2 · 1 and −1
        let by_hand = |a: &[(usize, f64, usize)], b: &[(usize, f64, usize)]| {
            assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(b) {
                assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-9 && a.2 == b.2, "{a:?}, not {b:?}");
            }
        };
        let found = samples(&shaping(4, Some("kl")), true);
        by_hand(&found, &[(0, 1.0 - 1.0 - 0.4, 6), (1, 2.0 - 0.25 + 0.1, 1)]);
        let found = samples(&shaping(4, Some("kl")), false);
        by_hand(
            &found,
            &[
                (0, 1.0 - 1.0 - 0.2, 4),
                (0, 1.0 - 0.5 - 0.2, 2),
                (1, 2.0 - 0.25 + 0.1, 1),
            ],
        );
    }
}
