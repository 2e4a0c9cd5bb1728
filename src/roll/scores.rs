//! Scores of an evaluation besides its mean: pass@k and mean@k of repeated tasks, and the means of groups of tasks. Pure.

use std::collections::HashMap;

use indexmap::IndexMap;
use serde::Serialize;

use super::summary::{EpisodeReport, Summary};
use super::tasks::Task;

/// Scores of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// `pass@K`, the expected share of tasks of which at least one of K episodes reaches its goal, and `mean@K`, the mean
    /// over tasks of the mean reward of K episodes. Empty unless tasks are repeated.
    #[serde(flatten)]
    pub at_k: IndexMap<String, f64>,
    /// Means by the tasks' `metadata.tag`. Empty unless there are several tags.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub groups: IndexMap<String, Summary>,
}

impl Scores {
    /// Computes the scores of episodes of which each task had `repeat`. `tags` are those of the tasks by id.
    pub fn of(episodes: &[EpisodeReport], repeat: usize, tags: &HashMap<&str, &str>) -> Self {
        Self {
            at_k: at_k(episodes, repeat),
            groups: groups(episodes, tags),
        }
    }
}

/// Returns `metadata.tag` of the tasks that have one, by their ids: evaluations are grouped by it.
pub fn tags(tasks: &[Task]) -> HashMap<&str, &str> {
    let tagged = tasks
        .iter()
        .filter_map(|task| Some((task.task_id.as_str(), task.metadata.get("tag")?.as_str()?)));
    tagged.collect()
}

fn at_k(episodes: &[EpisodeReport], repeat: usize) -> IndexMap<String, f64> {
    let mut scores = IndexMap::new();
    if repeat < 2 {
        return scores;
    }
    let mut tasks: IndexMap<&str, Vec<&EpisodeReport>> = IndexMap::new();
    for episode in episodes {
        tasks.entry(&episode.task_id).or_default().push(episode);
    }
    for k in sizes(repeat) {
        let passed = tasks.values().filter_map(|episodes| pass_at(k, episodes));
        scores.extend(mean(passed).map(|share| (format!("pass@{k}"), share)));
    }
    let means = tasks
        .values()
        .filter_map(|episodes| mean(episodes.iter().filter_map(|episode| episode.reward)));
    scores.extend(mean(means).map(|mean| (format!("mean@{repeat}"), mean)));
    scores
}

/// Returns the powers of two up to `repeat`, and `repeat` itself.
fn sizes(repeat: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1_usize), |k| k.checked_mul(2));
    let mut sizes: Vec<usize> = powers.take_while(|k| *k < repeat).collect();
    sizes.push(repeat);
    sizes
}

/// Returns the probability that at least one of `k` episodes, drawn without replacement, reached its goal (the unbiased
/// estimator of arXiv 2107.03374); `None` if it is known of fewer than `k` whether they did.
fn pass_at(k: usize, episodes: &[&EpisodeReport]) -> Option<f64> {
    let known: Vec<bool> = episodes.iter().filter_map(|episode| episode.is_success).collect();
    let (all, failed) = (known.len(), known.iter().filter(|success| !**success).count());
    if all < k {
        return None;
    }
    if failed < k {
        return Some(1.0);
    }
    let none_passed: f64 = (0..k)
        .map(|drawn| (failed - drawn) as f64 / (all - drawn) as f64)
        .product();
    Some(1.0 - none_passed)
}

fn groups(episodes: &[EpisodeReport], tags: &HashMap<&str, &str>) -> IndexMap<String, Summary> {
    let mut groups: IndexMap<&str, Vec<EpisodeReport>> = IndexMap::new();
    for episode in episodes {
        let tag = tags.get(episode.task_id.as_str()).copied().unwrap_or("other");
        groups.entry(tag).or_default().push(episode.clone());
    }
    if groups.len() < 2 {
        return IndexMap::new();
    }
    groups.sort_unstable_keys();
    let summary = |(tag, episodes): (&str, Vec<EpisodeReport>)| (tag.to_owned(), Summary::of(&episodes));
    groups.into_iter().map(summary).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::swarm::EpisodeType;
    use crate::roll::joint_episode::Models;

    fn episode(task: &str, success: impl Into<Option<bool>>) -> EpisodeReport {
        let is_success = success.into();
        EpisodeReport {
            episode_uuid: "e".into(),
            task_id: task.into(),
            episode_type: EpisodeType::Eval,
            reward: Some(if is_success == Some(true) { 1.0 } else { 0.25 }),
            dropped: None,
            is_success,
            llm_calls: Some(1),
            response_tokens: Some(4),
            seconds: 0.5,
            taken_by: Models::default(),
        }
    }

    fn task(name: &str, passed: usize, of: usize) -> Vec<EpisodeReport> {
        (0..of).map(|number| episode(name, number < passed)).collect()
    }

    fn score(episodes: &[EpisodeReport], repeat: usize, name: &str) -> Option<f64> {
        Scores::of(episodes, repeat, &HashMap::new()).at_k.get(name).copied()
    }

    #[test]
    fn pass_at_k_is_the_unbiased_estimate() {
        for (passed, k, expected) in [
            (0, 1, 0.0),
            (1, 1, 0.25),
            (1, 2, 0.5),
            (1, 4, 1.0),
            (2, 2, 1.0 - 1.0 / 6.0),
            (4, 1, 1.0),
        ] {
            let found = score(&task("t", passed, 4), 4, &format!("pass@{k}")).unwrap();
            assert!((found - expected).abs() < 1e-12, "{passed} of 4, k = {k}: {found}");
        }
        let two_tasks = [task("a", 0, 4), task("b", 4, 4)].concat();
        assert_eq!(score(&two_tasks, 4, "pass@4"), Some(0.5));
    }

    #[test]
    fn tasks_count_equally_in_the_mean_and_unknown_outcomes_do_not_pass() {
        let uneven = [task("a", 1, 1), task("b", 0, 3)].concat();
        assert_eq!(score(&uneven, 3, "mean@3"), Some((1.0 + 0.25) / 2.0));
        assert_eq!(score(&uneven, 3, "pass@3"), Some(0.0), "task a has one episode only");
        let unknown = [episode("a", None), episode("a", None)];
        assert_eq!(score(&unknown, 2, "pass@2"), None);
        assert!(Scores::of(&task("a", 1, 1), 1, &HashMap::new()).at_k.is_empty());
        assert!(Scores::of(&[], 4, &HashMap::new()).at_k.is_empty());
        let names: Vec<_> = Scores::of(&task("a", 1, 6), 6, &HashMap::new())
            .at_k
            .into_keys()
            .collect();
        assert_eq!(names, ["pass@1", "pass@2", "pass@4", "pass@6", "mean@6"]);
    }

    #[test]
    fn tags_group_tasks() {
        let episodes = [task("a", 1, 1), task("b", 0, 1), task("c", 1, 1)].concat();
        let tags = HashMap::from([("a", "short"), ("b", "short")]);
        let groups = Scores::of(&episodes, 1, &tags).groups;
        let seen: Vec<_> = groups
            .iter()
            .map(|(tag, summary)| (tag.as_str(), summary.episodes))
            .collect();
        assert_eq!(seen, [("other", 1), ("short", 2)]);
        assert_eq!(groups["short"].success_rate, Some(0.5));
        assert!(
            Scores::of(&episodes[..2], 1, &tags).groups.is_empty(),
            "one group is the whole"
        );
    }
}
