//! `ajet-swarm start`: the swarm server.

use std::future::Future;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;

use super::engine::ABANDONED;
use super::server_url::read_token;
use crate::client::SwarmClient;
use crate::config::small_file::{DOCUMENT_BYTES, read_given_text};
use crate::config::{Strictness, experiment, load_over};
use crate::protocol::swarm::DEFAULT_PORT;
use crate::roll::{EndSignals, STAY};
use crate::server::engine::resume;
use crate::server::http::tls;
use crate::server::{ChildLauncher, Hosts, Limits, Options, Server, TOKEN_VARIABLE, Token};
use crate::terminal;

/// Python clients that start a server wait for this line in its output.
const SERVING: &str = "Interchange server is running in blocking mode";

/// Serve a swarm: clients bring a training configuration and roll episodes, the engine samples and trains.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm start                          for clients on this machine
  ajet-swarm start --host 0.0.0.0           for clients elsewhere; prints a token that they need
  ajet-swarm start --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  ajet-swarm start --continue               after a crash or a reboot: go on with what ran here
  ssh -N -L 10086:127.0.0.1:10086 gpu-box   on a laptop, to reach a server that only listens locally")]
pub struct Args {
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    swarm_port: u16,
    /// Address to listen on. Any but this machine's own wants a token, or --insecure.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// File with the token that clients must present. The variable AJET_SWARM_TOKEN does the same.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let everyone in who reaches the port: to use the GPU, to read and to steer the training.
    #[arg(long, conflicts_with = "token_file")]
    insecure: bool,
    /// Host name that clients reach a server without a token by, such as that of a container or a reverse proxy. May be
    /// repeated. IP addresses, localhost and this machine's own name are always answered to.
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Speak TLS: file with the certificate chain (PEM). Clients use https://.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Configuration (YAML) that gives what a client's configuration leaves out.
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Go on at once with an experiment that was interrupted: the newest one here, or the one in this directory.
    #[arg(long = "continue", value_name = "DIR", num_args = 0..=1, require_equals = true)]
    resume: Option<Option<PathBuf>>,
    /// Run engines from this program: an ajet-swarm built from other sources, such as those of `ajet-swarm sync-code`.
    #[arg(long, value_name = "PROGRAM")]
    engine: Option<PathBuf>,
    /// Give up an engine that boots when it has said nothing new for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    boot_timeout: f64,
    /// End when standard input closes, unless that said to stay: `roll` starts a server so.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
    /// Without effect; taken because AgentJet's server has it.
    #[arg(long, alias = "db", hide = true, num_args = 0..=1, default_missing_value = "")]
    debug: Option<String>,
    /// Without effect; taken because AgentJet's server has it.
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    kill: Option<String>,
    /// Without effect; taken because AgentJet's server has it.
    #[arg(long, hide = true)]
    autokill: bool,
}

/// Serves until it is interrupted, then stops the engine.
///
/// # Errors
///
/// The port is taken, or token or configuration file cannot be used.
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
    let (token, made) = token(&args)?;
    let interrupted = resume::latest(Path::new(experiment::BASE));
    let start_with = args
        .resume
        .as_ref()
        .map(|given| interrupted_config(given.as_deref(), interrupted.as_deref()))
        .transpose()?;
    let boot_timeout = Duration::try_from_secs_f64(args.boot_timeout)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .with_context(|| {
            format!(
                "--boot-timeout is a number of seconds above 0, got {}",
                args.boot_timeout
            )
        })?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let listener = listen(&args).await?;
    let limits = Limits {
        connections: most_connections(raise_file_limit()),
        ..Limits::default()
    };

    // Before the banner: who has read it may end us, and expects a good end.
    let told_to_end = told_to_end(args.end_with_stdin)?;
    let port = listener.local_addr()?.port();
    let offer = interrupted.filter(|_| args.resume.is_none());
    banner(&args, port, made.as_deref(), token.is_some(), offer.as_deref());
    let options = Options {
        token,
        hosts: Hosts::new(args.allowed_host),
        default_config,
        boot_timeout,
        start_with,
        limits,
        tls,
        ..Options::default()
    };
    let launcher = match &args.engine {
        Some(program) => ChildLauncher::new(executable(program)?),
        None => ChildLauncher::of_this_program().context("finding this program's own path")?,
    };
    Server::new(options, Arc::new(launcher))
        .serve(listener, told_to_end)
        .await?;
    Ok(ExitCode::SUCCESS)
}

fn default_config(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let text = read_given_text(path, DOCUMENT_BYTES).with_context(|| format!("--conf {shown} cannot be read"))?;
    // A client's configuration names the model; everything else is checked now.
    load_over(&text, "ajet: {model: {path: 'builtin:tiny'}}", Strictness::Job)
        .with_context(|| format!("--conf {shown} is refused"))?;
    Ok(text)
}

/// The absolute path of a program that can be run.
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

