//! Engines as processes: started with a socket to serve, watched, ended.

use std::collections::VecDeque;
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

/// Lines of the engine's standard error that are kept for the reason of its end.
const LAST_LINES: usize = 5;
/// Bytes kept of such a line.
const LINE_BYTES: usize = 400;
/// Bytes after which a line is taken for ended, so that one without an end costs no memory.
const LONGEST_LINE: u64 = 64 * 1024;
/// How long an engine that was told to terminate may take before it is killed.
const TERMINATE_PATIENCE: Duration = Duration::from_secs(2);

/// How many pools glibc's allocator keeps. With one for each thread, what each has freed and not given back adds up, and
/// the engine's resident memory grows from update to update. A user's own value holds.
const ARENAS_VARIABLE: &str = "MALLOC_ARENA_MAX";

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The whole configuration, as YAML with `ajet:` at the top.
    pub config_yaml: String,
    /// Where checkpoints and metrics go.
    pub experiment_dir: PathBuf,
}

/// Starts engines: as child processes, or as fakes in tests.
pub trait EngineLauncher: Send + Sync + 'static {
    /// Starts one; it need not serve yet.
    ///
    /// # Errors
    ///
    /// The engine cannot be started.
    fn launch(&self, launch: &Launch) -> io::Result<EngineHandle>;
}

/// How an engine is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// Asked to.
    Terminate,
    /// Made to.
    Kill,
}

/// An engine that was started.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    /// The socket that it serves, or will.
    pub socket: PathBuf,
    /// Its process.
    pub pid: u32,
    /// Set once it has ended: how, with its last words.
    pub ended: watch::Receiver<Option<String>>,
    /// Ends it.
    pub kill: mpsc::Sender<Kill>,
}

impl EngineHandle {
    /// Waits until the engine has ended; how it did.
    pub async fn wait(&self) -> String {
        let mut ended = self.ended.clone();
        let outcome = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| "the engine ended".into())
    }

    /// Waits at most `patience` for the engine to end by itself, then terminates it, then kills it.
    pub async fn end_within(&self, patience: Duration) {
        for (patience, next) in [(patience, Kill::Terminate), (TERMINATE_PATIENCE, Kill::Kill)] {
            if tokio::time::timeout(patience, self.wait()).await.is_ok() {
                return;
            }
            match next {
                Kill::Terminate => tracing::info!("the engine (pid {}) is told to terminate", self.pid),
                Kill::Kill => tracing::warn!("the engine (pid {}) does not terminate and is killed", self.pid),
            }
            // The receiver is gone only once the engine is.
            let _ = self.kill.send(next).await;
        }
        self.wait().await;
    }
}

/// Starts `PROGRAM engine --socket … --config … --experiment-dir …`.
#[derive(Debug)]
pub struct ChildLauncher {
    program: PathBuf,
}

impl ChildLauncher {
    /// Engines are this very program.
    ///
    /// # Errors
    ///
    /// The path of the running program is not known.
    pub fn of_this_program() -> io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// Engines are `program`.
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }
}

impl EngineLauncher for ChildLauncher {
    fn launch(&self, launch: &Launch) -> io::Result<EngineHandle> {
        let runtime = RuntimeDir::new()?;
        let socket = runtime.path().join("engine.sock");
        let config = runtime.path().join("config.yaml");
        fs::write(&config, &launch.config_yaml)?;
        let arenas = std::env::var_os(ARENAS_VARIABLE).unwrap_or_else(|| "1".into());
        let child = Command::new(&self.program)
            .arg("engine")
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .arg("--experiment-dir")
            .arg(&launch.experiment_dir)
            // The engine has no use for the server's secret.
            .env_remove(TOKEN_VARIABLE)
            .env(ARENAS_VARIABLE, arenas)
            // Held open: the engine ends itself when it closes, so a killed server leaves none behind.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in the server's terminal is the server's: it ends the engine in good order.
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
    // Held here, for `Child::wait` closes it: the engine takes a closed standard input for our end.
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
    // A process that the engine started may hold its standard error open: wait for the words, but not for ever.
    let words = tokio::time::timeout(Duration::from_secs(1), words).await;
    let mut words = words.ok().and_then(Result::ok).unwrap_or_default();
    if matches!(&status, Ok(status) if status.success()) {
        words.clear();
    }
    let how = match status {
        Ok(status) => describe(status),
        Err(error) => format!("cannot be waited for: {error}"),
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
        tracing::debug!("signalling the engine: {error}");
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended".into(),
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(9)) => "was killed (signal 9; the system does this when memory runs out)".into(),
        (None, Some(number)) => format!("was ended by signal {number}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// Reads the engine's standard error to its end and returns its last words. What users should see of it comes as
/// events, so the lines are only for debugging.
async fn log_lines(stderr: impl AsyncRead + Unpin) -> String {
    let mut reader = BufReader::new(stderr);
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut line = Vec::new();
    let mut in_ordinary = false;
    // Bytes, not strings: a crash may write anything.
    while matches!(
        (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await,
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
    last_words(last.make_contiguous())
}

/// Whether a line of an engine's log is about its ordinary work, and so no reason of its end. Further lines of its message
/// are indented.
fn is_ordinary(line: &str) -> bool {
    // Such as `2026-01-02T03:04:05.678901Z  INFO loading the model`.
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let is_time =
        first.starts_with(|digit: char| digit.is_ascii_digit()) && first.contains('T') && first.ends_with('Z');
    is_time && matches!(words.next(), Some("TRACE" | "DEBUG" | "INFO" | "WARN"))
}

/// What a process says of its own end: its error and what follows, or its last line.
fn last_words(lines: &[String]) -> String {
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
            config_yaml: "ajet: {}\n".into(),
            experiment_dir: dir.path().to_owned(),
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
                "the engine was killed (signal 9; the system does this when memory runs out)",
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
                "the engine was ended by signal 25",
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
        assert!(words.ends_with("ajet: {} mode 700"), "{words}");
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
        assert_eq!(last_words(&lines(&["a", "error: b", "hint: c"])), "b hint: c");
        assert_eq!(
            last_words(&lines(&["x", "thread 'main' panicked at src/a.rs:1:1:", "boom"])),
            "thread 'main' panicked at src/a.rs:1:1: boom"
        );
        assert_eq!(last_words(&lines(&["a", "b"])), "b");
        assert_eq!(last_words(&[]), "");
    }
}
