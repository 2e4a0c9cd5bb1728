//! `ajet-swarm stop`.

use std::process::ExitCode;

use super::server_url::ServerArgs;
use crate::note;
use crate::protocol::swarm::EngineStatus;

/// Options of the stop command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm stop
  ajet-swarm stop --swarm-url http://gpu-box:10086 --token \"$TOKEN\"

Exit codes: 0 no engine runs any more, 1 error, 2 wrong usage.")]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

/// Stops the engine of a server, which keeps running; a last checkpoint is written first.
///
/// # Errors
/// Fails if the server cannot be reached or refuses.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    let before = swarm.status().await?;
    swarm.stop_engine().await?;
    let experiment_dir = swarm.experiment_dir().await?;
    note!("{}", stop_message(before.engine_status, experiment_dir.as_deref()));
    Ok(ExitCode::SUCCESS)
}

/// Returns a message about what was stopped. A Python server may not report the experiment directory.
fn stop_message(before: EngineStatus, experiment_dir: Option<&str>) -> String {
    match (before, experiment_dir) {
        (EngineStatus::Offline, _) => "no engine was running".into(),
        (_, Some(dir)) => format!("stopped the engine (it was {before}); its experiment is in {dir}"),
        (_, None) => format!("stopped the engine (it was {before})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stopped_goes_by_the_status() {
        for (before, dir, expected) in [
            (EngineStatus::Offline, None, "no engine was running"),
            (EngineStatus::Offline, Some("/runs/x"), "no engine was running"),
            (
                EngineStatus::Rolling,
                None,
                "stopped the engine (it was ENGINE.ROLLING)",
            ),
            (
                EngineStatus::Booting,
                Some("/runs/x"),
                "stopped the engine (it was ENGINE.BOOTING); its experiment is in /runs/x",
            ),
        ] {
            assert_eq!(stop_message(before, dir), expected);
        }
    }
}
