//! Engine processes: starting, watching and ending them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::runtime_dir::RuntimeDir;
use crate::protocol::swarm::TOKEN_VARIABLE;

/// Number of stderr lines kept to report why the engine ended.
const LAST_LINES: usize = 5;
/// Maximum bytes kept of such a line.
const LINE_BYTES: usize = 400;
/// Maximum length of a line, so that output without line breaks needs no memory.
const MAX_LINE_BYTES: u64 = 64 * 1024;
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

/// Launcher that runs `PROGRAM engine --socket … --config … --experiment-dir …`.
#[derive(Debug)]
pub struct ChildLauncher {
    program: PathBuf,
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
            arguments: Vec::new(),
        }
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
        let child = Command::new(launch.program.as_ref().unwrap_or(&self.program))
            .arg("engine")
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

/// Reads the engine's standard error to its end and returns the lines that explain its end. Everything meant for users
/// arrives as events, so the lines are logged at debug level only.
async fn log_lines(stderr: impl AsyncRead + Unpin) -> String {
    let mut reader = BufReader::new(stderr);
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut line = Vec::new();
    let mut in_ordinary = false;
    // Bytes, not strings: a crash may write invalid UTF-8.
    while matches!(
        (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await,
        Ok(1..)
    ) {
        let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES)]);
        let text = text.trim_end();
        tracing::debug!("engine: {text}");
        in_ordinary = is_ordinary(text) || in_ordinary && (text.is_empty() || text.starts_with(char::is_whitespace));
        if !text.trim().is_empty() && !text.starts_with("note: run with") && !in_ordinary {
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text.to_owned());
        }
        line.clear();
    }
    failure_text(last.make_contiguous())
}

/// Returns whether a log line is routine output, and so not the reason of the engine's end. Continuation lines of a
/// message are indented.
fn is_ordinary(line: &str) -> bool {
    // Such as `2026-01-02T03:04:05.678901Z  INFO loading the model`.
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let is_time =
        first.starts_with(|digit: char| digit.is_ascii_digit()) && first.contains('T') && first.ends_with('Z');
    is_time && matches!(words.next(), Some("TRACE" | "DEBUG" | "INFO" | "WARN"))
}

/// Returns a process's own explanation of its end: the error and the lines after it, or the last line.
fn failure_text(lines: &[String]) -> String {
    let is_error = |line: &String| line.starts_with("error:") || line.contains("panicked at");
    let from = lines.iter().position(is_error).unwrap_or(lines.len().saturating_sub(1));
    let words = lines[from..].join(" ");
    words.strip_prefix("error: ").map_or(words.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(script: &str) -> (tempfile::TempDir, EngineHandle) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("engine");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mut permissions = fs::metadata(&program).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o700);
        fs::set_permissions(&program, permissions).unwrap();
        let launch = Launch {
            config: "{}".into(),
            experiment_dir: dir.path().to_owned(),
            program: None,
        };
        // Another test's fork may hold the script open for writing for a moment ("text file busy").
        let handle = loop {
            match ChildLauncher::new(program.clone()).launch(&launch) {
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

    /// Seen with a reason that quoted the last INFO line.
    #[tokio::test]
    async fn a_reason_quotes_no_ordinary_line_of_the_log() {
        let info = "echo '2026-01-02T03:04:05.678901Z  INFO step 3' >&2";
        for (script, reason) in [
            (format!("{info}; exit 3"), "the engine ended with exit code 3"),
            (
                format!("{info}; kill -9 $$"),
                "the engine was killed by signal 9 (the kernel does this when memory runs out)",
            ),
            (
                format!("echo 'error: full' >&2; {info}; {info}; {info}; {info}; {info}; exit 3"),
                "the engine ended with exit code 3: full",
            ),
            (
                format!("echo '2026-01-02T03:04:05Z ERROR bad weights' >&2; {info}; exit 3"),
                "the engine ended with exit code 3: 2026-01-02T03:04:05Z ERROR bad weights",
            ),
            // Seen with a warning's second line.
            (
                format!("{info}; echo '  hint: another model' >&2; echo >&2; echo '  and more' >&2; kill -25 $$"),
                "the engine was terminated by signal 25",
            ),
            (
                format!(
                    "{info}; echo '  hint: another' >&2; echo \"thread 'x' panicked at a.rs:\" >&2; echo '  left: 1' >&2; exit 3"
                ),
                "the engine ended with exit code 3: thread 'x' panicked at a.rs:   left: 1",
            ),
            (
                format!("{info}; echo 'memory allocation failed' >&2; exit 3"),
                "the engine ended with exit code 3: memory allocation failed",
            ),
        ] {
            let (_dir, handle) = launched(&script);
            assert_eq!(handle.wait().await, reason, "{script}");
        }
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
    async fn the_engine_has_one_pool_of_memory_unless_the_user_wants_otherwise() {
        let wanted = std::env::var(ARENAS_VARIABLE).unwrap_or_else(|_| "1".into());
        let (_dir, handle) = launched(r#"echo "error: pools: $MALLOC_ARENA_MAX" >&2; exit 1"#);
        let words = handle.wait().await;
        assert!(words.ends_with(&format!("pools: {wanted}")), "{words}");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_and_what_follows_is_still_heard() {
        let (_dir, handle) =
            launched("head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo 'error: full' >&2; exit 2");
        assert_eq!(handle.wait().await, "the engine ended with exit code 2: full");
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

    #[test]
    fn last_words_begin_at_the_error() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(failure_text(&lines(&["a", "error: b", "hint: c"])), "b hint: c");
        assert_eq!(
            failure_text(&lines(&["x", "thread 'main' panicked at src/a.rs:1:1:", "boom"])),
            "thread 'main' panicked at src/a.rs:1:1: boom"
        );
        assert_eq!(failure_text(&lines(&["a", "b"])), "b");
        assert_eq!(failure_text(&[]), "");
    }
}
