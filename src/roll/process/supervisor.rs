//! A program's supervisor: the process between `roll` and a program of a job. It ends the program and everything that
//! it started, whatever groups and sessions they moved to, as soon as the program ends or `roll` is gone, however that
//! came about: its standard input is a pipe from `roll`, which the system closes with the process.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, wait, waitpid};
use nix::unistd::Pid;

use super::table::Table;

/// What standard error begins with where the program could not be started.
pub(super) const NOT_STARTED: &str = "ajet-swarm supervise: cannot start the program: ";

/// How long processes are killed that start others as fast as they are.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long `stop_argv` may run.
pub(super) const STOP: Duration = Duration::from_secs(20);

enum Event {
    Ended(i32, ExitStatus),
    ParentGone,
}

/// Runs a program as a child, with the first `input` bytes of standard input as its own, and ends as it does. When all
/// that it started is gone, `stop` is run, unless it is empty: it ends what is no process of ours, such as a container.
///
/// # Errors
/// Fails if the program cannot be supervised; one that cannot be started is the exit code 127.
pub fn supervise(argv: &[OsString], input: u64, stop: &[OsString]) -> io::Result<u8> {
    // What the program's children leave behind becomes ours and not the system's.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut program = match start(argv) {
        Ok(program) => program,
        Err(error) => {
            crate::terminal::note(&format!("{NOT_STARTED}{error}"));
            return Ok(127);
        }
    };
    let (group, stdin) = (Pid::from_raw(program.id() as i32), program.stdin.take());
    let (events, happened) = mpsc::channel();
    let ended = events.clone();
    std::thread::Builder::new().spawn(move || {
        feed(stdin, input);
        // The supervisor may be ending already.
        let _ = events.send(Event::ParentGone);
    })?;
    std::thread::Builder::new().spawn(move || reap(&ended))?;
    let status = loop {
        match happened.recv() {
            Ok(Event::Ended(pid, status)) if pid == group.as_raw() => break Some(status),
            Ok(Event::Ended(..)) => {}
            Ok(Event::ParentGone) | Err(_) => break None,
        }
    };
    end_all(group);
    if !stop.is_empty() {
        run_stop(stop, status.is_some());
    }
    Ok(status.map_or(1, exit_code))
}

/// Runs `stop_argv` for at most [`STOP`]. Its complaints go to standard error where `someone_reads`.
fn run_stop(argv: &[OsString], someone_reads: bool) {
    let complaints = if someone_reads { Stdio::inherit() } else { Stdio::null() };
    let started = Instant::now();
    let stopping = Command::new(&argv[0])
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints)
        .process_group(0)
        .spawn();
    match stopping {
        Err(error) => crate::terminal::note(&format!("cannot run stop_argv, {:?}: {error}", argv[0])),
        Ok(mut child) => {
            // An error means that `reap` was faster: it has ended.
            while matches!(child.try_wait(), Ok(None)) && started.elapsed() < STOP {
                std::thread::sleep(Duration::from_millis(10));
            }
            end_all(Pid::from_raw(child.id() as i32));
        }
    }
}

fn start(argv: &[OsString]) -> io::Result<Child> {
    let (name, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Passes the program's input on and reads until the other end closes.
fn feed(program: Option<impl Write + Send + 'static>, input: u64) {
    // A thread of its own: a program that reads slowly must not keep us from seeing that the other end closes.
    let (chunks, received) = mpsc::channel::<Vec<u8>>();
    let writer = std::thread::Builder::new().spawn(move || {
        let Some(mut program) = program else { return };
        // A program that does not read its input closes the pipe, which is its right.
        while received.recv().is_ok_and(|chunk| program.write_all(&chunk).is_ok()) {}
    });
    let (mut stdin, mut left) = (io::stdin().lock(), input);
    // Without the writer's thread there is no input; the program sees the pipe closed.
    let mut chunks = writer.ok().map(|_| chunks);
    let mut chunk = [0; 16 << 10];
    loop {
        if left == 0 {
            chunks = None;
        }
        let Ok(length @ 1..) = stdin.read(&mut chunk) else {
            return;
        };
        let mine = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= mine as u64;
        // The writer ends where the program has closed the pipe.
        let _ = chunks.as_ref().map(|chunks| chunks.send(chunk[..mine].to_vec()));
    }
}

/// Tells the end of every child, adopted ones too.
fn reap(ended: &mpsc::Sender<Event>) {
    loop {
        let (pid, status) = match wait() {
            Ok(WaitStatus::Exited(pid, code)) => (pid, ExitStatus::from_raw(code << 8)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, ExitStatus::from_raw(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        if ended.send(Event::Ended(pid.as_raw(), status)).is_err() {
            return;
        }
    }
}

/// Kills the program's group, and all of our descendants until there are none.
fn end_all(group: Pid) {
    let started = Instant::now();
    loop {
        // A group or a process that is gone by now is no error.
        let _ = killpg(group, Signal::SIGKILL);
        let running = Table::read().descendants(std::process::id());
        for pid in &running {
            let _ = kill(Pid::from_raw(*pid as i32), Signal::SIGKILL);
        }
        // The table alone is not enough: a process whose parent ends while the table is read has no place in it.
        if no_child_left() && running.is_empty() || started.elapsed() > PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the system knows of no child of ours, adopted ones included. Reaps those that have ended.
fn no_child_left() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}

/// The program's exit code. Where a signal ended it, this process ends by the same one.
fn exit_code(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        // Signals that do not end a process come back as the shell's code.
        let _ = Signal::try_from(signal).map(raise);
        return 128_u8.saturating_add(signal as u8);
    }
    status.code().map_or(1, |code| code as u8)
}
