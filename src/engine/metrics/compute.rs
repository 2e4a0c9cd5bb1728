//! Metrics computed from a batch's episodes.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::Value;

use super::names::{Metrics, is_ours};
use crate::engine::batch::finished::FinishedEpisode;
use crate::engine::batch::pool::rewards_differ;
use crate::protocol::engine::DropReason;
use crate::protocol::status::Distribution;

/// Computes the metrics of a batch, including those sent by clients.
///
/// `trained` are the episodes of the update; `left_out_groups` is the number of groups left out of it.
pub fn batch_metrics(trained: &[&FinishedEpisode], left_out_groups: usize) -> Metrics {
    let mut metrics = Metrics::new();
    let groups = group_rewards(trained);
    let dummy = groups
        .values()
        .filter(|rewards| !rewards_differ(rewards.iter().copied()))
        .count();
    set(&mut metrics, "episodes", trained.len() as f64);
    set(&mut metrics, "tasks", groups.len() as f64);
    set(&mut metrics, "dummy_tasks", (dummy + left_out_groups) as f64);
    if trained.is_empty() {
        return metrics;
    }
    for (name, value) in rewards(trained) {
        set(&mut metrics, &format!("reward_{name}"), value);
    }
    if let Some(spread) = Distribution::of(trained.iter().map(|episode| episode.reward)) {
        set(&mut metrics, "reward_p10", spread.p10);
        set(&mut metrics, "reward_p90", spread.p90);
    }
    for (tag, value) in rewards_by_tag(trained) {
        set(&mut metrics, &format!("reward_mean/{tag}"), value);
    }
    if let Some(rate) = success_rate(trained) {
        set(&mut metrics, "success_rate", rate);
    }
    metrics.extend(lengths(trained));
    metrics.extend(usage(trained));
    for (name, value) in client_metrics(trained) {
        let name = if is_ours(&name) { format!("client/{name}") } else { name };
        set(&mut metrics, &name, value);
    }
    metrics
}

/// Computes the metrics of a step's eval episodes; empty if there are none.
pub fn eval_metrics(episodes: &[&FinishedEpisode]) -> Metrics {
    let mut metrics = Metrics::new();
    if episodes.is_empty() {
        return metrics;
    }
    set(&mut metrics, "eval/episodes", episodes.len() as f64);
    for (name, value) in rewards(episodes).into_iter().take(2) {
        set(&mut metrics, &format!("eval/reward_{name}"), value);
    }
    if let Some(rate) = success_rate(episodes) {
        set(&mut metrics, "eval/success_rate", rate);
    }
    for (name, value) in client_metrics(episodes) {
        metrics.entry(format!("eval/{name}")).or_insert(value);
    }
    metrics
}

/// Computes AgentJet's metrics of eval episodes by task. An episode succeeds if its client says so, or, if the client
/// does not say, with a reward of at least 1.
pub fn validation_metrics(episodes: &[&FinishedEpisode]) -> Metrics {
    let mut tasks: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for episode in episodes {
        let succeeded = episode.is_success.unwrap_or(episode.reward >= 1.0);
        tasks.entry(&episode.task_id).or_default().push(succeeded);
    }
    let pass_n = tasks.values().map(Vec::len).max().unwrap_or(0);
    let count = |of: &dyn Fn(&[bool]) -> bool| tasks.values().filter(|trials| of(trials)).count() as f64;
    let mut metrics = Metrics::new();
    set(&mut metrics, "pass_n", pass_n as f64);
    set(&mut metrics, "total_tasks", tasks.len() as f64);
    set(
        &mut metrics,
        "num_all_success_tasks",
        count(&|trials| trials.iter().all(|ok| *ok)),
    );
    set(
        &mut metrics,
        "num_pass_n_tasks",
        count(&|trials| trials.contains(&true)),
    );
    for trials in [1, 2, 4, 8, 16].into_iter().filter(|trials| *trials <= pass_n) {
        let passed = count(&|all| all.iter().take(trials).any(|ok| *ok));
        set(
            &mut metrics,
            &format!("task_pass_rate@{trials}"),
            passed / tasks.len() as f64,
        );
    }
    for (name, value) in rewards(episodes).into_iter().take(2) {
        set(&mut metrics, &format!("{name}_reward"), value);
    }
    metrics
}

