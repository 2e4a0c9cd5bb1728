//! The state of the swarm in Prometheus' text format.
//!
//! Metrics of the server itself begin with `ajet_swarm_`. Metrics of sampling have vLLM's names with `ajet_` instead of
//! `vllm:`, since colons are reserved for recording rules: `ajet_num_requests_running`. Metrics of an update have their
//! name from `metrics.jsonl` with the prefix `ajet_`: `reward_mean` is `ajet_reward_mean`; of a family such as
//! `seconds/update`, the part after the slash is the label `of`. All are in base units.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::protocol::engine::{DropReason, EndpointLoad, EngineLoad};
use crate::protocol::swarm::{EngineStatus, PoolInformation};
use crate::server::swarm::feed::histogram::{Durations, Histogram};

/// Content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Endings that the format reserves for counters and histograms.
const RESERVED: [&str; 5] = ["_total", "_count", "_sum", "_bucket", "_info"];

/// Values to export.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Engine, batch, episodes and clients.
    pub pool: &'a PoolInformation,
    /// Load of sampling.
    pub load: &'a EngineLoad,
    /// Durations since the server started.
    pub durations: &'a Durations,
    /// Maximum number of claimed episodes.
    pub slots: usize,
    /// LLM calls in flight.
    pub calls_in_flight: usize,
    /// Restarts of crashed engines since the server started.
    pub restarts: u64,
}

/// A value with its label, if any.
type Labelled = (Option<(&'static str, String)>, f64);

/// A metric family: all values with their labels.
struct Family {
    name: String,
    help: String,
    values: Values,
}

enum Values {
    Gauge(Vec<Labelled>),
    Counter(Vec<Labelled>),
    Histogram(Histogram),
}

impl Family {
    fn new(name: &str, help: &str, values: Values) -> Self {
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            values,
        }
    }

    fn write(&self, text: &mut String) {
        let (kind, name) = (self.values.kind(), &self.name);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", self.help);
        match &self.values {
            Values::Gauge(values) | Values::Counter(values) => values.iter().for_each(|value| line(text, name, value)),
            Values::Histogram(histogram) => {
                for (bound, count) in histogram.cumulative() {
                    let bound = if bound.is_finite() {
                        bound.to_string()
                    } else {
                        "+Inf".into()
                    };
                    line(text, &format!("{name}_bucket"), &(Some(("le", bound)), count as f64));
                }
                line(text, &format!("{name}_sum"), &(None, histogram.sum()));
                line(text, &format!("{name}_count"), &(None, histogram.count() as f64));
            }
        }
    }
}

impl Values {
    fn kind(&self) -> &'static str {
        match self {
            Self::Gauge(_) => "gauge",
            Self::Counter(_) => "counter",
            Self::Histogram(_) => "histogram",
        }
    }
}

fn line(text: &mut String, name: &str, (label, value): &Labelled) {
    // Writing to a string cannot fail.
    let _ = match label {
        Some((label, of)) => writeln!(text, "{name}{{{label}=\"{}\"}} {value}", escaped(of)),
        None => writeln!(text, "{name} {value}"),
    };
}

/// Formats all metrics as text.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let families = swarm_families(snapshot).into_iter().chain(sampling_families(snapshot));
    let families = families.chain(endpoint_families(snapshot.load));
    for family in families.chain(update_families(snapshot.pool)) {
        family.write(&mut text);
    }
    text
}

fn gauge(name: &str, help: &str, value: f64) -> Family {
    Family::new(name, help, Values::Gauge(vec![(None, value)]))
}

fn counter(name: &str, help: &str, value: u64) -> Family {
    Family::new(name, help, Values::Counter(vec![(None, value as f64)]))
}

fn histogram(name: &str, help: &str, histogram: &Histogram) -> Family {
    Family::new(name, help, Values::Histogram(histogram.clone()))
}

