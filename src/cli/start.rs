//! `ajet-swarm start`: runs a swarm server.

use std::future::Future;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;

use super::access::{Access, AccessToken};
use super::engine::ABANDONED;
use super::log::LogArgs;
use crate::client::SwarmClient;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{Strictness, experiment, load_over};
use crate::model::device;
use crate::model::kernels::Pool;
use crate::protocol::swarm::DEFAULT_PORT;
use crate::roll::{EndSignals, STAY};
use crate::server::engine::resume;
use crate::server::http::tls;
use crate::server::{ChildLauncher, CodeAccess, CodeOptions, Devices, Hosts, Limits, Options, RankCommand, Server};
use crate::terminal;

/// Python clients that start a server wait for this line in its output.
const SERVING: &str = "Interchange server is running in blocking mode";

/// Start a swarm server: clients send a training configuration and run episodes, the engine samples and trains.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm start                          for clients on this machine
  ajet-swarm start --host 0.0.0.0           for clients elsewhere; prints a token that they need
  ajet-swarm start --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  ajet-swarm start --continue               after a crash or a reboot: resume what ran here
  ssh -N -L 10086:127.0.0.1:10086 gpu-box   on a laptop, to reach a server that only listens locally")]
pub struct Args {
    /// Port to listen on; 0 selects a free one.
    #[arg(long, alias = "port", value_name = "PORT", default_value_t = DEFAULT_PORT)]
    swarm_port: u16,
    #[command(flatten)]
    access: Access,
    /// Serve TLS: file with the certificate chain (PEM). Clients use https://.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Configuration (YAML) that provides the keys missing in a client's configuration.
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Resume an interrupted experiment: the newest one in the current directory, or the one in DIR.
    #[arg(long = "continue", value_name = "DIR", num_args = 0..=1, require_equals = true)]
    resume: Option<Option<PathBuf>>,
    /// Run engines from this program, an ajet-swarm built from other sources, unless training code was synced.
    #[arg(long, value_name = "PROGRAM")]
    engine: Option<PathBuf>,
    /// Start every engine as several ranks, by a command such as `mpirun -np 4` or `srun --ntasks={ranks}`: {ranks} is
    /// replaced by n_gpus_per_node × nnodes of the configuration, on each machine at most its devices.
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<Words>,
    /// Maximum seconds without progress while an engine boots.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    boot_timeout: f64,
    /// Take training code (`ajet-swarm sync-code`) without a token: everyone who reaches the port can run code here.
    #[arg(long, conflicts_with = "no_code_sync")]
    allow_code_sync: bool,
    /// Refuse training code, and run none that was synced before.
    #[arg(long)]
    no_code_sync: bool,
    /// Run the built-in engine, not the training code that was synced to an earlier server here.
    #[arg(long)]
    no_synced_code: bool,
    /// Maximum seconds for the build of synced training code.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
    build_timeout: f64,
    /// Format of the log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Exit when standard input closes, unless it said to stay, as for a server started by `roll`.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
    /// Ignored; accepted for compatibility with AgentJet's server.
    #[arg(long, alias = "db", hide = true, num_args = 0..=1, default_missing_value = "")]
    debug: Option<String>,
    /// Ignored; accepted for compatibility with AgentJet's server.
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    kill: Option<String>,
    /// Ignored; accepted for compatibility with AgentJet's server.
    #[arg(long, hide = true)]
    autokill: bool,
}

