//! Preparation of episodes for training: canonical order, truncation, filters, and counters.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::episode::TrainEpisode;
use super::report::Untrained;
use crate::timeline::Constrained;

/// Lengths and filters of the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum number of tokens of a row: `max_prompt_length + max_response_length`, or `max_model_len` if that is
    /// less. Longer rows are truncated at the end.
    pub row_tokens: usize,
    /// Whether rows truncated by length are excluded from the loss.
    pub mask_truncated: bool,
}

/// A row to train on; per-target vectors have one entry per masked-in token.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainRow {
    /// Index of its episode in the canonical order.
    pub episode: usize,
    /// Index among the rows of its episode.
    pub index: usize,
    /// `task/episode`, for messages.
    pub name: String,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Indices of its masked-in tokens.
    pub targets: Vec<usize>,
    /// Tokens that a grammar constrained.
    pub constrained: Vec<Constrained>,
    /// Log-probabilities with which they were sampled.
    pub sampler: Vec<f32>,
    /// logπ_old; empty if it equals the current logπ_θ.
    pub old: Vec<f32>,
    /// logπ_ref; empty if it is not needed.
    pub reference: Vec<f32>,
    /// Advantage.
    pub advantage: f64,
    /// Weight of each of its tokens in the loss.
    pub weight: f64,
}

impl TrainRow {
    /// Returns the number of tokens from the first masked-in one on.
    pub fn response_length(&self) -> usize {
        self.tokens.len() - self.targets.first().copied().unwrap_or(self.tokens.len())
    }

    /// Returns the number of tokens that the model computes for it: those before its last target.
    pub fn fed(&self) -> usize {
        self.targets.last().copied().unwrap_or(0)
    }
}

/// An episode of the batch, in canonical order.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its id.
    pub episode_uuid: String,
    /// Number of its rows, including those without a masked-in token.
    pub rows: usize,
    /// Number of its task's group.
    pub group: usize,
    /// Reward.
    pub reward: f64,
    /// Maximum length of its rows after the first prompt, in tokens.
    pub response_length: usize,
}

/// A batch ready for training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// Episodes sorted by task and uuid, so that the same episodes give the same update in whatever order they ended.
    pub episodes: Vec<Member>,
    /// Their rows with masked-in tokens, in the same order.
    pub rows: Vec<TrainRow>,
    /// Why an episode has no rows, by its index in `episodes`.
    pub dropped: BTreeMap<usize, Untrained>,
    /// Number of rows truncated at the end.
    pub rows_cut: usize,
    /// Number of rows excluded from the loss because they were truncated.
    pub rows_masked: usize,
}

impl Prepared {
    /// Returns the advantage of each row by its episode's id; `None` for a row that is not trained on.
    pub fn advantages(&self) -> IndexMap<String, Vec<Option<f64>>> {
        let mut found: Vec<Vec<Option<f64>>> = self.episodes.iter().map(|member| vec![None; member.rows]).collect();
        for row in &self.rows {
            found[row.episode][row.index] = Some(row.advantage);
        }
        let uuids = self.episodes.iter().map(|member| member.episode_uuid.clone());
        uuids.zip(found).collect()
    }

    /// Returns the mean of −logπ of all rows' tokens when they were sampled: an estimate of the entropy that needs no
    /// forward pass. 0 without rows.
    pub fn sampled_entropy(&self) -> f64 {
        let sampled = || self.rows.iter().flat_map(|row| &row.sampler);
        let sum: f64 = sampled().map(|log_prob| -f64::from(*log_prob)).sum();
        sum / sampled().count().max(1) as f64
    }
}

