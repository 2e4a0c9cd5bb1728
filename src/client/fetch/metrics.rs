//! Fetching the metrics of an experiment into a file of this machine, a step a line as in the server's `metrics.jsonl`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use indexmap::IndexMap;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{FetchError, Result, io};
use crate::client::SwarmClient;
use crate::config::small_file::open_regular;
use crate::protocol::status::StepMetrics;

/// Fetches the metrics of an experiment, without a name of the current or last one. A file of metrics that exists is
/// replaced as a whole. Returns the experiment's name and the number of steps.
///
/// # Errors
/// Fails if the server knows no such experiment or cannot be reached, or the file holds something else or cannot be
/// written.
pub async fn fetch_metrics(swarm: &SwarmClient, run: Option<&str>, path: &Path) -> Result<(String, usize)> {
    if path.exists() && !holds_metrics(path)? {
        return Err(FetchError::NoMetrics(path.to_owned()));
    }
    let history = swarm.history(run).await?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = NamedTempFile::new_in(parent.unwrap_or(Path::new("."))).map_err(io(path))?;
    for step in &history.steps {
        file.write_all(line(step).as_bytes()).map_err(io(path))?;
    }
    file.persist(path).map_err(|error| io(path)(error.error))?;
    Ok((history.run, history.steps.len()))
}

/// Returns whether a file is empty or begins with a step's metrics.
fn holds_metrics(path: &Path) -> Result<bool> {
    let mut first = String::new();
    let file = open_regular(path).map_err(io(path))?;
    let read = BufReader::new(file).read_line(&mut first);
    let is_step = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|step| step["global_step"].is_u64());
    Ok(read.is_ok() && (first.is_empty() || is_step(&first)))
}

fn line(step: &StepMetrics) -> String {
    let mut line: IndexMap<&str, Value> = [("global_step", step.global_step.into())].into();
    let metrics = step.metrics.iter().filter(|(name, _)| *name != "global_step");
    line.extend(metrics.map(|(name, value)| (name.as_str(), json!(value))));
    format!("{}\n", json!(line))
}
