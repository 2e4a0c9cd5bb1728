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
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

/// What standard error begins with where the program could not be started.
pub(super) const NOT_STARTED: &str = "ajet-swarm supervise: cannot start the program: ";

/// How long processes are killed that start others as fast as they are.
const PATIENCE: Duration = Duration::from_secs(5);

enum Event {
    Ended(i32, ExitStatus),
    ParentGone,
}

/// Runs a program as a child, with the first `input` bytes of standard input as its own, and ends as it does.
///
/// # Errors
/// It cannot be watched; that it cannot be started is an exit code, 127.
pub fn supervise(argv: &[OsString], input: u64) -> io::Result<u8> {
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
    Ok(status.map_or(1, exit_code))
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
fn feed(program: Option<impl Write>, input: u64) {
    let mut stdin = io::stdin().lock();
    let mut mine = (&mut stdin).take(input);
    // A program that does not read its input closes the pipe, which is its right.
    let _ = program.map(|mut program| io::copy(&mut mine, &mut program));
    while matches!(stdin.read(&mut [0; 4096]), Ok(1..)) {}
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
        let running = descendants(std::process::id());
        for pid in &running {
            let _ = kill(Pid::from_raw(*pid as i32), Signal::SIGKILL);
        }
        if running.is_empty() || started.elapsed() > PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every running process that descends from `ancestor`, as far as the system shows: where there is no `/proc`, none.
fn descendants(ancestor: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| {
            Some((
                pid,
                parent_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?,
            ))
        })
        .collect();
    let mut found = vec![ancestor];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

/// The parent in a line of `/proc/PID/stat`, `PID (NAME) STATE PARENT …`; `None` of a process that has ended.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.next()?.parse().ok())?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_whatever_the_name() {
        assert_eq!(parent_in("7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_in("7 (a) R 9) S (b) S 12 7"), Some(12));
        assert_eq!(parent_in("7 (sh) Z 3 7"), None);
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn children_are_descendants_until_they_end() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let me = std::process::id();
        assert!(descendants(me).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(me).contains(&child.id()));
    }
}
