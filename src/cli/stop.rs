//! `ajet-swarm stop`.

use std::process::ExitCode;

use super::server_url::ServerArgs;
use crate::note;

/// Whose engine is stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm stop
  ajet-swarm stop --swarm-url http://gpu-box:10086 --token \"$TOKEN\"")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

/// Stops the engine of a server, which stays up; a last checkpoint is written first.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    let before = swarm.status().await?;
    swarm.stop_engine().await?;
    match swarm.experiment_dir().await? {
        Some(dir) => note!(
            "the engine is stopped (it was {}); its experiment is in {dir}",
            before.engine_status
        ),
        None => note!("no engine was running"),
    }
    Ok(ExitCode::SUCCESS)
}
