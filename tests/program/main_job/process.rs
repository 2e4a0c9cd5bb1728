//! A swarm server as a user starts it: a process with a working directory of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Killed if a test fails before it ends.
pub struct Server {
    child: Child,
    _out: BufReader<ChildStdout>,
    pub banner: String,
    pub url: String,
    dir: PathBuf,
}

impl Server {
    /// One that works in `dir`, with more arguments.
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"))
            .args(["start", "--swarm-port", "0"])
            .args(args)
            .env_remove("AJET_SWARM_TOKEN")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ctrl-C") {
            assert!(out.read_line(&mut banner).unwrap() > 0, "ended after {banner:?}");
        }
        let (_, after) = banner.split_once(" port ").unwrap();
        let port: u16 = after.lines().next().unwrap().parse().unwrap();
        Self {
            child,
            _out: out,
            banner,
            url: format!("http://127.0.0.1:{port}"),
            dir: dir.to_owned(),
        }
    }

    pub fn experiment_dir(&self) -> PathBuf {
        self.dir.join("saved_experiments/main-job")
    }

    /// Ends it by a signal; the exit code, if it had a say.
    pub fn end_by(mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Process ids of the engines that work in this server's directory.
    pub fn engines(&self) -> Vec<i32> {
        engines_in(&self.dir)
    }
}

/// Process ids of the engines that work in a directory.
pub fn engines_in(dir: &Path) -> Vec<i32> {
    let is_one = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        command.contains(" engine --socket") && command.contains(&*dir.to_string_lossy())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(is_one).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