#[rustfmt::skip]
fn swarm_families(snapshot: &Snapshot) -> Vec<Family> {
    let pool = snapshot.pool;
    let running = pool.running_episode_details.as_ref().map_or(0, |running| running.len());
    let status = EngineStatus::OF_SERVERS.map(|status| {
        let is = pool.engine_status == Some(status);
        (Some(("status", status.as_str().to_owned())), f64::from(u8::from(is)))
    });
    let dropped = DropReason::ALL.map(|reason| {
        let count = pool.dropped_episodes.get(reason.as_str()).copied().unwrap_or(0);
        (Some(("reason", reason.as_str().to_owned())), count as f64)
    });
    let clients = pool.swarm_client_instruction.active_clients.len();
    vec![
        Family::new("ajet_swarm_engine_status", "1 for the current state", Values::Gauge(status.to_vec())),
        gauge("ajet_swarm_global_step", "step of the current batch", pool.global_step as f64),
        gauge("ajet_swarm_running_episodes", "claimed episodes", running as f64),
        gauge("ajet_swarm_episode_slots", "maximum number of claimed episodes", snapshot.slots as f64),
        gauge("ajet_swarm_completed_episodes", "finished train episodes in the batch", pool.completed_episodes as f64),
        gauge("ajet_swarm_completed_episodes_target", "train episodes that complete a batch",
            pool.completed_episode_target as f64),
        gauge("ajet_swarm_completed_tasks", "tasks with enough episodes in the batch", pool.completed_tasks as f64),
        gauge("ajet_swarm_completed_tasks_target", "tasks that complete a batch", pool.completed_task_target as f64),
        gauge("ajet_swarm_completed_non_dummy_tasks", "completed tasks whose rewards differ",
            pool.completed_non_dummy_tasks as f64),
        gauge("ajet_swarm_active_clients", "active clients in the batch", clients as f64),
        gauge("ajet_swarm_llm_calls_in_flight", "LLM calls in flight", snapshot.calls_in_flight as f64),
        counter("ajet_swarm_engine_restarts_total", "restarts of crashed engines", snapshot.restarts),
        Family::new("ajet_swarm_dropped_episodes_total",
            "train episodes dropped without being trained on, since the engine started", Values::Counter(dropped.to_vec())),
        histogram("ajet_swarm_episode_duration_seconds", "seconds from the claim of an episode to its end",
            &snapshot.durations.episode),
        histogram("ajet_swarm_update_duration_seconds", "seconds of an update of the weights",
            &snapshot.durations.update),
    ]
}

/// Returns the metrics of sampling, under vLLM's names without its prefix.
#[rustfmt::skip]
fn sampling_families(snapshot: &Snapshot) -> Vec<Family> {
    let (load, durations) = (snapshot.load, snapshot.durations);
    vec![
        gauge("ajet_num_requests_running", "LLM requests that are being sampled", load.running_requests as f64),
        gauge("ajet_num_requests_waiting", "LLM requests that are queued", load.waiting_requests as f64),
        gauge("ajet_kv_cache_usage_perc", "share of the KV cache in use, 0 to 1", load.cache_usage),
        counter("ajet_prompt_tokens_total", "tokens of started prompts", load.prompt_tokens),
        counter("ajet_generation_tokens_total", "sampled tokens", load.sampled_tokens),
        counter("ajet_prefix_cache_queries_total", "prompt tokens looked up in the prefix cache", load.prompt_tokens),
        counter("ajet_prefix_cache_hits_total", "prompt tokens found in the prefix cache", load.cached_tokens),
        counter("ajet_num_preemptions_total", "sequences that lost their cache for lack of memory", load.preemptions),
        histogram("ajet_time_to_first_token_seconds", "seconds from an LLM request to its first token",
            &durations.time_to_first_token),
        histogram("ajet_time_per_output_token_seconds", "seconds per further token of an answer",
            &durations.time_per_token),
        gauge("ajet_process_resident_memory_bytes", "resident memory of the engine", load.memory_bytes as f64),
    ]
}

