//! Metrics of runs beside each other: as a table, a chart for the terminal, JSON or CSV. Pure.

mod chart;
mod table;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::protocol::status::StepMetrics;

pub use chart::chart;
pub use table::table;

/// Metrics that are compared if none are named.
pub const USUAL: [&str; 9] = [
    "reward_mean",
    "eval/reward_mean",
    "success_rate",
    "loss",
    "kl",
    "entropy",
    "grad_norm",
    "response_length_mean",
    "seconds/update",
];

/// A run with its metrics by step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunMetrics {
    /// Name.
    pub run: String,
    /// Steps in ascending order.
    pub steps: Vec<StepMetrics>,
}

impl RunMetrics {
    /// Returns step and value of a metric, where it was measured.
    pub fn series(&self, name: &str) -> Vec<(u64, f64)> {
        let values = self
            .steps
            .iter()
            .filter_map(|step| Some((step.global_step, *step.metrics.get(name)?)));
        values.collect()
    }
}

/// Returns the metrics to compare: the named ones (a trailing `*` matches any ending), or the usual ones, that any run
/// has.
pub fn metrics(runs: &[RunMetrics], keys: &[String]) -> Vec<String> {
    let all: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| &run.steps)
        .flat_map(|step| step.metrics.keys().map(String::as_str))
        .filter(|name| *name != "global_step")
        .collect();
    let usual = USUAL.map(str::to_owned);
    let wanted = if keys.is_empty() { &usual[..] } else { keys };
    let mut found: Vec<String> = vec![];
    for key in wanted {
        let matches = |name: &&&str| match key.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => **name == key,
        };
        let new: Vec<&&str> = all
            .iter()
            .filter(matches)
            .filter(|name| !found.iter().any(|f| f == **name))
            .collect();
        found.extend(new.into_iter().map(|name| (*name).to_owned()));
    }
    found
}

/// Returns the values as CSV: a line for each run and step, a column for each metric.
pub fn csv(runs: &[RunMetrics], metrics: &[String]) -> String {
    let header = ["run", "global_step"]
        .into_iter()
        .chain(metrics.iter().map(String::as_str));
    let mut text = header.map(quoted).collect::<Vec<_>>().join(",") + "\n";
    for run in runs {
        for step in &run.steps {
            let value = |name: &String| step.metrics.get(name).map_or_else(String::new, f64::to_string);
            let cells = [quoted(&run.run), step.global_step.to_string()];
            let cells: Vec<String> = cells.into_iter().chain(metrics.iter().map(value)).collect();
            text += &(cells.join(",") + "\n");
        }
    }
    text
}

/// Quotes a cell that has a separator in it.
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run with these values of `reward_mean` from step 1 on.
    pub(super) fn run(name: &str, rewards: &[f64]) -> RunMetrics {
        let step = |(number, reward): (usize, &f64)| StepMetrics {
            global_step: number as u64 + 1,
            metrics: [("global_step", number as f64 + 1.0), ("reward_mean", *reward)]
                .map(|(name, value)| (name.to_owned(), value))
                .into_iter()
                .collect(),
        };
        RunMetrics {
            run: name.into(),
            steps: rewards.iter().enumerate().map(step).collect(),
        }
    }

    #[test]
    fn the_usual_metrics_are_those_that_a_run_has() {
        let mut runs = vec![run("a", &[0.5])];
        runs[0].steps[0].metrics.insert("seconds/export".into(), 1.0);
        assert_eq!(metrics(&runs, &[]), ["reward_mean"]);
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            metrics(&runs, &keys(&["seconds/*", "reward*", "s*", "none"])),
            ["seconds/export", "reward_mean"]
        );
    }

    #[test]
    fn csv_has_a_line_for_each_run_and_step() {
        let runs = [run("a, b", &[0.5]), run("c", &[1.0, 0.25])];
        let metrics = vec!["reward_mean".to_owned(), "loss".to_owned()];
        let lines = "run,global_step,reward_mean,loss\n\"a, b\",1,0.5,\nc,1,1,\nc,2,0.25,\n";
        assert_eq!(csv(&runs, &metrics), lines);
    }
}