/// What an interrupted experiment was started with: the one in the `given` directory, or the `latest` one here.
fn interrupted_config(given: Option<&Path>, latest: Option<&Path>) -> anyhow::Result<String> {
    let Some(dir) = given.or(latest) else {
        bail!(
            "--continue: no experiment below {} was interrupted\nhint: name its directory, --continue=DIR",
            experiment::BASE
        );
    };
    resume::config(dir).map_err(|reason| anyhow!("--continue: {reason}"))
}

/// The token that clients need, and its text where it was made here.
fn token(args: &Args) -> anyhow::Result<(Option<Token>, Option<String>)> {
    if let Some(path) = &args.token_file {
        let shown = path.display();
        let token = Token::new(&read_token(path)?).with_context(|| format!("--token-file {shown} is refused"))?;
        return Ok((Some(token), None));
    }
    if let Some(text) = std::env::var_os(TOKEN_VARIABLE).filter(|text| !text.is_empty() && !args.insecure) {
        let token = Token::new(&text.to_string_lossy()).with_context(|| format!("{TOKEN_VARIABLE} is refused"))?;
        return Ok((Some(token), None));
    }
    if args.host.is_loopback() || args.insecure {
        return Ok((None, None));
    }
    let (token, text) = Token::random();
    Ok((Some(token), Some(text)))
}

async fn listen(args: &Args) -> anyhow::Result<TcpListener> {
    let (host, port) = (args.host, args.swarm_port);
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
        // A client that started us finds the server it wanted.
        say(&[SERVING.to_owned()]);
        bail!(
            "port {port} is taken: a swarm server already listens there, at {url}\n\
             hint: use that one, or start this one with --swarm-port"
        );
    }
    bail!("port {port} is taken by another program\nhint: start with another --swarm-port");
}

fn banner(args: &Args, port: u16, made_token: Option<&str>, needs_token: bool, interrupted: Option<&Path>) {
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let local = format!("{scheme}://127.0.0.1:{port}");
    let mut lines = vec![
        format!("ajet-swarm {}", env!("CARGO_PKG_VERSION")),
        SERVING.to_owned(),
        format!("  listens on     {} port {port}", args.host),
    ];
    if args.host.is_loopback() {
        lines.push(format!("  here           {local}"));
        lines.push(format!(
            "  from a laptop  ssh -N -L {port}:127.0.0.1:{port} USER@THIS-MACHINE, then {scheme}://localhost:{port} there,"
        ));
        lines.push("                 or start with --host 0.0.0.0, which makes a token that clients need".into());
    } else {
        lines.push(format!("  from anywhere  {scheme}://THIS-MACHINE:{port}"));
    }
    match (made_token, needs_token) {
        (Some(token), _) => lines.push(format!(
            "  token          {token} (this once): clients use {scheme}://THIS-MACHINE:{port}/t/{token}"
        )),
        (None, true) => lines.push(format!(
            "  token          wanted: clients use {scheme}://THIS-MACHINE:{port}/t/TOKEN"
        )),
        (None, false) if !args.host.is_loopback() => {
            lines.push("  token          none: everyone who reaches this port steers the training".into());
        }
        (None, false) => {}
    }
    if let Some(dir) = interrupted {
        let dir = dir.display();
        lines.push(format!(
            "  interrupted    {dir}: start with --continue to go on with it, or let a client start it again"
        ));
    }
    lines.push(format!("  watch          ajet-swarm overwatch --swarm-url={local}"));
    lines.push("  end            Ctrl-C".into());
    say(&lines);
}

/// Writes lines to standard output at once: clients read them through pipes.
fn say(lines: &[String]) {
    terminal::print(&format!("{}\n", terminal::printable(&lines.join("\n"))));
}

/// Resolves with the first signal to end, or when standard input closes where that is the agreement. With the second
/// signal the process ends at once; the engine notices and follows.
fn told_to_end(with_stdin: bool) -> io::Result<impl Future<Output = ()>> {
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
        tracing::info!("ending: the engine is told to stop; again to end at once");
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(130);
        });
    })
}

/// Resolves when standard input closes and `roll`, which started this server, has not said that it is to stay. The process
/// ends soon after, however busy.
fn starter_gone() -> io::Result<impl Future<Output = ()>> {
    let (gone, wait) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        let mut said = Vec::new();
        // What cannot be read is closed.
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
            std::future::pending().await // it stays
        }
    })
}

/// Every LLM call holds two connections; many systems allow 1024 open files unless asked. How many files may be open.
fn raise_file_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    let wanted = soft.max(hard.min(65_536));
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::debug!("the limit of open files stays: {error}");
            soft
        }
    }
}

/// Connections for which there are files enough: one to the engine for each, and some for all else.
fn most_connections(files: u64) -> usize {
    let most = (files.saturating_sub(128) / 2).max(16);
    usize::try_from(most).map_or(usize::MAX, |most| most.min(Limits::default().connections))
}
