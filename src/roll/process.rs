//! A program that a job names: run, fed, bounded in time, and gone with everything that it started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::job::URL_VARIABLE;
use super::supervisor::NOT_STARTED;
use crate::protocol::swarm::TOKEN_VARIABLE;

/// Most of a program's output that is kept, from its end.
const MOST_STDOUT: usize = 8 << 20;

/// Most of a program's complaints that is kept, from its end.
const MOST_STDERR: usize = 4 << 10;

/// How long output is read after the program and its children are gone.
const DRAIN: Duration = Duration::from_secs(2);

/// How long a supervisor may take to end what it supervises.
const END: Duration = Duration::from_secs(7);

/// `ajet-swarm`, which supervises programs.
static SUPERVISOR: OnceLock<PathBuf> = OnceLock::new();

/// The token that steers the server.
static TOKEN: OnceLock<String> = OnceLock::new();

/// Keeps the token that steers the server from every program of a job, under whatever name the environment has it.
pub fn keep_from_programs(token: &str) {
    // The first one stays: a process is a client of one server.
    let _ = TOKEN.set(token.to_owned());
}

/// Lets every program of a job end with this process, however it ends, by running it below `program`, which is
/// `ajet-swarm`. Without this, programs end with their episodes only.
pub fn supervise_with(program: PathBuf) {
    // The first one stays, which is as good: there is one `ajet-swarm`.
    let _ = SUPERVISOR.set(program);
}

/// What is run.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Program and arguments; not empty. No shell is involved.
    pub argv: Vec<String>,
    /// Working directory; ours where none is given.
    pub cwd: Option<PathBuf>,
    /// Added to our environment.
    pub env: Vec<(String, String)>,
    /// Written to its standard input.
    pub stdin: Vec<u8>,
    /// It is killed after this.
    pub timeout: Duration,
}

/// What a program that ended by itself left.
#[derive(Debug)]
pub(super) struct Finished {
    /// Its last 8 MiB.
    pub stdout: String,
    /// Its last 4 KiB.
    pub stderr: String,
}

/// Why a program came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is not there, or may not be run.
    #[error("{program:?} cannot be run: {reason}")]
    Start {
        /// The program.
        program: String,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// It ran too long and was killed.
    #[error("{program:?} ran longer than {seconds} s and was killed{}", tail(.stderr))]
    Timeout {
        /// The program.
        program: String,
        /// The limit.
        seconds: f64,
        /// The end of its standard error.
        stderr: String,
    },
    /// It said by its exit status that it failed.
    #[error("{program:?} ended with {status}{}", tail(.stderr))]
    Exit {
        /// The program.
        program: String,
        /// Code or signal.
        status: ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
}

fn tail(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        stderr => format!("; the end of its stderr:\n{stderr}"),
    }
}

/// The process group of a running program; killed when this is dropped.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // A group that has no member left is no error.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

