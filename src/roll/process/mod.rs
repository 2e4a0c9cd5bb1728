//! A program that a job names: run, fed, bounded in time, memory and output, and gone with everything that it started.

pub(super) mod environment;
mod output;
mod supervisor;
mod table;

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub use environment::keep_from_programs;
pub(super) use output::Captured;
pub use supervisor::supervise;

/// How long output is read after the program and its children are gone.
const DRAIN: Duration = Duration::from_secs(2);

/// How long a supervisor may take to end what it supervises.
const END: Duration = Duration::from_secs(7);

/// Maximum bytes kept of a program's standard error, from its end.
const STDERR_BYTES: usize = 4 << 10;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;

/// `ajet-swarm`, which supervises programs.
static SUPERVISOR: OnceLock<PathBuf> = OnceLock::new();

/// Lets every program of a job end with this process, however it ends, by running it below `program`, which is
/// `ajet-swarm`. Without this, programs end with their episodes only, and `stop_argv` is not run.
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
    /// Names of our variables that it sees beside [`environment::PASSED`]; a `*` at the end stands for any ending.
    pub env_pass: Vec<String>,
    /// Added to its environment.
    pub env: Vec<(String, String)>,
    /// Written to its standard input.
    pub stdin: Vec<u8>,
    /// It is killed after this.
    pub timeout: Duration,
    /// MiB of memory beyond which it is killed, with everything that it started.
    pub memory_mb: Option<u64>,
    /// MiB of standard output beyond which it is killed.
    pub max_output_mb: u64,
    /// Program and arguments that are run when it has ended, however that came about; none where empty.
    pub stop: Vec<String>,
}

impl Default for Program {
    /// A program that sees all of our environment but its secrets.
    fn default() -> Self {
        Self {
            argv: vec![],
            cwd: None,
            env_pass: vec!["*".into()],
            env: vec![],
            stdin: vec![],
            timeout: Duration::MAX,
            memory_mb: None,
            max_output_mb: 8,
            stop: vec![],
        }
    }
}

impl Program {
    /// Bytes of standard output beyond which it is killed.
    pub fn max_output(&self) -> usize {
        usize::try_from(self.max_output_mb.saturating_mul(MIB)).unwrap_or(usize::MAX)
    }
}

/// What a program that ended with success left.
#[derive(Debug)]
pub(super) struct Finished {
    /// Its standard output.
    pub stdout: String,
    /// The last 4 KiB of its standard error.
    pub stderr: String,
}

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program is missing or not executable.
    #[error("cannot run {program:?}: {reason}")]
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
    /// It used too much memory and was killed.
    #[error("{program:?} used {used} MiB of memory, more than `memory_mb: {limit}`, and was killed{}", tail(.stderr))]
    Memory {
        /// The program.
        program: String,
        /// MiB that it and what it started held.
        used: u64,
        /// The limit in MiB.
        limit: u64,
        /// The end of its standard error.
        stderr: String,
    },
    /// It printed too much and was killed.
    #[error("{program:?} printed more than `max_output_mb: {limit}` and was killed{}", tail(.stderr))]
    Output {
        /// The program.
        program: String,
        /// The limit in MiB.
        limit: u64,
        /// The end of its standard error.
        stderr: String,
    },
    /// It failed by its exit status.
    #[error("{program:?} ended with {status}{}", tail(.stderr))]
    Exit {
        /// The program.
        program: String,
        /// Code or signal.
        status: ExitStatus,
        /// Its standard output; empty of a worker.
        stdout: String,
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
#[derive(Debug)]
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // A group that has no member left is no error.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

/// A program that was started. Dropping it ends the program and everything that it started.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    child: Child,
    /// Without a supervisor only.
    group: Option<Group>,
    /// Its standard input, a pipe, until someone takes it. A supervisor ends the program when this closes.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, a pipe, until someone takes it.
    pub stdout: Option<ChildStdout>,
    /// The end of its standard error.
    pub stderr: Captured,
    stderr_is_read: Option<JoinHandle<()>>,
    timeout: Duration,
    memory_mb: Option<u64>,
    max_output_mb: u64,
    /// How long it may take to end.
    patience: Duration,
}