/// Returns the metrics of each sampler elsewhere; none if the engine samples alone.
fn endpoint_families(load: &EngineLoad) -> Vec<Family> {
    let values = |of: fn(&EndpointLoad) -> Option<u64>| -> Vec<Labelled> {
        let labelled = |endpoint: &EndpointLoad| Some((Some(("endpoint", endpoint.url.clone())), of(endpoint)? as f64));
        load.endpoints.iter().filter_map(labelled).collect()
    };
    if load.endpoints.is_empty() {
        return vec![];
    }
    let up = values(|endpoint| Some(endpoint.problem.is_none().into()));
    let running = values(|endpoint| Some(endpoint.running_requests));
    let tokens = values(|endpoint| Some(endpoint.sampled_tokens));
    let version = values(|endpoint| endpoint.weight_version);
    vec![
        Family::new(
            "ajet_endpoint_up",
            "whether the endpoint can be used",
            Values::Gauge(up),
        ),
        Family::new(
            "ajet_endpoint_requests_running",
            "requests that the endpoint is sampling",
            Values::Gauge(running),
        ),
        Family::new(
            "ajet_endpoint_generation_tokens_total",
            "tokens sampled by the endpoint",
            Values::Counter(tokens),
        ),
        Family::new(
            "ajet_endpoint_weight_version",
            "version of the endpoint's weights",
            Values::Gauge(version),
        ),
    ]
}

/// Returns the metrics of the last update.
fn update_families(pool: &PoolInformation) -> Vec<Family> {
    let mut families: BTreeMap<String, BTreeMap<Option<&str>, f64>> = BTreeMap::new();
    for (name, value) in &pool.latest_metrics {
        let (family, of) = match name.split_once('/') {
            Some((family, of)) => (family, Some(of)),
            None => (name.as_str(), None),
        };
        let (family, value) = in_base_unit(family, *value);
        families.entry(identifier(&family)).or_default().insert(of, value);
    }
    let family = |(name, values): (String, BTreeMap<Option<&str>, f64>)| {
        let labelled = |(of, value): (Option<&str>, f64)| (of.map(|of| ("of", of.to_owned())), value);
        let values = values.into_iter().map(labelled).collect();
        Family::new(&name, "value of the last update", Values::Gauge(values))
    };
    families.into_iter().map(family).collect()
}

/// Converts MiB to bytes.
fn in_base_unit(name: &str, value: f64) -> (String, f64) {
    match name.strip_suffix("_mb") {
        Some(what) => (format!("{what}_bytes"), value * 1024.0 * 1024.0),
        None => (name.to_owned(), value),
    }
}

