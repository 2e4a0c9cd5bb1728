//! `ajet-swarm engine`: the child process of `start` that owns the model. Hidden, since `start` runs it.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::log::LogArgs;
use crate::collective::{Alone, Collective};
use crate::engine::boot::{Options, Purpose, run as run_engine};
use crate::engine::ranks;

/// Maximum lifetime of an engine after its server is gone, whatever it is doing. Others wait for its directory, and the
/// files on disk are consistent at any moment.
pub(super) const ABANDONED: Duration = Duration::from_millis(300);

/// How long the first rank waits for the others to end.
const LEAVE: Duration = Duration::from_secs(3);

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
    /// Be one of the ranks that an MPI launcher has started.
    #[arg(long, conflicts_with = "sampling_only")]
    mpi: bool,
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
    let collective: Arc<dyn Collective> = match args.mpi {
        true => ranks::join()?,
        false => Arc::new(Alone),
    };
    if collective.rank() > 0 {
        let rank = collective.clone();
        let followed = tokio::task::spawn_blocking(move || ranks::follow(&rank)).await?;
        if let Err(error) = followed {
            // At once: the end of MPI would wait for the other ranks, and the launcher ends them when one fails.
            tracing::error!("{error}");
            std::process::exit(1);
        }
        collective.leave();
        return Ok(ExitCode::SUCCESS);
    }
    run_engine(options, collective.clone(), standard_input_closed()?).await?;
    // The model thread, and with it the links to the other ranks, ends when the last answer is gone.
    let leaving = tokio::task::spawn_blocking(move || collective.leave());
    if tokio::time::timeout(LEAVE, leaving).await.is_err() {
        std::process::exit(0);
    }
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