/// Sorts, truncates and filters.
pub fn prepare(episodes: &[TrainEpisode], limits: &Limits) -> Prepared {
    let mut sorted: Vec<&TrainEpisode> = episodes.iter().collect();
    sorted.sort_by(|a, b| (&a.task_id, &a.episode_uuid).cmp(&(&b.task_id, &b.episode_uuid)));
    let mut prepared = Prepared::default();
    let mut groups: IndexMap<&str, usize> = IndexMap::new();
    for episode in sorted {
        let next = groups.len();
        let group = *groups.entry(&episode.task_id).or_insert(next);
        let number = prepared.episodes.len();
        let mut member = Member {
            episode_uuid: episode.episode_uuid.clone(),
            rows: episode.rows.len(),
            group,
            reward: episode.reward,
            response_length: 0,
        };
        let before = prepared.rows.len();
        let mut reason = Untrained::NoResponse;
        for (index, row) in episode.rows.iter().enumerate() {
            let len = row.token_ids.len().min(limits.row_tokens);
            let targets: Vec<usize> = (1..len).filter(|i| row.loss_mask.get(*i) == Some(&true)).collect();
            let cut = len < row.token_ids.len();
            prepared.rows_cut += cut as usize;
            let prompt = targets.first().copied().unwrap_or(len);
            member.response_length = member.response_length.max(len - prompt);
            if targets.is_empty() {
                continue;
            }
            if (cut || row.truncated) && limits.mask_truncated {
                prepared.rows_masked += 1;
                reason = Untrained::Truncated;
                continue;
            }
            prepared.rows.push(TrainRow {
                episode: number,
                index,
                name: format!("{}/{} row {index}", episode.task_id, episode.episode_uuid),
                tokens: row.token_ids[..len].to_vec(),
                sampler: targets
                    .iter()
                    .map(|i| row.logprobs.get(*i).copied().unwrap_or(0.0))
                    .collect(),
                targets,
                constrained: row.constrained.clone(),
                old: vec![],
                reference: vec![],
                advantage: 0.0,
                weight: 0.0,
            });
        }
        if prepared.rows.len() == before {
            prepared.dropped.insert(number, reason);
        }
        prepared.episodes.push(member);
    }
    prepared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Row;

    fn row(len: usize, masked: &[usize], truncated: bool) -> Row {
        Row {
            token_ids: (0..len as u32).collect(),
            loss_mask: (0..len).map(|i| masked.contains(&i)).collect(),
            logprobs: (0..len).map(|i| -(i as f32)).collect(),
            truncated,
            ..Row::default()
        }
    }

    fn episode(task: &str, uuid: &str, rows: Vec<Row>) -> TrainEpisode {
        TrainEpisode {
            task_id: task.into(),
            episode_uuid: uuid.into(),
            reward: 1.0,
            rows,
        }
    }

    const LIMITS: Limits = Limits {
        row_tokens: 6,
        mask_truncated: true,
    };

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let a = episode("t1", "a", vec![row(3, &[2], false)]);
        let b = episode("t1", "b", vec![row(4, &[3], false)]);
        let c = episode("t0", "z", vec![row(5, &[4], false)]);
        let forward = prepare(&[a.clone(), b.clone(), c.clone()], &LIMITS);
        assert_eq!(forward, prepare(&[c, b, a], &LIMITS));
        let groups: Vec<_> = forward.episodes.iter().map(|e| e.group).collect();
        assert_eq!(groups, [0, 1, 1]);
        assert_eq!(forward.rows[0].tokens.len(), 5);
    }

    #[test]
    fn long_rows_are_cut_at_the_end() {
        let limits = Limits {
            mask_truncated: false,
            ..LIMITS
        };
        let prepared = prepare(&[episode("t", "a", vec![row(9, &[3, 5, 7], false)])], &limits);
        assert_eq!(prepared.rows[0].tokens, [0, 1, 2, 3, 4, 5]);
        assert_eq!(prepared.rows[0].targets, [3, 5]);
        assert_eq!(prepared.rows[0].sampler, [-3.0, -5.0]);
        assert_eq!(prepared.rows_cut, 1);
        assert_eq!(prepared.episodes[0].response_length, 3);
    }

    #[test]
    fn episodes_without_anything_to_train_have_a_reason() {
        let prepared = prepare(
            &[
                episode("t", "empty mask", vec![row(4, &[], false)]),
                episode("t", "no rows", vec![]),
                episode("t", "only its first token", vec![row(1, &[0], false)]),
                episode("t", "cut short", vec![row(4, &[2], true)]),
                episode("t", "one of two", vec![row(4, &[2], true), row(4, &[1, 3], false)]),
            ],
            &LIMITS,
        );
        assert_eq!(prepared.rows.len(), 1);
        assert_eq!(prepared.episodes.len(), 5);
        let dropped = prepared.dropped.iter();
        let dropped: Vec<_> = dropped
            .map(|(number, why)| (prepared.episodes[*number].episode_uuid.as_str(), *why))
            .collect();
        assert_eq!(
            dropped,
            [
                ("cut short", Untrained::Truncated),
                ("empty mask", Untrained::NoResponse),
                ("no rows", Untrained::NoResponse),
                ("only its first token", Untrained::NoResponse),
            ]
        );
        assert_eq!(prepared.rows_masked, 2);
        let advantages = prepared.advantages();
        assert_eq!(advantages["one of two"], [None, Some(0.0)]);
        assert_eq!(
            (&advantages["cut short"][..], &advantages["no rows"][..]),
            (&[None][..], &[][..])
        );
    }
}