/// Returns the numbers of dropped episodes, by reason.
pub fn dropped_metrics(dropped: &BTreeMap<DropReason, u64>) -> Metrics {
    dropped
        .iter()
        .map(|(reason, n)| (format!("dropped/{}", reason.as_str()), *n as f64))
        .collect()
}

/// Formats a step's main metrics as one log line.
pub fn summary(metrics: &Metrics) -> String {
    const SUMMARY: [(&str, &str); 7] = [
        ("reward_mean", "reward"),
        ("reward_std", "±"),
        ("loss", "loss"),
        ("kl", "kl"),
        ("entropy", "entropy"),
        ("grad_norm", "gradient norm"),
        ("seconds/update", "seconds of update"),
    ];
    let told = SUMMARY.iter().filter_map(|(name, word)| {
        let value = metrics.get(*name)?;
        Some(match value.abs() {
            size if size > 0.0 && size < 1e-3 => format!("{word} {value:.2e}"),
            _ => format!("{word} {value:.3}"),
        })
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Sets a metric if it is finite: JSON has no other numbers.
fn set(metrics: &mut Metrics, name: &str, value: f64) {
    if value.is_finite() {
        metrics.insert(name.to_owned(), value);
    }
}

fn group_rewards<'a>(episodes: &[&'a FinishedEpisode]) -> IndexMap<&'a str, Vec<f64>> {
    let mut groups: IndexMap<&str, Vec<f64>> = IndexMap::new();
    for episode in episodes {
        groups.entry(&episode.task_id).or_default().push(episode.reward);
    }
    groups
}

/// Returns mean, standard deviation, minimum and maximum, in this order.
fn rewards(episodes: &[&FinishedEpisode]) -> [(&'static str, f64); 4] {
    let rewards: Vec<f64> = episodes.iter().map(|e| e.reward).collect();
    let mean = mean(&rewards);
    let squares: f64 = rewards.iter().map(|r| (r - mean).powi(2)).sum();
    let std = (squares / (rewards.len().max(2) - 1) as f64).sqrt();
    let min = rewards.iter().copied().fold(f64::INFINITY, f64::min);
    let max = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [("mean", mean), ("std", std), ("min", min), ("max", max)]
}

fn rewards_by_tag(episodes: &[&FinishedEpisode]) -> BTreeMap<String, f64> {
    let mut tags: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for episode in episodes {
        if let Some(tag) = &episode.tag {
            tags.entry(tag.clone()).or_default().push(episode.reward);
        }
    }
    tags.into_iter().map(|(tag, rewards)| (tag, mean(&rewards))).collect()
}

fn success_rate(episodes: &[&FinishedEpisode]) -> Option<f64> {
    let told: Vec<f64> = episodes.iter().filter_map(|e| e.is_success).map(f64::from).collect();
    (!told.is_empty()).then(|| mean(&told))
}

fn lengths(episodes: &[&FinishedEpisode]) -> Metrics {
    let rows: Vec<_> = episodes.iter().flat_map(|e| &e.rows).collect();
    let responses: Vec<f64> = rows.iter().map(|r| r.response_tokens() as f64).collect();
    // The sum of nothing is -0.
    let response = responses.iter().sum::<f64>() + 0.0;
    let all: usize = rows.iter().map(|r| r.token_ids.len()).sum();
    let truncated: Vec<f64> = rows.iter().map(|r| f64::from(r.truncated)).collect();
    let mut metrics = Metrics::new();
    set(&mut metrics, "rows", rows.len() as f64);
    set(&mut metrics, "prompt_tokens", all as f64 - response);
    set(&mut metrics, "response_tokens", response);
    set(&mut metrics, "response_length_mean", mean(&responses));
    set(
        &mut metrics,
        "response_length_max",
        responses.iter().copied().fold(0.0, f64::max),
    );
    set(&mut metrics, "truncated_share", mean(&truncated));
    metrics
}

fn usage(episodes: &[&FinishedEpisode]) -> Metrics {
    let sum = |of: fn(&FinishedEpisode) -> u64| episodes.iter().map(|e| of(e)).sum::<u64>() as f64;
    let mut metrics = Metrics::new();
    set(
        &mut metrics,
        "llm_calls_per_episode",
        sum(|e| e.usage.llm_calls) / episodes.len() as f64,
    );
    let prompt = sum(|e| e.usage.prompt_tokens);
    set(
        &mut metrics,
        "prefix_cache_share",
        sum(|e| e.usage.cached_tokens) / prompt,
    );
    for episode in episodes {
        for (name, count) in &episode.usage.counters {
            *metrics.entry(format!("counts/{name}")).or_default() += *count as f64;
        }
    }
    metrics
}

/// Averages the clients' metrics: numbers over the episodes, lists over all their elements, objects flattened to `a/b`
/// names.
fn client_metrics(episodes: &[&FinishedEpisode]) -> Metrics {
    let mut values: IndexMap<String, Vec<f64>> = IndexMap::new();
    for episode in episodes {
        for (name, value) in &episode.log_metrics {
            flatten(name, value, &mut values);
        }
    }
    let finite = |v: &Vec<f64>| v.iter().all(|x| x.is_finite());
    values
        .into_iter()
        .filter(|(_, v)| finite(v))
        .map(|(name, v)| (name, mean(&v)))
        .collect()
}

fn flatten(name: &str, value: &Value, values: &mut IndexMap<String, Vec<f64>>) {
    match value {
        // 1e400 does not fit a float: its metric is dropped.
        Value::Number(number) => values
            .entry(name.to_owned())
            .or_default()
            .push(number.as_f64().unwrap_or(f64::NAN)),
        Value::Bool(yes) => values.entry(name.to_owned()).or_default().push(f64::from(*yes)),
        Value::Array(items) => items.iter().for_each(|item| flatten(name, item, values)),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| flatten(&format!("{name}/{key}"), value, values)),
        Value::Null | Value::String(_) => {} // not a number
    }
}

