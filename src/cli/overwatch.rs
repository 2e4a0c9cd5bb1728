//! `ajet-swarm overwatch`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;

use super::server_url::ServerArgs;
use crate::client::http_client;
use crate::overwatch::{Collector, State, plain_text, unix_now, watch};
use crate::terminal;

/// Options of the dashboard.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ajet-swarm overwatch
  ajet-swarm overwatch --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm overwatch --once | grep reward")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print one snapshot as plain text and exit; fails if the server does not answer.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two requests to the server, from 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
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
/// Fails if the URL is invalid, a single snapshot finds no server, or the terminal cannot be used.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let url = args.server.url()?;
    let base = url.join("");
    let collector = Collector::new(http_client(&base)?, base);

    if !args.once && std::io::stdout().is_terminal() {
        let color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        watch(
            collector,
            url.to_string(),
            color,
            Duration::from_secs_f64(args.refresh_interval),
        )
        .await?;
        return Ok(ExitCode::SUCCESS);
    }
    let hint = "hint: check that the server is running (`ajet-swarm start`) and that --swarm-url is correct";
    let snapshot = collector
        .snapshot()
        .await
        .map_err(|reason| anyhow!("{url}: {reason}; {hint}"))?;
    let mut state = State::new(url.to_string(), unix_now());
    state.take(Ok(snapshot), unix_now());
    terminal::print(&plain_text(&state));
    Ok(ExitCode::SUCCESS)
}
