//! Rows of the lists, filtered and in order.

use super::known::Known;
use super::view::{List, View};
use crate::protocol::status::{EpisodeSummary, RunningEpisode, TaskGroup};

/// Orders of running episodes, by the key `s`.
pub const RUNNING_ORDERS: [&str; 4] = [
    "oldest first",
    "longest idle first",
    "most calls first",
    "most tokens first",
];

/// Orders of tasks, by the key `s`.
pub const TASK_ORDERS: [&str; 4] = [
    "in order of arrival",
    "lowest mean first",
    "highest mean first",
    "no signal first",
];

/// Metrics that come first in the Training tab; the others follow by name.
const FIRST_METRICS: [&str; 17] = [
    "reward_mean",
    "eval/reward_mean",
    "success_rate",
    "entropy",
    "kl",
    "grad_norm",
    "clip_frac_high",
    "clip_frac_low",
    "response_length_mean",
    "truncated_share",
    "dummy_tasks",
    "mismatch_kl",
    "loss",
    "lr",
    "seconds/rolling",
    "seconds/update",
    "tokens_per_second/sampling",
];

/// Returns the running episodes.
pub fn running<'a>(known: &'a Known, view: &View) -> Vec<&'a RunningEpisode> {
    let list = view.list(List::Running);
    let all = known.status.iter().flat_map(|status| &status.running);
    let mut rows: Vec<_> = all
        .filter(|row| matches(&list.filter, &[&row.task_id, &row.episode_uuid, &row.client_uuid]))
        .collect();
    match list.order % RUNNING_ORDERS.len() {
        1 => rows.sort_by(|a, b| b.idle.total_cmp(&a.idle)),
        2 => rows.sort_by_key(|row| std::cmp::Reverse(row.llm_calls)),
        3 => rows.sort_by_key(|row| std::cmp::Reverse(row.completion_tokens)),
        _ => {}
    }
    rows
}

/// Returns the finished episodes of the known page, in the server's order; a filter applies to this page.
pub fn finished<'a>(known: &'a Known, view: &View) -> Vec<&'a EpisodeSummary> {
    let filter = &view.list(List::Finished).filter;
    let page = match &known.episodes {
        Some((_, Ok(page))) => page.episodes.as_slice(),
        _ => &[],
    };
    let fits = |row: &&EpisodeSummary| matches(filter, &[&row.task_id, &row.episode_uuid, &row.client_uuid]);
    page.iter().filter(fits).collect()
}

/// Returns the groups of the batch.
pub fn tasks<'a>(known: &'a Known, view: &View) -> Vec<&'a TaskGroup> {
    let list = view.list(List::Tasks);
    let all = known.status.iter().flat_map(|status| &status.groups);
    let mut rows: Vec<_> = all.filter(|group| matches(&list.filter, &[&group.task_id])).collect();
    match list.order % TASK_ORDERS.len() {
        1 => rows.sort_by(|a, b| mean_or(a, f64::INFINITY).total_cmp(&mean_or(b, f64::INFINITY))),
        2 => rows.sort_by(|a, b| mean_or(b, f64::NEG_INFINITY).total_cmp(&mean_or(a, f64::NEG_INFINITY))),
        3 => rows.sort_by_key(|group| group.has_signal),
        _ => {}
    }
    rows
}

/// Returns the names of the metrics that have a curve.
pub fn metrics(known: &Known, view: &View) -> Vec<String> {
    let filter = &view.list(List::Metrics).filter;
    let first = FIRST_METRICS
        .iter()
        .filter(|name| known.metrics.contains(**name))
        .map(|name| (*name).to_owned());
    let others = known
        .metrics
        .iter()
        .filter(|name| !FIRST_METRICS.contains(&name.as_str()))
        .cloned();
    first.chain(others).filter(|name| matches(filter, &[name])).collect()
}

/// Returns the mean reward of a group; `None` before its first finished episode.
pub fn mean(group: &TaskGroup) -> Option<f64> {
    let rewards = group.episodes.iter().map(|episode| episode.reward);
    (!group.episodes.is_empty()).then(|| rewards.sum::<f64>() / group.episodes.len() as f64)
}

fn mean_or(group: &TaskGroup, otherwise: f64) -> f64 {
    mean(group).unwrap_or(otherwise)
}

/// Returns whether one of the texts contains the filter, regardless of case.
pub fn matches(filter: &str, texts: &[&str]) -> bool {
    let filter = filter.to_lowercase();
    filter.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&filter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::status::{GroupEpisode, Status};

    fn known() -> Known {
        let running = |id: &str, idle, llm_calls, completion_tokens| RunningEpisode {
            episode_uuid: id.into(),
            task_id: format!("task_{id}"),
            idle,
            llm_calls,
            completion_tokens,
            ..RunningEpisode::default()
        };
        let group = |id: &str, rewards: &[f64], has_signal| TaskGroup {
            task_id: id.into(),
            episodes: rewards
                .iter()
                .map(|reward| GroupEpisode {
                    reward: *reward,
                    ..GroupEpisode::default()
                })
                .collect(),
            has_signal,
            ..TaskGroup::default()
        };
        Known {
            status: Some(Status {
                running: vec![
                    running("a", 1.0, 3, 5),
                    running("b", 9.0, 1, 7),
                    running("c", 0.0, 2, 6),
                ],
                groups: vec![
                    group("x", &[1.0, 1.0], false),
                    group("y", &[], false),
                    group("z", &[0.0, 1.0], true),
                ],
                ..Status::default()
            }),
            metrics: ["a".to_owned(), "kl".to_owned(), "zeta".to_owned()].into(),
            ..Known::default()
        }
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let (known, mut view) = (known(), View::default());
        for (order, want) in ["abc", "bac", "acb", "bca", "abc"].iter().enumerate() {
            view.list_mut(List::Running).order = order;
            let ids: String = running(&known, &view)
                .iter()
                .map(|row| row.episode_uuid.as_str())
                .collect();
            assert_eq!(ids, *want, "{order}");
        }
        for (order, want) in ["xyz", "zxy", "xzy", "xyz"].iter().enumerate() {
            view.list_mut(List::Tasks).order = order;
            let ids: String = tasks(&known, &view).iter().map(|row| row.task_id.as_str()).collect();
            assert_eq!(ids, *want, "{order}");
        }
        view.list_mut(List::Running).filter = "TASK_B".into();
        assert_eq!(running(&known, &view).len(), 1);
        assert_eq!(metrics(&known, &view), ["kl", "a", "zeta"]);
        view.list_mut(List::Metrics).filter = "z".into();
        assert_eq!(metrics(&known, &view), ["zeta"]);
    }
}