/// How a program ended.
#[derive(Debug)]
pub(super) enum End {
    /// Without being killed.
    Exited(std::io::Result<ExitStatus>),
    /// It ran longer than it may.
    Timeout,
    /// MiB held.
    Memory(u64),
    /// It printed more than it may.
    Output,
}

impl Running {
    /// Starts a program. The first `input` bytes of its standard input are its own.
    ///
    /// # Errors
    /// Fails if it cannot be started. Below a supervisor, the error of its end says so.
    pub fn start(program: &Program, input: u64) -> Result<Self, ProgramError> {
        let name = program.argv.first().cloned().unwrap_or_default();
        let supervisor = SUPERVISOR.get();
        let mut command = match supervisor {
            Some(supervisor) => {
                let mut command = tokio::process::Command::new(supervisor);
                let stop = program.stop.iter().map(|argument| format!("--stop={argument}"));
                command.arg("supervise").arg(format!("--input={input}")).args(stop);
                command.args(["--", &name]);
                command
            }
            None => tokio::process::Command::new(&name),
        };
        command
            .args(program.argv.iter().skip(1))
            .env_clear()
            .envs(environment::passed(&program.env_pass))
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A supervisor ends when its standard input closes.
            .kill_on_drop(supervisor.is_none());
        if let Some(cwd) = &program.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn().map_err(|reason| ProgramError::Start {
            program: name.clone(),
            reason,
        })?;
        let group = child.id().filter(|_| supervisor.is_none());
        let stderr = Captured::default();
        let stderr_is_read = tokio::spawn(stderr.clone().keep_end(child.stderr.take(), STDERR_BYTES));
        Ok(Self {
            name,
            group: group.map(|id| Group(Pid::from_raw(id as i32))),
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            child,
            stderr,
            stderr_is_read: Some(stderr_is_read),
            timeout: program.timeout,
            memory_mb: program.memory_mb,
            max_output_mb: program.max_output_mb,
            patience: match program.stop.is_empty() {
                true => END,
                false => END + supervisor::STOP,
            },
        })
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the program ends or holds too much memory.
    pub async fn end(&mut self) -> End {
        let memory = table::memory_above(self.child.id(), self.memory_mb.map(|limit| limit.saturating_mul(MIB)));
        tokio::select! {
            status = self.child.wait() => End::Exited(status),
            bytes = memory => End::Memory(bytes.div_ceil(MIB)),
        }
    }

    /// Ends the program and waits until it is gone.
    async fn close(&mut self) {
        // Without a supervisor, children that outlive the program would hold its pipes open.
        self.group = None;
        self.stdin = None;
        if tokio::time::timeout(self.patience, self.child.wait()).await.is_err() {
            tracing::warn!("cannot end {:?} within {} s", self.name, self.patience.as_secs());
        }
        // Descendants may keep the pipe open; they are not waited for.
        if let Some(reader) = self.stderr_is_read.take() {
            let _ = tokio::time::timeout(DRAIN, reader).await;
        }
    }

    /// Ends the program, unless it has ended, and says why it failed.
    pub async fn fail(mut self, end: End) -> ProgramError {
        self.close().await;
        let stderr = self.stderr.text();
        let program = std::mem::take(&mut self.name);
        match end {
            End::Exited(Err(reason)) => ProgramError::Start { program, reason },
            End::Exited(Ok(status)) => match stderr.strip_prefix(supervisor::NOT_STARTED) {
                Some(reason) => ProgramError::Start {
                    program,
                    reason: std::io::Error::other(reason.trim_end().to_string()),
                },
                None => ProgramError::Exit {
                    program,
                    status,
                    stdout: String::new(),
                    stderr,
                },
            },
            End::Timeout => ProgramError::Timeout {
                program,
                seconds: self.timeout.as_secs_f64(),
                stderr,
            },
            End::Memory(used) => ProgramError::Memory {
                program,
                used,
                limit: self.memory_mb.unwrap_or_default(),
                stderr,
            },
            End::Output => ProgramError::Output {
                program,
                limit: self.max_output_mb,
                stderr,
            },
        }
    }
}

/// Runs a program to its end. Dropping the future kills it and its children.
///
/// # Errors
/// Fails if the program cannot be started, exceeds a limit or exits with another code than 0.
pub(super) async fn run(program: Program) -> Result<Finished, ProgramError> {
    let mut running = Running::start(&program, program.stdin.len() as u64)?;
    let (stdout, exceeded) = (Captured::default(), Arc::new(Notify::new()));
    let reading = stdout.clone().keep_all(running.stdout.take(), program.max_output());
    let notified = exceeded.clone();
    let reader = tokio::spawn(async move {
        let is_whole = reading.await;
        if !is_whole {
            notified.notify_one();
        }
        is_whole
    });
    let mut stdin = running.stdin.take();
    let feed = async {
        if let Some(pipe) = &mut stdin {
            // A program that does not read its input closes the pipe, which is its right.
            let _ = pipe.write_all(&program.stdin).await;
        }
        if SUPERVISOR.get().is_none() {
            stdin = None;
        }
        std::future::pending().await
    };
    let mut end = tokio::select! {
        end = running.end() => end,
        () = tokio::time::sleep(program.timeout) => End::Timeout,
        () = exceeded.notified() => End::Output,
        never = feed => never,
    };
    drop(stdin);
    running.close().await;
    // Descendants may keep the pipe open; they are not waited for.
    if let (End::Exited(_), Ok(Ok(false))) = (&end, tokio::time::timeout(DRAIN, reader).await) {
        end = End::Output;
    }
    match end {
        End::Exited(Ok(status)) if status.success() => Ok(Finished {
            stdout: stdout.text(),
            stderr: running.stderr.text(),
        }),
        end => Err(match running.fail(end).await {
            ProgramError::Exit {
                program,
                status,
                stderr,
                ..
            } => ProgramError::Exit {
                program,
                status,
                stdout: stdout.text(),
                stderr,
            },
            error => error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            argv: ["sh", "-c", script].map(String::from).to_vec(),
            env: vec![("GREETING".into(), "hello".into())],
            stdin: b"from stdin".to_vec(),
            timeout: Duration::from_secs(60),
            ..Program::default()
        }
    }

    #[tokio::test]
    async fn a_program_gets_its_input_and_environment_and_gives_its_output() {
        let finished = run(shell("printf \"$GREETING \"; cat; echo oops >&2")).await.unwrap();
        assert_eq!(finished.stdout, "hello from stdin");
        assert_eq!(finished.stderr, "oops\n");
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
        assert!(message.contains("cannot run \"no-such-program-here\""), "{message}");
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

    /// A limit of memory holds for all processes of a program together.
    #[tokio::test]
    async fn a_program_over_a_limit_is_killed_under_its_own_reason() {
        let memory = Program {
            memory_mb: Some(64),
            ..shell("head -c 300m /dev/zero | tail -c 200m | sleep 600")
        };
        let error = run(memory).await.unwrap_err();
        assert!(
            matches!(
                error,
                ProgramError::Memory {
                    limit: 64,
                    used: 65..,
                    ..
                }
            ),
            "{error}"
        );
        let output = Program {
            max_output_mb: 1,
            ..shell("echo why >&2; yes")
        };
        let message = run(output).await.unwrap_err().to_string();
        assert!(
            message.contains("printed more than `max_output_mb: 1` and was killed") && message.contains("why"),
            "{message}"
        );
        let silent = Program {
            max_output_mb: 1,
            ..shell("head -c 1m /dev/zero; exec >&-; sleep 0.1")
        };
        assert_eq!(run(silent).await.unwrap().stdout.len(), 1 << 20);
    }

    /// Waits until no such process runs; one that is not reaped yet counts as gone.
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
}
