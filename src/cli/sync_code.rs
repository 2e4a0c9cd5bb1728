//! `ajet-swarm sync-code`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::server_url::ServerArgs;
use crate::client::{ClientError, Sources, SwarmClient, pack_sources};
use crate::counted::counted;
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer};
use crate::{note, say, terminal};

/// Interval between lines about one stage of a boot.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Options of the sync-code command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm sync-code --dry-run                show which files would be sent
  ajet-swarm sync-code --force-restart          send them and restart the engine with them
  ajet-swarm sync-code ~/src/ajet-swarm --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm sync-code --built-in               go back to the server's own engine
  ajet-swarm sync-code --build-log              show the compiler's output")]
pub struct Args {
    /// Checkout of ajet-swarm, or a folder in it. The files that git tracks are sent, with their uncommitted changes.
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Stop an engine that runs, and start it again with the new code.
    #[arg(long)]
    force_restart: bool,
    /// Print the files that would be sent, and name those that would not.
    #[arg(long, conflicts_with_all = ["force_restart", "built_in", "build_log"])]
    dry_run: bool,
    /// Send nothing: let the next engine be the server's built-in one.
    #[arg(long, conflicts_with = "build_log")]
    built_in: bool,
    /// Print the output of the server's last build.
    #[arg(long, conflicts_with = "force_restart")]
    build_log: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Sends the training code of a checkout to a server, whose next engine is built from it. Prints its path there.
///
/// # Errors
/// Fails if there is no checkout, if the server cannot be reached or refuses, or if the restarted engine does not boot.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        return dry_run(&args.dir);
    }
    let swarm = args.server.client()?;
    if args.build_log {
        terminal::print(&terminal::printable(&swarm.synced_code().await?.build_log));
        return Ok(ExitCode::SUCCESS);
    }
    let status = swarm.status().await?.engine_status;
    let is_running = status != EngineStatus::Offline;
    if is_running && !args.force_restart {
        bail!(
            "the engine is {status}, and its code can only be changed while it is offline\n\
             hint: --force-restart stops it and starts it again with the new code"
        );
    }
    match args.built_in {
        true => use_built_in(&swarm, is_running).await?,
        false => send(&swarm, &args.dir, args.force_restart).await?,
    }
    if is_running {
        start(&swarm).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn dry_run(dir: &Path) -> anyhow::Result<ExitCode> {
    let sources = Sources::find(dir)?;
    let archive = pack_sources(&sources)?;
    for file in &sources.files {
        say!("{}", Sources::archived(file));
    }
    warn_left_out(&sources);
    note!(
        "{} of {} would be sent ({} bytes)",
        counted(sources.files.len() as u64, "file"),
        sources.root.display(),
        archive.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Names what is not sent: a forgotten `git add` is the usual mistake.
fn warn_left_out(sources: &Sources) {
    for file in &sources.left_out {
        note!("warning: {file} is not sent; hint: `git add {file}` if it is part of the training code");
    }
}

async fn send(swarm: &SwarmClient, dir: &Path, force_restart: bool) -> anyhow::Result<()> {
    let (sources, answer) = swarm.sync_train_code_from_dir(dir, force_restart).await?;
    warn_left_out(&sources);
    note!("{}", answer.message);
    say!("{}", answer.temp_ajet_code_path);
    Ok(())
}

async fn use_built_in(swarm: &SwarmClient, is_running: bool) -> anyhow::Result<()> {
    if is_running {
        swarm.stop_engine().await?;
    }
    note!("{}", swarm.deselect_train_code().await?.message);
    Ok(())
}

/// Starts the engine and shows its boot; what the compiler says follows if there is none.
async fn start(swarm: &SwarmClient) -> anyhow::Result<()> {
    let mut stages = Stages::default();
    let started = swarm
        .start_engine(|status| {
            if let Some(line) = stages.line(status, Instant::now()) {
                note!("{line}");
            }
        })
        .await;
    if let Err(ClientError::Boot { .. }) = &started
        && let Ok(code) = swarm.synced_code().await
    {
        note!("{}", code.build_log.trim_end());
    }
    started?;
    note!("the engine is running");
    Ok(())
}

/// Chooses the lines about a boot that are worth showing.
#[derive(Debug, Default)]
struct Stages {
    shown: Option<(String, Instant)>,
}

impl Stages {
    /// Returns a line when a stage begins, and now and then while it lasts.
    fn line(&mut self, status: &EngineStatusAnswer, now: Instant) -> Option<String> {
        let detail = status.engine_status_detail.clone()?;
        let stage = detail.split(':').next().unwrap_or_default().to_owned();
        let is_due = match &self.shown {
            Some((shown, at)) => *shown != stage || now.duration_since(*at) >= LINE_INTERVAL,
            None => true,
        };
        is_due.then(|| {
            self.shown = Some((stage, now));
            detail
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_told_by_its_stages() {
        let mut stages = Stages::default();
        let start = Instant::now();
        let shown: Vec<bool> = [
            (0, "building: 1 of 9"),
            (1, "building: 2 of 9"),
            (11, "building: 8 of 9"),
            (12, "loading the model"),
            (13, "loading the model"),
        ]
        .into_iter()
        .map(|(seconds, detail)| {
            let status = EngineStatusAnswer {
                engine_status: EngineStatus::Booting,
                engine_status_detail: Some(detail.into()),
                global_step: 0,
            };
            stages.line(&status, start + Duration::from_secs(seconds)).is_some()
        })
        .collect();
        assert_eq!(shown, [true, false, true, true, false]);
    }
}
