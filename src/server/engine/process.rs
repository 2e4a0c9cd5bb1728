//! Engine processes: starting, watching and ending them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::rank_command::RankCommand;
use super::runtime_dir::RuntimeDir;
use super::stderr::log_lines;
use crate::config::from_json;
use crate::protocol::engine::LOG_FORMAT_VARIABLE;
use crate::protocol::swarm::TOKEN_VARIABLE;

/// Time between SIGTERM and SIGKILL.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits the number of arenas of glibc's allocator. With one arena per thread, each thread's freed but unreturned
/// memory adds up, and the engine's resident memory grows with every update. A value set by the user takes precedence.
const ARENAS_VARIABLE: &str = "MALLOC_ARENA_MAX";

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Complete configuration, as [`to_json`](crate::config::to_json) writes it.
    pub config: String,
    /// Directory of checkpoints and metrics.
    pub experiment_dir: PathBuf,
    /// The engine of synced training code; `None` for the launcher's own program.
    pub program: Option<PathBuf>,
}

/// Starts engines: child processes, or fakes in tests.
pub trait EngineLauncher: Send + Sync + 'static {
    /// Starts an engine; it need not serve yet.
    ///
    /// # Errors
    ///
    /// Fails if the engine cannot be started.
    fn launch(&self, launch: &Launch) -> io::Result<EngineHandle>;
}

/// How to end an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// With SIGTERM.
    Terminate,
    /// With SIGKILL.
    Kill,
}

/// A started engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    /// Socket that the engine serves, possibly not yet.
    pub socket: PathBuf,
    /// Process id.
    pub pid: u32,
    /// Set when the engine has ended: how it ended, and its last output.
    pub ended: watch::Receiver<Option<String>>,
    /// Sends a signal to the engine.
    pub kill: mpsc::Sender<Kill>,
}

impl EngineHandle {
    /// Waits for the engine to end; returns how it ended.
    pub async fn wait(&self) -> String {
        let mut ended = self.ended.clone();
        let outcome = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| "the engine ended".into())
    }

    /// Waits up to `timeout` for the engine to end, then terminates it, then kills it.
    pub async fn end_within(&self, timeout: Duration) {
        for (timeout, next) in [(timeout, Kill::Terminate), (TERMINATE_TIMEOUT, Kill::Kill)] {
            if tokio::time::timeout(timeout, self.wait()).await.is_ok() {
                return;
            }
            match next {
                Kill::Terminate => tracing::info!("terminating the engine (pid {})", self.pid),
                Kill::Kill => tracing::warn!("killing the engine (pid {}), which did not terminate", self.pid),
            }
            // The receiver closes only after the engine has ended.
            let _ = self.kill.send(next).await;
        }
        self.wait().await;
    }
}

/// Launcher that runs `PROGRAM engine --socket … --config … --experiment-dir …`, or a command that starts it as several
/// ranks.
#[derive(Debug)]
pub struct ChildLauncher {
    program: PathBuf,
    /// `None` for one rank.
    ranks: Option<RankCommand>,
    arguments: Vec<OsString>,
}

impl ChildLauncher {
    /// Creates a launcher that runs this program as the engine.
    ///
    /// # Errors
    ///
    /// Fails if the path of the running program is unknown.
    pub fn of_this_program() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// Creates a launcher that runs `program` as the engine.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            ranks: None,
            arguments: Vec::new(),
        }
    }

    /// Starts every engine by a command such as `mpirun -np 4`, whose first rank inherits its standard input and output.
    pub fn with_ranks(mut self, command: Option<RankCommand>) -> Self {
        self.ranks = command;
        self
    }

    /// Adds arguments to those that every engine gets.
    pub fn with_arguments(mut self, arguments: impl IntoIterator<Item = OsString>) -> Self {
        self.arguments.extend(arguments);
        self
    }
}

impl EngineLauncher for ChildLauncher {
    fn launch(&self, launch: &Launch) -> io::Result<EngineHandle> {
        let runtime = RuntimeDir::new()?;
        let socket = runtime.path().join("engine.sock");
        let config = runtime.path().join("config.json");
        fs::write(&config, &launch.config)?;
        let arenas = std::env::var_os(ARENAS_VARIABLE).unwrap_or_else(|| "1".into());
        let program = launch.program.as_ref().unwrap_or(&self.program).as_os_str();
        let starter = self
            .ranks
            .as_ref()
            .map(|ranks| from_json(&launch.config).map(|config| ranks.words(&config)));
        let starter = starter.transpose()?;
        let words = starter
            .iter()
            .flatten()
            .map(OsStr::new)
            .chain([program])
            .collect::<Vec<_>>();
        let child = Command::new(words[0])
            .args(&words[1..])
            .arg("engine")
            .args(self.ranks.is_some().then_some("--mpi"))
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .arg("--experiment-dir")
            .arg(&launch.experiment_dir)
            .args(&self.arguments)
            // The engine does not need the server's access token.
            .env_remove(TOKEN_VARIABLE)
            .env(ARENAS_VARIABLE, arenas)
            .env(LOG_FORMAT_VARIABLE, "json")
            // Kept open: the engine exits when its standard input closes, so a killed server leaves no engine behind.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in the server's terminal must reach only the server, which then stops the engine properly.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let (ended_sender, ended) = watch::channel(None);
        let (kill, kills) = mpsc::channel(4);
        tokio::spawn(watch_child(child, runtime, kills, ended_sender));
        Ok(EngineHandle {
            socket,
            pid,
            ended,
            kill,
        })
    }
}

