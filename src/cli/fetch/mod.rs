//! `ajet-swarm fetch`.

mod choice;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use self::choice::{Choice, choose, kind, size, table};
use super::hosting::FETCHED;
use super::server_url::ServerArgs;
use crate::client::fetch::{FetchError, Fetched, fetch, fetch_metrics, fetch_transcripts, selected};
use crate::client::{ClientError, SwarmClient};
use crate::counted::counted;
use crate::protocol::checkpoint::CheckpointsAnswer;
use crate::{note, say, terminal};

const EXAMPLES: &str = "\
An interrupted fetch continues when it is run again. With --trainer-state, an experiment can be resumed from it.

Examples:
  ajet-swarm fetch my-model
  ajet-swarm fetch --best my-model --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm fetch --metrics metrics.jsonl --transcripts transcripts
  ajet-swarm fetch --list";

/// Options of the fetch command.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{FETCHED} {EXAMPLES}"))]
pub struct Args {
    /// Directory to write the checkpoint to, which must be missing or empty.
    #[arg(value_name = "DIR", required_unless_present_any = ["list", "metrics", "transcripts"])]
    dir: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Fetch the state of the optimizer too, which is about twice as large as the trained weights.
    #[arg(long, requires = "dir")]
    trainer_state: bool,
    /// Fetch the metrics of all steps to this file, a JSON object a line; a file of metrics is replaced.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Fetch what episodes said to this directory: train/step_1.jsonl and so on, an episode a line. New ones are appended.
    #[arg(long, value_name = "DIR")]
    transcripts: Option<PathBuf>,
    /// Fetch transcripts with token ids, log-probabilities and advantages.
    #[arg(long, requires = "transcripts")]
    tokens: bool,
    /// Name of an experiment in the server's directory, instead of the current or last one.
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// List the checkpoints of the experiment instead; where the server has started none, the experiments.
    #[arg(long, conflicts_with_all = ["dir", "step", "best", "latest", "metrics", "transcripts"])]
    list: bool,
    /// Print what was fetched, or the list, as JSON: an object a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Fetches a checkpoint, metrics and transcripts from the server, and prints where they are.
///
/// # Errors
/// Fails if there is no such experiment or checkpoint, the server cannot be reached, or a file cannot be written.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    if args.list {
        return list(&swarm, &args).await;
    }
    if let Some(dir) = &args.dir {
        checkpoint(&swarm, &args, dir).await?;
    }
    if let Some(file) = &args.metrics {
        let (run, steps) = match fetch_metrics(&swarm, args.run.as_deref(), file).await {
            Ok(fetched) => fetched,
            Err(error) => {
                return Err(explained(&swarm, &args, error.into())
                    .await
                    .context("cannot fetch metrics"));
            }
        };
        print(&args, file, json!({"metrics": file, "run": run, "steps": steps}));
    }
    if let Some(dir) = &args.transcripts {
        transcripts(&swarm, &args, dir).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn checkpoint(swarm: &SwarmClient, args: &Args, dir: &Path) -> anyhow::Result<()> {
    let run = args.run.as_deref();
    let listing = listing(swarm, args).await?;
    let chosen = choose(&listing, &args.choice)?;
    let manifest = selected(&chosen.manifest, args.trainer_state);
    note!(
        "fetching step {} of {}: {} in {}, {}",
        manifest.global_step,
        listing.experiment,
        kind(chosen.kind),
        counted(manifest.files.len() as u64, "file"),
        size(manifest.bytes())
    );
    let bar = bar(
        Some(manifest.bytes()),
        "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    let fetched = fetch(swarm, run, &manifest, dir, &mut |present| bar.set_position(present)).await;
    bar.finish_and_clear();
    fetched.with_context(|| format!("cannot fetch the checkpoint of step {}", manifest.global_step))?;
    let what = json!({"checkpoint": dir, "run": listing.experiment, "global_step": manifest.global_step});
    print(args, dir, what);
    Ok(())
}

async fn transcripts(swarm: &SwarmClient, args: &Args, dir: &Path) -> anyhow::Result<()> {
    let bar = bar(None, "{spinner} {pos} transcripts, {per_sec}");
    let run = args.run.as_deref();
    let fetched = fetch_transcripts(swarm, run, dir, args.tokens, &mut |so_far| bar.set_position(so_far.new)).await;
    bar.finish_and_clear();
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(error) => {
            return Err(explained(swarm, args, error.into())
                .await
                .context("cannot fetch transcripts"));
        }
    };
    note!("{}", told(&fetched));
    let what = json!({
        "transcripts": dir, "new": fetched.new, "completed": fetched.completed, "present": fetched.present,
        "without_transcript": fetched.without,
    });
    print(args, dir, what);
    Ok(())
}

/// What a fetch of transcripts did, as a sentence.
fn told(fetched: &Fetched) -> String {
    let mut parts = vec![counted(fetched.new, "new transcript")];
    if fetched.completed > 0 {
        parts.push(format!(
            "the tokens of {} that had none",
            counted(fetched.completed, "transcript")
        ));
    }
    parts.push(format!("{} here already", fetched.present));
    if fetched.without > 0 {
        parts.push(format!(
            "the server keeps none of {}",
            counted(fetched.without, "episode")
        ));
    }
    parts.join("; ")
}

/// Prints where something was written, or what was written as JSON.
fn print(args: &Args, path: &Path, what: serde_json::Value) {
    match args.json {
        true => terminal::print(&format!("{what}\n")),
        false => say!("{}", path.display()),
    }
}

async fn list(swarm: &SwarmClient, args: &Args) -> anyhow::Result<ExitCode> {
    match swarm.checkpoints(args.run.as_deref()).await {
        Ok(listing) if args.json => terminal::print(&format!("{}\n", json!(listing))),
        Ok(listing) => terminal::print(&table(&listing)),
        Err(error) if args.run.is_none() && is_missing(&error) => {
            let runs = swarm.runs().await?;
            match args.json {
                true => terminal::print(&format!("{}\n", json!(runs))),
                false => terminal::print(&choice::runs(&runs)),
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

async fn listing(swarm: &SwarmClient, args: &Args) -> anyhow::Result<CheckpointsAnswer> {
    match swarm.checkpoints(args.run.as_deref()).await {
        Ok(listing) => Ok(listing),
        Err(error) => Err(explained(swarm, args, error.into()).await),
    }
}

/// Returns whether the server knows no such experiment.
fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 404, .. })
}

/// Adds the names of the experiments where the server knows none that is meant.
async fn explained(swarm: &SwarmClient, args: &Args, error: anyhow::Error) -> anyhow::Error {
    let is_refused = match error.downcast_ref() {
        Some(FetchError::Client(error)) => is_missing(error),
        _ => error.downcast_ref().is_some_and(is_missing),
    };
    let Ok(runs) = swarm.runs().await else {
        return error;
    };
    match &args.run {
        _ if !is_refused || runs.runs.is_empty() => error,
        Some(name) if runs.runs.iter().any(|run| run.name == *name) => error,
        Some(name) => anyhow!(choice::unknown_run(name, &runs)),
        None => anyhow!(choice::no_current_run(&runs)),
    }
}

/// Returns a bar on a terminal's stderr, or a hidden one.
fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    // The templates are constants; with one that is not valid, the default bar remains.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}
