//! The state of the swarm in Prometheus' text format.
//!
//! Metrics of an update have their name from `metrics.jsonl` with the prefix `ajet_`: `reward_mean` is
//! `ajet_reward_mean`; of a family such as `seconds/update`, the part after the slash is the label `of`. Metrics of the
//! server itself begin with `ajet_swarm_`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::protocol::engine::DropReason;
use crate::protocol::swarm::{EngineStatus, PoolInformation};

/// Content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values to export.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Engine, batch, episodes and clients.
    pub pool: &'a PoolInformation,
    /// Maximum number of claimed episodes.
    pub slots: usize,
    /// LLM calls in flight.
    pub calls_in_flight: usize,
    /// Restarts of crashed engines since the server started.
    pub restarts: u64,
}

/// A metric family: all values with their labels.
struct Family {
    name: String,
    kind: &'static str,
    help: String,
    values: Vec<(Option<(&'static str, String)>, f64)>,
}

impl Family {
    fn one(name: &str, kind: &'static str, help: &str, value: f64) -> Self {
        Self::many(name, kind, help, [(None, value)])
    }

    fn many(
        name: &str,
        kind: &'static str,
        help: &str,
        values: impl IntoIterator<Item = (Option<(&'static str, String)>, f64)>,
    ) -> Self {
        Self {
            name: format!("ajet_swarm_{name}"),
            kind,
            help: help.to_owned(),
            values: values.into_iter().collect(),
        }
    }
}

/// Formats all metrics as text.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for family in swarm_families(snapshot)
        .into_iter()
        .chain(update_families(snapshot.pool))
    {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(text, "# TYPE {} {}", family.name, family.kind);
        for (label, value) in &family.values {
            let _ = match label {
                Some((label, of)) => writeln!(text, "{}{{{label}=\"{}\"}} {value}", family.name, escaped(of)),
                None => writeln!(text, "{} {value}", family.name),
            };
        }
    }
    text
}

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
    let gauge = |name, help, value: f64| Family::one(name, "gauge", help, value);
    vec![
        Family::many("engine_status", "gauge", "1 for the current state", status),
        gauge("global_step", "step of the current batch", pool.global_step as f64),
        gauge("running_episodes", "claimed episodes", running as f64),
        gauge(
            "episode_slots",
            "maximum number of claimed episodes",
            snapshot.slots as f64,
        ),
        gauge(
            "completed_episodes",
            "finished train episodes in the batch",
            pool.completed_episodes as f64,
        ),
        gauge(
            "completed_episodes_target",
            "train episodes that complete a batch",
            pool.completed_episode_target as f64,
        ),
        gauge(
            "completed_tasks",
            "tasks with enough episodes in the batch",
            pool.completed_tasks as f64,
        ),
        gauge(
            "completed_tasks_target",
            "tasks that complete a batch",
            pool.completed_task_target as f64,
        ),
        gauge(
            "completed_non_dummy_tasks",
            "completed tasks whose rewards differ",
            pool.completed_non_dummy_tasks as f64,
        ),
        gauge(
            "active_clients",
            "active clients in the batch",
            pool.swarm_client_instruction.active_clients.len() as f64,
        ),
        gauge(
            "llm_calls_in_flight",
            "LLM calls in flight",
            snapshot.calls_in_flight as f64,
        ),
        Family::one(
            "engine_restarts_total",
            "counter",
            "restarts of crashed engines",
            snapshot.restarts as f64,
        ),
        Family::many(
            "dropped_episodes_total",
            "counter",
            "train episodes dropped without being trained on, since the engine started",
            dropped,
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
        families.entry(identifier(family)).or_default().insert(of, *value);
    }
    let family = |(name, values): (String, BTreeMap<Option<&str>, f64>)| Family {
        help: "value of the last update".to_owned(),
        name,
        kind: "gauge",
        values: values
            .into_iter()
            .map(|(of, value)| (of.map(|of| ("of", of.to_owned())), value))
            .collect(),
    };
    families.into_iter().map(family).collect()
}

/// Converts a name to one that the format allows.
fn identifier(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("ajet_{}", name.chars().map(allowed).collect::<String>())
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_line_of_the_format() {
        let pool = PoolInformation {
            engine_status: Some(EngineStatus::Rolling),
            global_step: 3,
            dropped_episodes: [("idle".to_owned(), 2)].into_iter().collect(),
            latest_metrics: [
                ("reward_mean", 0.5),
                ("reward_mean/ha\"rd", 0.25),
                ("seconds/update", 1.5),
                ("acc@1", f64::NAN),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect(),
            ..PoolInformation::default()
        };
        let snapshot = Snapshot {
            pool: &pool,
            slots: 8,
            calls_in_flight: 1,
            restarts: 4,
        };
        let text = text(&snapshot);
        for line in [
            "ajet_swarm_engine_status{status=\"ENGINE.ROLLING\"} 1",
            "ajet_swarm_engine_status{status=\"ENGINE.OFFLINE\"} 0",
            "ajet_swarm_global_step 3",
            "ajet_swarm_episode_slots 8",
            "ajet_swarm_dropped_episodes_total{reason=\"idle\"} 2",
            "ajet_swarm_dropped_episodes_total{reason=\"engine_lost\"} 0",
            "# TYPE ajet_swarm_engine_restarts_total counter",
            "ajet_swarm_engine_restarts_total 4",
            "ajet_reward_mean 0.5",
            "ajet_reward_mean{of=\"ha\\\"rd\"} 0.25",
            "ajet_seconds{of=\"update\"} 1.5",
            "ajet_acc_1 NaN",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let types = text.lines().filter(|line| line.starts_with("# TYPE ajet_reward_mean"));
        assert_eq!(types.count(), 1, "a family is told once");
    }
}
