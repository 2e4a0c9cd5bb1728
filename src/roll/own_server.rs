//! A swarm server that `roll` starts itself and ends again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::client::ServerUrl;

/// The line by which a server says that it listens; Python clients wait for it too.
const BANNER: &str = "Interchange server is running in blocking mode";

/// How long a server may take to say so.
const START: Duration = Duration::from_secs(60);

/// How long a server may take to write what it has and end.
const END: Duration = Duration::from_secs(15);

/// What a server of our own reads from its standard input where it is to stay when that closes.
pub const STAY: &str = "stay\n";

/// Why no server could be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No process, or no log file for it.
    #[error("cannot start a swarm server: {0}")]
    Start(#[from] std::io::Error),
    /// The server exited right after its start.
    #[error("the swarm server exited right after its start; its log {} ends with:\n{tail}", log.display())]
    Ended {
        /// Its output.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// The server does not report that it listens.
    #[error("the swarm server did not start listening within {} s\nhint: see its log {}", START.as_secs(), .0.display())]
    Silent(PathBuf),
}

/// A server that this process started. Killed when dropped; [`OwnServer::stop`] is the gentle way.
#[derive(Debug)]
pub struct OwnServer {
    child: Child,
    log: PathBuf,
}

impl OwnServer {
    /// Starts a server for a local URL and waits until it listens. `program` is `ajet-swarm`; `flags` are those of its
    /// `start` command.
    pub async fn start(program: &Path, url: &ServerUrl, flags: &[&str]) -> Result<Self, ServerError> {
        let (file, log) = tempfile::Builder::new()
            .prefix("ajet-swarm-start-")
            .suffix(".log")
            .tempfile()?
            .keep()
            .map_err(|error| error.error)?;
        let child = Command::new(program)
            .args(["start", "--end-with-stdin", &format!("--swarm-port={}", url.port())])
            .args(flags)
            // Held open: it ends when this closes, and so with us, however we end.
            .stdin(Stdio::piped())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C in a terminal reaches the whole foreground group; the server has to outlive it by a moment, to
            // take the aborts of our episodes and to write what it has.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let mut server = Self { child, log };
        server.wait_for_banner().await?;
        Ok(server)
    }

    async fn wait_for_banner(&mut self) -> Result<(), ServerError> {
        let started = Instant::now();
        while started.elapsed() < START {
            if self.text().contains(BANNER) {
                return Ok(());
            }
            if self.child.try_wait()?.is_some() {
                let text = self.text();
                let lines: Vec<_> = text.trim_end().lines().rev().take(10).collect();
                let tail: Vec<_> = lines.into_iter().rev().collect();
                return Err(ServerError::Ended {
                    log: self.log.clone(),
                    tail: tail.join("\n"),
                });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(ServerError::Silent(self.log.clone()))
    }

    fn text(&self) -> String {
        use std::io::Read as _;
        let mut bytes = vec![];
        // The banner is at the start; a log that grew large is not read whole.
        let read = File::open(&self.log).and_then(|file| file.take(1 << 20).read_to_end(&mut bytes));
        read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Leaves the server running when this process ends. Returns its process.
    pub async fn leave(mut self) -> Option<u32> {
        let process = self.child.id();
        if let Some(mut stdin) = self.child.stdin.take() {
            // A server that is gone needs no word.
            let _ = stdin.write_all(STAY.as_bytes()).await;
            let _ = stdin.shutdown().await;
        }
        // Dropping the handle would kill it.
        std::mem::forget(self.child);
        process
    }

    /// Asks the server to end and waits until it has; one that takes too long is killed.
    pub async fn stop(mut self) {
        if let Some(pid) = self.child.id() {
            // It may have exited before.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        }
        if tokio::time::timeout(END, self.child.wait()).await.is_err() {
            tracing::warn!("the swarm server did not end within {} s and is killed", END.as_secs());
            let _ = self.child.kill().await;
        }
    }
}
