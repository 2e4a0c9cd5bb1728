//! `ajet-swarm engine`: the child process of `start` that owns the model. Hidden, since `start` runs it.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::log::LogArgs;
use crate::engine::boot::{Options, Purpose, run as run_engine};

/// Maximum lifetime of an engine after its server is gone, whatever it is doing. Others wait for its directory, and the
/// files on disk are consistent at any moment.
pub(super) const ABANDONED: Duration = Duration::from_millis(300);

/// Run an engine, as `start` does: load a model, sample and train. Ends when standard input closes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Unix socket to serve.
    #[arg(long)]
    socket: PathBuf,
    /// Complete training configuration, as JSON.
    #[arg(long)]
    config: PathBuf,
    /// Directory of checkpoints, journal and metrics.
    #[arg(long)]
    experiment_dir: PathBuf,
    /// Sample only, without a trainer.
    #[arg(long)]
    sampling_only: bool,
    /// LoRA adapter on the model.
    #[arg(long, value_name = "DIR", requires = "sampling_only")]
    adapter: Option<PathBuf>,
    /// Format of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs an engine until it ends.
///
/// # Errors
///
/// Fails if the engine cannot boot or continue.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        socket: args.socket,
        config: args.config,
        experiment_dir: args.experiment_dir,
        purpose: match args.sampling_only {
            true => Purpose::Sampling { adapter: args.adapter },
            false => Purpose::Training,
        },
    };
    // Beyond the limit of `ulimit -f`, a write must fail as on a full disk instead of ending the process.
    let _handled = signal(SignalKind::from_raw(nix::libc::SIGXFSZ))?;
    run_engine(options, standard_input_closed()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Completes when standard input is closed; the process ends soon after, however busy. Reads on a separate thread, for
/// which the runtime need not wait.
pub(super) fn standard_input_closed() -> std::io::Result<impl Future<Output = ()>> {
    let (closed, wait) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut [0; 64]), Ok(1..)) {}
        let _ = closed.send(()); // the engine may have ended already
        std::thread::sleep(ABANDONED);
        std::process::exit(0);
    })?;
    Ok(async {
        let _ = wait.await; // a dropped sender means the same
    })
}