/// Runs a program to its end. Dropping the future kills it and its children.
///
/// # Errors
/// It cannot be started, takes too long or ends with anything but 0.
pub(super) async fn run(program: Program) -> Result<Finished, ProgramError> {
    let name = program.argv.first().cloned().unwrap_or_default();
    let start_error = |reason| ProgramError::Start {
        program: name.clone(),
        reason,
    };
    let supervisor = SUPERVISOR.get();
    let mut command = match supervisor {
        Some(supervisor) => {
            let mut command = tokio::process::Command::new(supervisor);
            command.args(["supervise", &format!("--input={}", program.stdin.len()), "--", &name]);
            command
        }
        None => tokio::process::Command::new(&name),
    };
    for secret in secrets(std::env::vars_os(), TOKEN.get().map(String::as_str)) {
        command.env_remove(secret);
    }
    command
        .args(program.argv.iter().skip(1))
        .envs(program.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        // A supervisor ends by itself, when its standard input closes.
        .kill_on_drop(supervisor.is_none());
    if let Some(cwd) = &program.cwd {
        command.current_dir(cwd);
    }
    let mut child = command.spawn().map_err(start_error)?;
    let group = child
        .id()
        .filter(|_| supervisor.is_none())
        .map(|id| Group(Pid::from_raw(id as i32)));
    let stdout = tokio::spawn(read_tail(child.stdout.take(), MOST_STDOUT));
    let stderr = tokio::spawn(read_tail(child.stderr.take(), MOST_STDERR));
    let mut stdin = child.stdin.take();
    let ended = {
        let feed = async {
            if let Some(input) = &mut stdin {
                // A program that does not read its input closes the pipe, which is its right.
                let _ = input.write_all(&program.stdin).await;
            }
            if supervisor.is_none() {
                stdin = None;
            }
            std::future::pending().await
        };
        let ended = async {
            tokio::select! { ended = child.wait() => ended, never = feed => never }
        };
        tokio::time::timeout(program.timeout, ended).await
    };
    // Children that outlive the program would hold its pipes open.
    drop((group, stdin));
    if supervisor.is_some() && ended.is_err() && tokio::time::timeout(END, child.wait()).await.is_err() {
        tracing::warn!("{name:?} cannot be ended within {} s", END.as_secs());
    }
    let (stdout, stderr) = (drained(stdout).await, drained(stderr).await);
    match ended {
        Err(_) => Err(ProgramError::Timeout {
            program: name,
            seconds: program.timeout.as_secs_f64(),
            stderr,
        }),
        Ok(Err(reason)) => Err(start_error(reason)),
        Ok(Ok(status)) if status.success() => Ok(Finished { stdout, stderr }),
        Ok(Ok(_)) if supervisor.is_some() && stderr.starts_with(NOT_STARTED) => {
            let reason = stderr[NOT_STARTED.len()..].trim_end();
            Err(start_error(std::io::Error::other(reason.to_string())))
        }
        Ok(Ok(status)) => Err(ProgramError::Exit {
            program: name,
            status,
            stderr,
        }),
    }
}

/// Variables that a program must not see, since they may hold the token that steers the server: an agent gets its
/// episode's key and nothing else.
fn secrets(variables: impl Iterator<Item = (OsString, OsString)>, known: Option<&str>) -> Vec<OsString> {
    const NAMES: [&str; 2] = [TOKEN_VARIABLE, URL_VARIABLE];
    let variables: Vec<_> = variables
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    let token = variables.iter().find(|(name, _)| name == TOKEN_VARIABLE);
    let tokens = [token.map(|(_, token)| token.trim()), known];
    let tokens: Vec<_> = tokens.into_iter().flatten().filter(|token| !token.is_empty()).collect();
    let is_secret = |name: &OsString, value: &str| {
        NAMES.iter().any(|secret| name == secret)
            || tokens.iter().any(|token| value.contains(token))
            || value.contains("://") && value.contains("/t/")
    };
    let secret = variables.iter().filter(|(name, value)| is_secret(name, value));
    secret.map(|(name, _)| name.clone()).collect()
}

async fn drained(reader: tokio::task::JoinHandle<Vec<u8>>) -> String {
    let bytes = tokio::time::timeout(DRAIN, reader).await;
    let bytes = bytes.ok().and_then(Result::ok).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last `most` bytes of a stream.
async fn read_tail(stream: Option<impl AsyncRead + Unpin>, most: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else { return kept };
    while let Ok(1..) = stream.read_buf(&mut kept).await {
        if kept.len() > 2 * most {
            kept.drain(..kept.len() - most);
        }
    }
    kept.drain(..kept.len().saturating_sub(most));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            argv: ["sh", "-c", script].map(String::from).to_vec(),
            cwd: None,
            env: vec![("GREETING".into(), "hello".into())],
            stdin: b"from stdin".to_vec(),
            timeout: Duration::from_secs(60),
        }
    }

    #[tokio::test]
    async fn a_program_gets_its_input_and_environment_and_gives_its_output() {
        let finished = run(shell("printf \"$GREETING \"; cat; echo oops >&2")).await.unwrap();
        assert_eq!(finished.stdout, "hello from stdin");
        assert_eq!(finished.stderr, "oops\n");
    }

    /// Seen with `/t/TOKEN` in the server's URL: agents got the token that steers the server.
    #[test]
    fn a_token_is_in_no_variable_of_a_program() {
        let variables = [
            ("AJET_SWARM_TOKEN", "s3cret-token"),
            ("AJET_SWARM_URL", "http://box:1"),
            ("MY_SERVER", "https://box/t/another-token"),
            ("NOTES", "use s3cret-token here"),
            ("PATH", "/usr/bin:/t/bin"),
            ("DOCS", "http://example.com/x"),
            ("HOME", "/home/a"),
            // Seen with a token that only the URL had.
            ("PROXY", "http://user:token-of-url@box"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let secret = secrets(variables.into_iter(), Some("token-of-url"));
        assert_eq!(
            secret,
            ["AJET_SWARM_TOKEN", "AJET_SWARM_URL", "MY_SERVER", "NOTES", "PROXY"]
        );
    }

    #[tokio::test]
    async fn failures_tell_program_status_and_stderr() {
        let message = run(shell("echo the reason >&2; exit 3")).await.unwrap_err().to_string();
        assert!(message.contains("\"sh\" ended with exit status: 3"), "{message}");
        assert!(message.contains("the reason"), "{message}");
        let missing = Program {
            argv: vec!["no-such-program-here".into()],
            ..shell("")
        };
        let message = run(missing).await.unwrap_err().to_string();
        assert!(message.contains("\"no-such-program-here\" cannot be run"), "{message}");
    }

    #[tokio::test]
    async fn a_timeout_kills_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let program = Program {
            timeout: Duration::from_millis(300),
            ..shell(&format!("sleep 600 & echo $! > {}; wait", pid_file.display()))
        };
        assert!(matches!(run(program).await, Err(ProgramError::Timeout { .. })));
        let pid = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        assert!(is_gone(Pid::from_raw(pid)).await);
    }

    #[tokio::test]
    async fn a_child_left_behind_ends_with_its_program_and_does_not_hold_it_up() {
        let finished = run(shell("sleep 600 & echo $!")).await.unwrap();
        let pid = finished.stdout.trim().parse().unwrap();
        assert!(is_gone(Pid::from_raw(pid)).await);
    }

    /// Waits until no such process runs; one that nobody has reaped yet counts as gone.
    async fn is_gone(pid: Pid) -> bool {
        for _ in 0..500 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[tokio::test]
    async fn only_the_end_of_a_long_output_is_kept() {
        let text: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(read_tail(Some(&text[..]), 1000).await, text[99_000..]);
        assert_eq!(read_tail(Some(&text[..7]), 1000).await, text[..7]);
    }
}