/// Serves until it is interrupted, then stops the engine.
///
/// # Errors
///
/// Fails if the port is taken, or the token or configuration file cannot be used.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    for (given, flag) in [
        (args.debug.is_some(), "--debug"),
        (args.kill.is_some(), "--kill"),
        (args.autokill, "--autokill"),
    ] {
        if given {
            tracing::warn!("{flag} has no effect here");
        }
    }
    let default_config = args.conf.as_deref().map(default_config).transpose()?;
    let token = args.access.token()?;
    let interrupted = resume::latest(Path::new(experiment::BASE));
    let start_with = args
        .resume
        .as_ref()
        .map(|given| interrupted_config(given.as_deref(), interrupted.as_deref()))
        .transpose()?;
    let boot_timeout = timeout("--boot-timeout", args.boot_timeout)?;
    let code = code_options(&args)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let listener = listen(&args).await?;
    let limits = Limits {
        connections: max_connections(raise_file_limit()),
        ..Limits::default()
    };

    // Before the banner: its reader may send a signal and expect an orderly shutdown.
    let shutdown_signal = shutdown_signal(args.end_with_stdin)?;
    let port = listener.local_addr()?.port();
    let offer = interrupted.filter(|_| args.resume.is_none());
    banner(&args, port, token.as_ref(), offer.as_deref());
    let options = Options {
        token: token.map(|token| token.token),
        hosts: Hosts::new(args.access.allowed_host),
        default_config,
        code,
        boot_timeout,
        start_with,
        limits,
        tls,
        ..Options::default()
    };
    let launcher = match &args.engine {
        Some(program) => ChildLauncher::new(executable(program)?),
        None => ChildLauncher::of_this_program().context("cannot find the path of this program")?,
    };
    let launcher = launcher.with_ranks(args.launcher.map(|words| RankCommand::new(words.0, devices())));
    Server::new(options, Arc::new(launcher))
        .serve(listener, shutdown_signal)
        .await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a positive duration given as seconds.
fn timeout(flag: &str, seconds: f64) -> anyhow::Result<Duration> {
    let timeout = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero());
    timeout.with_context(|| format!("{flag} must be a positive number of seconds, got {seconds}"))
}

fn code_options(args: &Args) -> anyhow::Result<CodeOptions> {
    let access = match (args.no_code_sync, args.allow_code_sync) {
        (true, _) => CodeAccess::Off,
        (false, true) => CodeAccess::Everyone,
        (false, false) => CodeAccess::WithToken,
    };
    Ok(CodeOptions {
        access,
        build_timeout: timeout("--build-timeout", args.build_timeout)?,
        keep_selected: !args.no_synced_code,
        ..CodeOptions::default()
    })
}

/// Counts the devices of this machine.
fn devices() -> Devices {
    Devices {
        gpus: device::gpu_count(),
        cores: Pool::physical_cores(),
    }
}

/// The words of a command, at least one, split as a shell does.
#[derive(Clone, Debug)]
struct Words(Vec<String>);

