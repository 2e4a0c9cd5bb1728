//! Names under which users of verl look for metrics. Only metrics with the same meaning have one; where verl means
//! something else (such as `actor/ppo_kl`), there is none.

use super::names::Metrics;

/// Our name → verl's.
#[rustfmt::skip]
const SAME: &[(&str, &str)] = &[
    ("pg_loss", "actor/pg_loss"),
    ("entropy", "actor/entropy"),
    ("kl", "actor/kl_loss"),
    ("grad_norm", "actor/grad_norm"),
    ("lr", "actor/lr"),
    ("reward_mean", "critic/rewards/mean"),
    ("reward_max", "critic/rewards/max"),
    ("reward_min", "critic/rewards/min"),
    ("advantage_mean", "critic/advantages/mean"),
    ("response_length_mean", "response_length/mean"),
    ("response_length_max", "response_length/max"),
    ("truncated_share", "response_length/clip_ratio"),
    ("seconds/rolling", "timing_s/gen"),
    ("seconds/update", "timing_s/update_actor"),
    ("seconds/update_scoring", "timing_s/old_log_prob"),
    ("seconds/export", "timing_s/save_checkpoint"),
    ("eval/reward_mean", "val-core/eval/reward/mean@1"),
    ("eval/success_rate", "val-core/eval/acc/mean@1"),
];

/// Returns the metrics that verl knows, under its names.
pub fn verl_metrics(metrics: &Metrics) -> Metrics {
    let get = |name: &str| metrics.get(name).copied();
    let same = SAME
        .iter()
        .filter_map(|(ours, verls)| Some(((*verls).to_owned(), get(ours)?)));
    let mut found: Metrics = same.collect();
    if let (Some(low), Some(high)) = (get("clip_frac_low"), get("clip_frac_high")) {
        found.insert("actor/pg_clipfrac".into(), low + high);
    }
    found.extend(performance(&get).unwrap_or_default());
    found
}

/// Returns tokens and time of a step.
fn performance(get: &impl Fn(&str) -> Option<f64>) -> Option<Metrics> {
    let tokens = get("prompt_tokens")? + get("response_tokens")?;
    let other = get("seconds/post").unwrap_or(0.0) + get("seconds/export").unwrap_or(0.0);
    let seconds = get("seconds/rolling")? + get("seconds/update")? + other;
    let figures = [
        ("perf/total_num_tokens", tokens),
        ("perf/time_per_step", seconds),
        ("timing_s/step", seconds),
        ("perf/throughput", if seconds > 0.0 { tokens / seconds } else { 0.0 }),
    ];
    Some(
        figures
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_with_the_same_meaning_have_verls_names_too() {
        let ours = |values: &[(&str, f64)]| -> Metrics {
            values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect()
        };
        assert_eq!(
            verl_metrics(&ours(&[("loss", 1.0), ("ratio_mean", 1.0)])),
            Metrics::new()
        );
        let found = verl_metrics(&ours(&[
            ("reward_mean", 0.5),
            ("clip_frac_low", 0.25),
            ("clip_frac_high", 0.5),
            ("prompt_tokens", 60.0),
            ("response_tokens", 40.0),
            ("seconds/rolling", 3.0),
            ("seconds/post", 0.5),
            ("seconds/update", 1.5),
            ("eval/reward_mean", 1.0),
        ]));
        let expected = ours(&[
            ("critic/rewards/mean", 0.5),
            ("timing_s/gen", 3.0),
            ("timing_s/update_actor", 1.5),
            ("val-core/eval/reward/mean@1", 1.0),
            ("actor/pg_clipfrac", 0.75),
            ("perf/total_num_tokens", 100.0),
            ("perf/time_per_step", 5.0),
            ("timing_s/step", 5.0),
            ("perf/throughput", 20.0),
        ]);
        assert_eq!(found, expected);
    }

    #[test]
    fn every_one_of_our_names_exists() {
        let known = |ours: &str| {
            super::super::names::NAMES
                .iter()
                .any(|(name, _)| *name == ours || name.ends_with('/') && ours.starts_with(name))
        };
        for (ours, _) in SAME {
            assert!(known(ours), "{ours}");
        }
    }
}
