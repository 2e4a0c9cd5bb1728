//! `ajet-swarm compare`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;

use super::server_url::ServerArgs;
use crate::client::SwarmClient;
use crate::compare::{RunMetrics, chart, csv, metrics, table};
use crate::protocol::run_files::METRICS_FILE;
use crate::runs::{HistoryQuery, MetricsIndex};
use crate::terminal;

/// Columns of the chart if the output is no terminal.
const COLUMNS: usize = 80;
/// Steps read at once.
const PAGE: usize = 5000;

/// Options of the compare command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A run is a directory with metrics.jsonl, or the name of an experiment on the server. A cell of the table has the last \
value and, in parentheses, the mean of the last ten.

Examples:
  ajet-swarm compare saved_experiments/a saved_experiments/b
  ajet-swarm compare a b --swarm-url http://gpu-box:10086 --chart 'eval/reward_mean'
  ajet-swarm compare a b --keys 'seconds/*' --csv > times.csv")]
pub struct Args {
    /// Directories of experiments, or names of experiments on the server.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Metrics to compare; a trailing `*` matches any ending.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    keys: Vec<String>,
    /// Metric of the chart.
    #[arg(long, value_name = "NAME", default_value = "reward_mean")]
    chart: String,
    /// Print all values as JSON.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print the values as CSV.
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the metrics of runs beside each other.
///
/// # Errors
/// Fails if a run cannot be read or has no metrics.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut runs = vec![];
    for name in &args.runs {
        let run = read(name, &args.server)
            .await
            .with_context(|| format!("cannot read the run {name:?}"))?;
        if run.steps.is_empty() {
            bail!("the run {name:?} has no metrics yet; hint: they are written after each update");
        }
        runs.push(run);
    }
    let metrics = metrics(&runs, &args.keys);
    if args.json {
        terminal::print(&format!("{}\n", json!({"runs": runs})));
    } else if args.csv {
        terminal::print(&csv(&runs, &metrics));
    } else {
        let width = crossterm::terminal::size().map_or(COLUMNS, |(columns, _)| columns.into());
        terminal::print(&format!(
            "{}\n{}",
            table(&runs, &metrics),
            chart(&runs, &args.chart, width)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a run from a directory of that path, or else from the server.
async fn read(name: &str, server: &ServerArgs) -> anyhow::Result<RunMetrics> {
    let dir = Path::new(name);
    if dir.join(METRICS_FILE).is_file() {
        return read_directory(dir);
    }
    if dir.is_dir() || name.contains('/') {
        bail!(
            "{} has no {METRICS_FILE}; hint: name the directory of an experiment",
            dir.display()
        );
    }
    read_server(&server.client()?, name).await
}

fn read_directory(dir: &Path) -> anyhow::Result<RunMetrics> {
    let mut index = MetricsIndex::new(dir);
    let (mut steps, mut since) = (vec![], Some(0));
    while let Some(first) = since {
        let query = HistoryQuery {
            since: first,
            limit: Some(PAGE),
            ..HistoryQuery::default()
        };
        let (page, next) = index.read(&query)?;
        steps.extend(page);
        since = next;
    }
    let name = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = name
        .file_name()
        .unwrap_or(dir.as_os_str())
        .to_string_lossy()
        .into_owned();
    Ok(RunMetrics { run: name, steps })
}

async fn read_server(swarm: &SwarmClient, name: &str) -> anyhow::Result<RunMetrics> {
    let history = swarm.history(Some(name)).await?;
    Ok(RunMetrics {
        run: name.to_owned(),
        steps: history.steps,
    })
}