impl FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match shell_words::split(text) {
            Ok(words) if !words.is_empty() => Ok(Self(words)),
            Ok(_) => Err("the command is empty".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn default_config(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let text = read_given_text(path, DOCUMENT_BYTES).with_context(|| format!("cannot read --conf {shown}"))?;
    // The model comes from the client's configuration; everything else is checked now.
    load_over(&text, "ajet: {model: {path: 'builtin:tiny'}}", Strictness::Job)
        .with_context(|| format!("invalid --conf {shown}"))?;
    Ok(text)
}

/// Returns the absolute path of an executable program.
fn executable(program: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let shown = program.display();
    let path = program
        .canonicalize()
        .with_context(|| format!("cannot run --engine {shown}"))?;
    let metadata = path
        .metadata()
        .with_context(|| format!("cannot run --engine {shown}"))?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        bail!("--engine {shown} is not an executable file");
    }
    Ok(path)
}

/// Returns the configuration of the interrupted experiment in the `given` directory, or of the `latest` one here.
fn interrupted_config(given: Option<&Path>, latest: Option<&Path>) -> anyhow::Result<String> {
    let Some(dir) = given.or(latest) else {
        bail!(
            "no interrupted experiment below {}\nhint: pass the experiment's directory as --continue=DIR",
            experiment::BASE
        );
    };
    resume::config(dir).map_err(|reason| anyhow!("--continue: {reason}"))
}

async fn listen(args: &Args) -> anyhow::Result<TcpListener> {
    let (host, port) = (args.access.host, args.swarm_port);
    let error = match TcpListener::bind((host, port)).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::AddrInUse {
        return Err(error).with_context(|| format!("cannot listen on {host} port {port}"));
    }
    let there = if host.is_unspecified() {
        IpAddr::from([127, 0, 0, 1])
    } else {
        host
    };
    let url = format!("http://{}", std::net::SocketAddr::new(there, port));
    let client = SwarmClient::new(&url)?;
    let probe = tokio::time::timeout(Duration::from_secs(2), client.health());
    if probe.await.is_ok_and(|health| health.is_ok()) {
        // A client that started this server finds the server it wanted.
        say(&[SERVING.to_owned()]);
        bail!(
            "port {port} is in use by another swarm server at {url}\n\
             hint: use that server, or choose another port with --swarm-port"
        );
    }
    bail!("port {port} is in use by another program\nhint: choose another port with --swarm-port");
}

fn banner(args: &Args, port: u16, token: Option<&AccessToken>, interrupted: Option<&Path>) {
    let host = args.access.host;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let local = format!("{scheme}://127.0.0.1:{port}");
    let mut lines = vec![
        format!("ajet-swarm {}", env!("CARGO_PKG_VERSION")),
        SERVING.to_owned(),
        format!("  listening on   {host} port {port}"),
    ];
    if host.is_loopback() {
        lines.push(format!("  here           {local}"));
        lines.push(format!(
            "  from a laptop  ssh -N -L {port}:127.0.0.1:{port} USER@THIS-MACHINE, then {scheme}://localhost:{port} there,"
        ));
        lines.push("                 or start with --host 0.0.0.0, which generates an access token".into());
    } else {
        lines.push(format!("  from anywhere  {scheme}://THIS-MACHINE:{port}"));
    }
    match token {
        Some(AccessToken {
            text,
            is_generated: true,
            ..
        }) => lines.push(format!(
            "  token          {text} (shown once): clients use {scheme}://THIS-MACHINE:{port}/t/{text}"
        )),
        Some(_) => lines.push(format!(
            "  token          required: clients use {scheme}://THIS-MACHINE:{port}/t/TOKEN"
        )),
        None if !host.is_loopback() => {
            lines.push("  token          none: everyone who reaches this port controls the training".into());
        }
        None => {}
    }
    if let Some(dir) = interrupted {
        let dir = dir.display();
        lines.push(format!(
            "  interrupted    {dir}: start with --continue to resume it, or let a client start it again"
        ));
    }
    lines.push(format!("  watch          ajet-swarm overwatch --swarm-url={local}"));
    // The fragment of a link is never sent to a server. A token that the user chose is not repeated here.
    let generated = token.filter(|token| token.is_generated);
    let fragment = generated.map_or(String::new(), |token| format!("#token={}", token.text));
    let host = if host.is_loopback() {
        "127.0.0.1"
    } else {
        "THIS-MACHINE"
    };
    lines.push(format!("  web page       {scheme}://{host}:{port}/ui{fragment}"));
    lines.push("  stop           Ctrl-C".into());
    say(&lines);
}

/// Writes lines to standard output and flushes: clients read them through pipes.
fn say(lines: &[String]) {
    terminal::print(&format!("{}\n", terminal::printable(&lines.join("\n"))));
}

/// Completes at the first termination signal, or when standard input closes if `with_stdin`. A second signal ends the
/// process at once; the engine notices and follows.
fn shutdown_signal(with_stdin: bool) -> io::Result<impl Future<Output = ()>> {
    let mut signals = EndSignals::listen()?;
    let stdin = match with_stdin {
        true => Some(starter_gone()?),
        false => None,
    };
    let closed = async {
        match stdin {
            Some(closed) => closed.await,
            None => std::future::pending().await,
        }
    };
    Ok(async move {
        tokio::select! { () = signals.next() => {}, () = closed => {} }
        tracing::info!("stopping the engine; press Ctrl-C again to exit now");
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(130);
        });
    })
}

/// Completes when standard input closes and `roll`, which started this server, has not asked it to stay. The process
/// ends soon after, however busy.
fn starter_gone() -> io::Result<impl Future<Output = ()>> {
    let (gone, wait) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut said = Vec::new();
        // An unreadable input counts as closed.
        let _ = io::stdin().lock().take(STAY.len() as u64).read_to_end(&mut said);
        if said == STAY.as_bytes() {
            return;
        }
        let _ = gone.send(()); // the server may be ending already
        std::thread::sleep(ABANDONED);
        std::process::exit(0);
    })?;
    Ok(async {
        if wait.await.is_err() {
            std::future::pending().await // the server stays
        }
    })
}

/// Raises the limit of open files and returns it. Every LLM call uses two connections, and many systems allow only 1024
/// open files by default.
fn raise_file_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    let wanted = soft.max(hard.min(65_536));
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::debug!("cannot raise the limit of open files: {error}");
            soft
        }
    }
}

/// Returns the number of connections for which there are enough files: each may need one to the engine, plus some spare
/// files.
fn max_connections(files: u64) -> usize {
    let most = (files.saturating_sub(128) / 2).max(16);
    usize::try_from(most).map_or(usize::MAX, |most| most.min(Limits::default().connections))
}
