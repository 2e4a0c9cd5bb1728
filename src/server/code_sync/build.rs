//! Builds the engine of a snapshot with cargo.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::cargo_output::{Message, Progress, message, progress};
use super::error::{BuildError, CodeError};
use super::snapshot::Snapshot;
use crate::protocol::swarm::TOKEN_VARIABLE;
use crate::protocol::training_code::PACKAGE;

/// Profile of `Cargo.toml` with which snapshots are built.
const PROFILE: &str = "synced";
/// Maximum bytes of a line; longer ones are cut.
const LINE_BYTES: usize = 1024 * 1024;
/// Maximum bytes of a build's output that are kept.
const LOG_BYTES: usize = 1024 * 1024;
/// Number of cargo's own error lines in a reason.
const ERROR_LINES: usize = 4;
/// Time for output to arrive after cargo has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Time for another build in the same directory to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for `cargo --version`, which may have to unpack a toolchain.
const VERSION_TIMEOUT: Duration = Duration::from_secs(120);

/// How snapshots are built.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The cargo program.
    pub cargo: PathBuf,
    /// Directory of the snapshots; the build's directories lie below it.
    pub root: PathBuf,
    /// Maximum time of a build.
    pub timeout: Duration,
}

/// What a build reports while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// How far it is.
    Progress(&'a Progress),
    /// A line of cargo's.
    Line(&'a str),
    /// An error of the compiler, several lines.
    Error(&'a str),
}

impl Builder {
    /// Checks that cargo can be run in a snapshot's directory, which may choose a toolchain.
    ///
    /// # Errors
    ///
    /// [`CodeError::NoCargo`] with the reason.
    pub async fn check_cargo(&self, dir: &Path) -> Result<(), CodeError> {
        let run = cargo(&self.cargo).arg("--version").current_dir(dir).output();
        let output = match timeout(VERSION_TIMEOUT, run).await {
            Err(_) => {
                return Err(CodeError::NoCargo(format!(
                    "cargo --version did not end within {VERSION_TIMEOUT:?}"
                )));
            }
            Ok(Err(error)) => {
                return Err(CodeError::NoCargo(format!(
                    "cannot run {}: {error}",
                    self.cargo.display()
                )));
            }
            Ok(Ok(output)) => output,
        };
        match output.status.success() {
            true => Ok(()),
            false => Err(CodeError::NoCargo(one_line(&String::from_utf8_lossy(&output.stderr)))),
        }
    }

    /// Builds a snapshot's engine, unless that was done before; returns its program. Dropping the future ends cargo.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot does not compile, the time is over, or the disk fails.
    pub async fn build(&self, snapshot: &Snapshot, observe: impl Fn(Event<'_>) + Sync) -> Result<PathBuf, BuildError> {
        let engine = snapshot.engine();
        if engine.is_file() {
            return Ok(engine);
        }
        let (directory, source) = (self.root.join("build"), snapshot.code_path());
        let prepared = tokio::task::spawn_blocking(move || Directory::prepare(&directory, &source));
        let directory = prepared.await.map_err(io::Error::other)??;
        let record = Mutex::new(Record::default());
        let outcome = timeout(self.timeout, self.run(&directory, &record, &observe)).await;
        let record = record.into_inner().unwrap_or_else(PoisonError::into_inner);
        tokio::fs::write(snapshot.build_log(), &record.log).await?;
        match outcome {
            Err(_) => return Err(BuildError::Timeout(self.timeout)),
            Ok(Err(error)) => return Err(BuildError::Cargo(error)),
            Ok(Ok(false)) => return Err(BuildError::Compile(record.reason())),
            Ok(Ok(true)) => {}
        }
        // cargo and the linker replace this file instead of writing to it, so that a link keeps what was built.
        tokio::fs::hard_link(record.program.ok_or(BuildError::NoProgram)?, &engine).await?;
        Ok(engine)
    }

    /// Runs cargo to its end; returns whether it succeeded.
    async fn run(
        &self,
        directory: &Directory,
        record: &Mutex<Record>,
        observe: &(impl Fn(Event<'_>) + Sync),
    ) -> io::Result<bool> {
        let (mut child, _group) = self.spawn(directory)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = async {
            tokio::join!(
                each_line(stdout, |line| note_message(line, record, observe)),
                each_line(stderr, |line| note_line(line, record, observe)),
            )
        };
        // What cargo started may keep its output open.
        tokio::select! {
            _ = output => {}
            () = async { let _ = child.wait().await; sleep(LAST_OUTPUT).await } => {}
        }
        Ok(child.wait().await?.success())
    }

    fn spawn(&self, directory: &Directory) -> io::Result<(Child, ProcessGroup)> {
        let start = |mut command: Command| {
            command
                .args(["build", "--locked", "--bin", PACKAGE, "--profile", PROFILE])
                .arg("--message-format=json")
                .arg("--target-dir")
                .arg(&directory.target)
                .current_dir(&directory.source)
                .env("CARGO_TERM_COLOR", "never")
                .env("CARGO_TERM_PROGRESS_WHEN", "always")
                .env("CARGO_TERM_PROGRESS_WIDTH", "100")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0)
                .kill_on_drop(true)
                .spawn()
        };
        let mut polite = cargo(Path::new("nice"));
        polite.args(["-n", "10"]).arg(&self.cargo);
        let child = match start(polite) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => start(cargo(&self.cargo))?,
            started => started?,
        };
        let group = ProcessGroup(child.id());
        Ok((child, group))
    }
}

/// Returns a command without the server's secrets, as the engine has none.
fn cargo(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_remove(TOKEN_VARIABLE)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// cargo and its compilers, killed when dropped.
struct ProcessGroup(Option<u32>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0.and_then(|pid| i32::try_from(pid).ok()) {
            // Fails if all of them have ended.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The directories of a build, locked against other servers.
struct Directory {
    source: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Directory {
    fn prepare(dir: &Path, source: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        let lock = File::create(dir.join("lock"))?;
        let began = Instant::now();
        // A build that was just given up may take a moment to end.
        while lock.try_lock().is_err() {
            if began.elapsed() > LOCK_TIMEOUT {
                return Err(io::Error::other(format!("another server builds in {}", dir.display())));
            }
            std::thread::sleep(LOCK_TIMEOUT / 20);
        }
        let directory = Self {
            source: dir.join("ajet"),
            target: dir.join("target"),
            _lock: lock,
        };
        super::workspace::mirror(source, &directory.source)?;
        Ok(directory)
    }
}

/// What is kept of a build's output.
#[derive(Default)]
struct Record {
    first_error: Option<String>,
    /// cargo's own errors, such as a lock file that must change.
    own_errors: Vec<String>,
    program: Option<PathBuf>,
    log: String,
}

impl Record {
    fn log(&mut self, text: &str) {
        if self.log.len() + text.len() < LOG_BYTES {
            self.log.push_str(text.trim_end());
            self.log.push('\n');
        }
    }

    fn reason(self) -> String {
        let own = || one_line(&self.own_errors.join(" "));
        self.first_error.unwrap_or_else(own)
    }
}

fn locked(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note_message(line: &str, record: &Mutex<Record>, observe: &impl Fn(Event<'_>)) {
    let Some(message) = message(line) else { return };
    let mut record = locked(record);
    match message {
        Message::Error { summary, rendered } => {
            record.first_error.get_or_insert_with(|| one_line(&summary));
            record.log(&rendered);
            observe(Event::Error(&rendered));
        }
        Message::Warning(rendered) => record.log(&rendered),
        Message::Program { name, path } if name == PACKAGE => record.program = Some(path),
        Message::Program { .. } => {}
    }
}

fn note_line(line: &str, record: &Mutex<Record>, observe: &impl Fn(Event<'_>)) {
    if let Some(progress) = progress(line) {
        observe(Event::Progress(&progress));
    } else if !line.trim().is_empty() {
        let mut record = locked(record);
        let continues = !record.own_errors.is_empty();
        if (continues || line.starts_with("error")) && record.own_errors.len() < ERROR_LINES {
            record.own_errors.push(line.trim().to_owned());
        }
        record.log(line);
        observe(Event::Line(line.trim()));
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads lines that end with a line feed or, as those of a progress bar, with a carriage return.
async fn each_line(reader: Option<impl AsyncRead + Unpin>, mut act: impl FnMut(&str)) {
    let Some(mut reader) = reader else { return };
    let (mut line, mut chunk) = (Vec::new(), vec![0; 16 * 1024]);
    while let Ok(read @ 1..) = reader.read(&mut chunk).await {
        for byte in &chunk[..read] {
            match byte {
                b'\n' | b'\r' => {
                    act(&String::from_utf8_lossy(&line));
                    line.clear();
                }
                _ if line.len() < LINE_BYTES => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        act(&String::from_utf8_lossy(&line));
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