/// NaN of no value, which no metric is set to.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::finished::EpisodeUsage;
    use crate::timeline::Row;
    use serde_json::json;

    fn episode(task: &str, reward: f64) -> FinishedEpisode {
        FinishedEpisode {
            task_id: task.into(),
            reward,
            ..Default::default()
        }
    }

    fn logged(value: Value) -> FinishedEpisode {
        FinishedEpisode {
            log_metrics: serde_json::from_value(value).unwrap(),
            ..episode("t", 0.0)
        }
    }

    #[test]
    fn rewards_groups_and_successes_of_a_batch() {
        let mut batch = [
            episode("a", 1.0),
            episode("a", 0.0),
            episode("b", 2.0),
            episode("b", 2.0),
        ];
        batch[0].is_success = Some(true);
        batch[1].is_success = Some(false);
        batch[2].tag = Some("hard".into());
        let metrics = batch_metrics(&batch.iter().collect::<Vec<_>>(), 1);
        for (name, value) in [
            ("episodes", 4.0),
            ("tasks", 2.0),
            ("dummy_tasks", 2.0),
            ("reward_mean", 1.25),
            ("reward_std", (2.75f64 / 3.0).sqrt()),
            ("reward_min", 0.0),
            ("reward_max", 2.0),
            ("reward_p10", 0.3),
            ("reward_p90", 2.0),
            ("reward_mean/hard", 2.0),
            ("success_rate", 0.5),
        ] {
            assert!((metrics[name] - value).abs() < 1e-12, "{name}: {}", metrics[name]);
        }
    }

    #[test]
    fn lengths_and_usage_of_a_batch() {
        let row = |mask: &[bool], truncated| Row {
            token_ids: vec![0; mask.len()],
            loss_mask: mask.to_vec(),
            logprobs: vec![0.0; mask.len()],
            truncated,
            ..Row::default()
        };
        let mut a = episode("a", 0.0);
        a.rows = vec![row(&[false, true, true], false), row(&[false, false, true], true)];
        a.usage = EpisodeUsage {
            llm_calls: 3,
            prompt_tokens: 30,
            cached_tokens: 15,
            completion_tokens: 3,
            counters: [("row_cut".to_owned(), 2)].into_iter().collect(),
        };
        let metrics = batch_metrics(&[&a], 0);
        for (name, value) in [
            ("rows", 2.0),
            ("prompt_tokens", 3.0),
            ("response_tokens", 3.0),
            ("response_length_mean", 1.5),
            ("response_length_max", 2.0),
            ("truncated_share", 0.5),
            ("llm_calls_per_episode", 3.0),
            ("prefix_cache_share", 0.5),
            ("counts/row_cut", 2.0),
        ] {
            assert_eq!(metrics[name], value, "{name}");
        }
        assert!(metrics.keys().all(|name| is_ours(name)), "{metrics:?}");
    }

    #[test]
    fn clients_own_metrics_are_averaged_and_flattened_and_never_shadow_ours() {
        let batch = [
            logged(
                json!({"turns": 2, "lat": [1, 2], "tool": {"calls": 4, "by": {"name": 1.5}}, "loss": 9, "note": "x"}),
            ),
            logged(json!({"turns": 4, "lat": [6], "ok": true, "loss": null})),
            logged(serde_json::from_str(r#"{"huge": 1e400, "deep": {"list": [1, -1E999]}}"#).unwrap()),
        ];
        let metrics = batch_metrics(&batch.iter().collect::<Vec<_>>(), 0);
        for (name, value) in [
            ("turns", 3.0),
            ("lat", 3.0),
            ("tool/calls", 4.0),
            ("tool/by/name", 1.5),
            ("ok", 1.0),
            ("client/loss", 9.0),
        ] {
            assert_eq!(metrics[name], value, "{name}");
        }
        assert!(!metrics.contains_key("loss") && !metrics.contains_key("note"));
        assert!(!metrics.contains_key("huge") && !metrics.contains_key("deep/list"));
    }

    #[test]
    fn a_validation_counts_tasks_by_their_trials() {
        let trial = |task: &str, reward: f64, is_success: Option<bool>| FinishedEpisode {
            task_id: task.into(),
            reward,
            is_success,
            ..FinishedEpisode::default()
        };
        let episodes = [
            trial("always", 1.0, None),
            trial("later", 0.0, None),
            trial("never", 0.5, None),
            trial("always", 2.0, None),
            trial("later", 0.2, Some(true)),
            trial("never", 1.0, Some(false)),
        ];
        let metrics = validation_metrics(&episodes.iter().collect::<Vec<_>>());
        for (name, value) in [
            ("pass_n", 2.0),
            ("total_tasks", 3.0),
            ("num_all_success_tasks", 1.0),
            ("num_pass_n_tasks", 2.0),
            ("task_pass_rate@1", 1.0 / 3.0),
            ("task_pass_rate@2", 2.0 / 3.0),
            ("mean_reward", 4.7 / 6.0),
        ] {
            assert!((metrics[name] - value).abs() < 1e-12, "{name}: {}", metrics[name]);
        }
        assert!(!metrics.contains_key("task_pass_rate@4"));
    }

    #[test]
    fn eval_episodes_have_names_of_their_own() {
        assert!(eval_metrics(&[]).is_empty());
        let mut evals = [episode("a", 1.0), logged(json!({"turns": 2}))];
        evals[0].is_success = Some(true);
        let metrics = eval_metrics(&evals.iter().collect::<Vec<_>>());
        assert_eq!(metrics["eval/reward_mean"], 0.5);
        assert_eq!(metrics["eval/episodes"], 2.0);
        assert_eq!(metrics["eval/success_rate"], 1.0);
        assert_eq!(metrics["eval/turns"], 2.0);
    }

    #[test]
    fn an_empty_batch_has_no_mean() {
        let metrics = batch_metrics(&[], 0);
        assert_eq!(metrics["episodes"], 0.0);
        assert!(!metrics.contains_key("reward_mean"));
    }

    #[test]
    fn a_step_in_one_line() {
        let metrics = Metrics::from_iter([("reward_mean".to_owned(), 0.51234), ("kl".to_owned(), 0.00012)]);
        assert_eq!(summary(&metrics), "reward 0.512, kl 1.20e-4");
        assert_eq!(summary(&Metrics::new()), "");
    }
}