/// Converts a name to one that the format allows for a gauge.
fn identifier(name: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let name = format!("ajet_{}", name.chars().map(allowed).collect::<String>());
    match RESERVED.iter().any(|ending| name.ends_with(ending)) {
        true => format!("{name}_value"),
        false => name,
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sample() -> String {
        let pool = PoolInformation {
            engine_status: Some(EngineStatus::Rolling),
            global_step: 3,
            dropped_episodes: [("idle".to_owned(), 2)].into_iter().collect(),
            latest_metrics: [
                ("reward_mean", 0.5),
                ("reward_mean/ha\"rd", 0.25),
                ("seconds/update", 1.5),
                ("peak_memory_mb", 2.0),
                ("acc@1", f64::NAN),
                ("Tokens_total", 5.0),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect(),
            ..PoolInformation::default()
        };
        let load = EngineLoad {
            running_requests: 7,
            sampled_tokens: 90,
            endpoints: vec![
                EndpointLoad {
                    url: "http://box2:8000".into(),
                    weight_version: Some(3),
                    running_requests: 5,
                    sampled_tokens: 60,
                    problem: None,
                },
                EndpointLoad {
                    url: "http://box3:8000".into(),
                    problem: Some("cannot be reached".into()),
                    ..EndpointLoad::default()
                },
            ],
            ..EngineLoad::default()
        };
        let mut durations = Durations::default();
        durations.time_to_first_token.observe(0.02);
        text(&Snapshot {
            pool: &pool,
            load: &load,
            durations: &durations,
            slots: 8,
            calls_in_flight: 1,
            restarts: 4,
        })
    }

    #[test]
    fn every_figure_is_a_line_of_the_format() {
        let text = sample();
        for line in [
            "ajet_swarm_engine_status{status=\"ENGINE.ROLLING\"} 1",
            "ajet_swarm_engine_status{status=\"ENGINE.OFFLINE\"} 0",
            "ajet_swarm_global_step 3",
            "ajet_swarm_episode_slots 8",
            "ajet_swarm_dropped_episodes_total{reason=\"idle\"} 2",
            "ajet_swarm_dropped_episodes_total{reason=\"engine_lost\"} 0",
            "# TYPE ajet_swarm_engine_restarts_total counter",
            "ajet_swarm_engine_restarts_total 4",
            "ajet_num_requests_running 7",
            "ajet_generation_tokens_total 90",
            "ajet_endpoint_up{endpoint=\"http://box2:8000\"} 1",
            "ajet_endpoint_up{endpoint=\"http://box3:8000\"} 0",
            "ajet_endpoint_requests_running{endpoint=\"http://box2:8000\"} 5",
            "ajet_endpoint_generation_tokens_total{endpoint=\"http://box2:8000\"} 60",
            "ajet_endpoint_weight_version{endpoint=\"http://box2:8000\"} 3",
            "# TYPE ajet_time_to_first_token_seconds histogram",
            "ajet_time_to_first_token_seconds_bucket{le=\"0.01\"} 0",
            "ajet_time_to_first_token_seconds_bucket{le=\"0.025\"} 1",
            "ajet_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1",
            "ajet_time_to_first_token_seconds_sum 0.02",
            "ajet_time_to_first_token_seconds_count 1",
            "ajet_reward_mean 0.5",
            "ajet_reward_mean{of=\"ha\\\"rd\"} 0.25",
            "ajet_seconds{of=\"update\"} 1.5",
            "ajet_peak_memory_bytes 2097152",
            "ajet_acc_1 NaN",
            "ajet_tokens_total_value 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let types = text.lines().filter(|line| line.starts_with("# TYPE ajet_reward_mean"));
        assert_eq!(types.count(), 1, "a family appears once");
    }

    /// The rules of `promtool check metrics`.
    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let text = sample();
        let types: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .collect();
        let helped: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
            .map(|(name, help)| if help.is_empty() { "" } else { name })
            .collect();
        for (name, kind) in &types {
            assert!(helped.contains(name), "{name} has a help text");
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                "{name}"
            );
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            let words: Vec<&str> = name.split('_').collect();
            for word in [
                "gauge",
                "counter",
                "histogram",
                "summary",
                "ms",
                "mb",
                "kb",
                "milliseconds",
                "megabytes",
            ] {
                assert!(!words.contains(&word), "{name}");
            }
            if *kind == "gauge" {
                assert!(!RESERVED.iter().any(|ending| name.ends_with(ending)), "{name}");
            }
        }
        assert_eq!(helped.len(), types.len(), "names are unique");
    }

    /// A dashboard that queries a name which does not exist shows an empty panel.
    #[test]
    fn the_grafana_dashboard_queries_names_that_exist() {
        let dashboard = include_str!("../../docs/grafana.json");
        let exported = sample() + "\najet_loss 0\najet_kl 0\najet_entropy 0\najet_grad_norm 0\najet_eval 0\n";
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let names: BTreeSet<&str> = dashboard.split(word).filter(|word| word.starts_with("ajet_")).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            let is_there = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
            assert!(exported.lines().any(is_there), "{name}");
        }
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    }
}
