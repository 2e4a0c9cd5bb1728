//! `ajet-swarm engine`: the child process of `start` that owns the model. Hidden: `start` runs it.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::engine::boot::{Options, run as run_engine};

/// How long an engine whose server is gone may live on, whatever it is doing. Others wait for its directory, and what is on
/// disk is whole at any moment.
pub(super) const ABANDONED: Duration = Duration::from_millis(300);

/// What `start` runs to load, sample and train a model. It ends when its standard input closes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Unix socket to serve.
    #[arg(long)]
    socket: PathBuf,
    /// The whole training configuration, as YAML.
    #[arg(long)]
    config: PathBuf,
    /// Where checkpoints, journal and metrics go.
    #[arg(long)]
    experiment_dir: PathBuf,
}

/// Runs an engine to its end.
///
/// # Errors
///
/// It could not boot, or could not go on.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        socket: args.socket,
        config: args.config,
        experiment_dir: args.experiment_dir,
    };
    // Past the limit of `ulimit -f`, a write is to fail as on a full disk, and not to end the process.
    let _handled = signal(SignalKind::from_raw(nix::libc::SIGXFSZ))?;
    run_engine(options, standard_input_closed()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Resolves when the other end of standard input is gone; the process ends soon after, however busy. Read on a thread of
/// its own, which a runtime need not wait for.
pub(super) fn standard_input_closed() -> std::io::Result<impl Future<Output = ()>> {
    let (closed, wait) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut [0; 64]), Ok(1..)) {}
        let _ = closed.send(()); // the engine has ended by itself
        std::thread::sleep(ABANDONED);
        std::process::exit(0);
    })?;
    Ok(async {
        let _ = wait.await; // a sender that is gone means the same
    })
}
