//! `ajet-swarm overwatch`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::server_url::ServerArgs;
use crate::overwatch::{Source, State, WatchError, plain_text, unix_now, watch};
use crate::terminal;

/// Options of the dashboard.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ajet-swarm overwatch
  ajet-swarm overwatch --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm overwatch --replay saved_experiments/my_run
  ajet-swarm overwatch --once | grep learning
  ajet-swarm overwatch --once --json | jq .batch.seconds_left

Press ? for the keys.")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Show the files of a run instead of a server: the directory of its experiment.
    #[arg(long, value_name = "RUN")]
    replay: Option<PathBuf>,
    /// Print one snapshot as plain text and exit; fails if the server does not answer.
    #[arg(long)]
    once: bool,
    /// With `--once`: print the server's state as JSON, as `GET /status` answers it.
    #[arg(long, requires = "once")]
    json: bool,
    /// Minimum seconds between two updates of the screen, from 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    refresh_interval: f64,
}

fn seconds(given: &str) -> Result<f64, String> {
    match given.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("expected a number of seconds from 0.1 to 3600, got {given}")),
    }
}

/// Shows the dashboard until the user quits, or prints one snapshot.
///
/// # Errors
/// Fails if the URL is invalid, a single snapshot finds no server, a replay finds no run, or the terminal cannot be used.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (source, name) = source(&args)?;
    if args.json {
        let status = serde_json::to_string_pretty(&source.status().await?)?;
        terminal::print(&format!("{}\n", terminal::json(&status)));
    } else if !args.once && std::io::stdout().is_terminal() {
        let color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        watch(source, name, color, Duration::from_secs_f64(args.refresh_interval)).await?;
    } else {
        terminal::print(&snapshot(&source, name).await?);
    }
    Ok(ExitCode::SUCCESS)
}

fn source(args: &Args) -> anyhow::Result<(Source, String)> {
    if let Some(dir) = &args.replay {
        return Ok((
            Source::Replay(dir.clone()),
            terminal::one_line(&dir.display().to_string()),
        ));
    }
    let swarm = args.server.client()?;
    let name = swarm.url().to_string();
    Ok((Source::Server(swarm), name))
}

async fn snapshot(source: &Source, name: String) -> Result<String, WatchError> {
    let mut state = State::new(name, unix_now());
    for update in source.once().await? {
        state.take(update, unix_now());
    }
    Ok(plain_text(&state))
}