async fn watch_child(
    mut child: Child,
    runtime: RuntimeDir,
    mut kills: mpsc::Receiver<Kill>,
    ended: watch::Sender<Option<String>>,
) {
    let pid = child.id();
    // Kept here because `Child::wait` would close it: the engine takes a closed standard input as the server's end.
    let _stdin = child.stdin.take();
    let stderr = child.stderr.take();
    let words = tokio::spawn(async move {
        match stderr {
            Some(stderr) => log_lines(stderr).await,
            None => String::new(),
        }
    });
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            Some(how) = kills.recv() => signal(pid, how),
        }
    };
    // A subprocess of the engine may keep its standard error open, so the wait for the last output is bounded.
    let words = tokio::time::timeout(Duration::from_secs(1), words).await;
    let mut words = words.ok().and_then(Result::ok).unwrap_or_default();
    if matches!(&status, Ok(status) if status.success()) {
        words.clear();
    }
    let how = match status {
        Ok(status) => describe(status),
        Err(error) => format!("ended, but its exit status is unknown: {error}"),
    };
    let reason = if words.is_empty() {
        format!("the engine {how}")
    } else {
        format!("the engine {how}: {words}")
    };
    drop(runtime);
    ended.send_replace(Some(reason));
}

fn signal(pid: Option<u32>, how: Kill) {
    let signal = match how {
        Kill::Terminate => Signal::SIGTERM,
        Kill::Kill => Signal::SIGKILL,
    };
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok())
        && let Err(error) = kill(Pid::from_raw(pid), signal)
    {
        tracing::debug!("cannot signal the engine: {error}");
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended".into(),
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(9)) => "was killed by signal 9 (the kernel does this when memory runs out)".into(),
        (None, Some(number)) => format!("was terminated by signal {number}"),
        (None, None) => format!("ended: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank_command::Devices;
    use super::*;

    fn launched(script: &str) -> (tempfile::TempDir, EngineHandle) {
        launched_by(None, "{}", script)
    }

    /// Runs a script as the engine, or as what `ranks` starts, with a configuration as JSON.
    fn launched_by(ranks: Option<RankCommand>, config: &str, script: &str) -> (tempfile::TempDir, EngineHandle) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("engine");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mut permissions = fs::metadata(&program).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o700);
        fs::set_permissions(&program, permissions).unwrap();
        let launch = Launch {
            config: config.into(),
            experiment_dir: dir.path().to_owned(),
            program: None,
        };
        // Another test's fork may hold the script open for writing for a moment ("text file busy").
        let handle = loop {
            match ChildLauncher::new(program.clone())
                .with_ranks(ranks.clone())
                .launch(&launch)
            {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                outcome => break outcome.unwrap(),
            }
        };
        (dir, handle)
    }

    #[tokio::test]
    async fn a_failed_engine_is_described_with_its_last_words() {
        let (_dir, handle) = launched("echo loading >&2; echo 'error: no such model' >&2; exit 3");
        assert_eq!(handle.wait().await, "the engine ended with exit code 3: no such model");
    }

    #[tokio::test]
    async fn the_engine_is_told_where_its_files_are_and_they_are_private() {
        let (_dir, handle) =
            launched(r#"echo "error: $* $(cat "$5") mode $(stat -c %a "$(dirname "$3")")" >&2; exit 1"#);
        let runtime = handle.socket.parent().unwrap().to_owned();
        let words = handle.wait().await;
        assert!(
            words.contains(&format!("engine --socket {}", handle.socket.display())),
            "{words}"
        );
        assert!(words.ends_with("{} mode 700"), "{words}");
        assert!(!runtime.exists(), "removed with the engine");
    }

    #[tokio::test]
    async fn a_launcher_starts_as_many_ranks_as_configured() {
        let run = r#"for rank in $(seq "$0"); do "$@"; done; exit 4"#;
        let words = ["sh", "-c", run, "{ranks}"].map(str::to_owned).to_vec();
        let devices = Devices { gpus: 0, cores: 8 };
        let config = r#"{"ajet": {"trainer_common": {"n_gpus_per_node": 3, "nnodes": 2}}}"#;
        let (dir, handle) = launched_by(
            Some(RankCommand::new(words, devices)),
            config,
            r#"echo "$1 $2" >> "$(dirname "$0")/ranks""#,
        );
        assert_eq!(handle.wait().await, "the engine ended with exit code 4");
        let started = fs::read_to_string(dir.path().join("ranks")).unwrap();
        assert_eq!(started, "engine --mpi\n".repeat(6));
    }

    #[tokio::test]
    async fn the_engine_has_one_pool_of_memory_unless_the_user_wants_otherwise() {
        let wanted = std::env::var(ARENAS_VARIABLE).unwrap_or_else(|_| "1".into());
        let (_dir, handle) = launched(r#"echo "error: pools: $MALLOC_ARENA_MAX" >&2; exit 1"#);
        let words = handle.wait().await;
        assert!(words.ends_with(&format!("pools: {wanted}")), "{words}");
    }

    #[tokio::test]
    async fn an_engine_that_ignores_everything_is_killed() {
        let (_dir, handle) = launched("trap '' TERM; while :; do sleep 0.05; done");
        handle.kill.send(Kill::Kill).await.unwrap();
        assert!(handle.wait().await.contains("signal 9"));
    }

    #[tokio::test]
    async fn an_engines_input_is_held_open_until_it_is_told_to_end() {
        let (_dir, handle) = launched("cat");
        let ended = tokio::time::timeout(Duration::from_millis(200), handle.wait()).await;
        assert!(ended.is_err(), "standard input is held open");
        handle.end_within(Duration::ZERO).await;
        assert!(handle.wait().await.contains("signal 15"));
    }
}
