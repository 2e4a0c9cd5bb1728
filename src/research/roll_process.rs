//! One run: `ajet-swarm roll` as a process, which ends with all that it started when this process does.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::protocol::swarm::TOKEN_VARIABLE;

/// Maximum length of a last word.
const LAST_WORDS: usize = 400;
/// Time for a run to end after its last line.
const EXIT_TIMEOUT: Duration = Duration::from_secs(120);

/// How `roll` is started.
#[derive(Clone, Debug)]
pub struct Roll {
    /// `ajet-swarm`.
    pub program: PathBuf,
    /// The job file.
    pub job: PathBuf,
    /// File for what it says to people.
    pub log: PathBuf,
    /// Settings over the job.
    pub settings: Vec<String>,
    /// The server, if it is not the job's.
    pub server: Option<String>,
    /// Access token of the server, if it requires one.
    pub token: Option<String>,
}

/// A `roll` under way.
#[derive(Debug)]
pub struct RunningRoll {
    child: Child,
    log: PathBuf,
}

impl Roll {
    /// Starts it.
    ///
    /// # Errors
    /// The program or its log cannot be opened.
    pub fn start(&self) -> io::Result<RunningRoll> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(["supervise", "--"])
            .arg(&self.program)
            .arg("roll")
            .arg(&self.job)
            .arg("--json");
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        if let Some(server) = &self.server {
            command.args(["--swarm-url", server]);
        }
        if let Some(token) = &self.token {
            command.env(TOKEN_VARIABLE, token);
        }
        let child = command
            // Held open: everything ends when it closes, and so with this process, however that ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for this process, which then ends the run.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let log = self.log.clone();
        Ok(RunningRoll { child, log })
    }
}

impl RunningRoll {
    /// Passes each line of its output to `act` until there is no more.
    ///
    /// # Errors
    /// `act` does.
    pub async fn each_line<E>(&mut self, mut act: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let Some(stdout) = self.child.stdout.take() else {
            return Ok(());
        };
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            act(&line)?;
        }
        Ok(())
    }

    /// Waits until the process has exited; returns the end of its stderr if it failed.
    ///
    /// # Errors
    /// Fails if the system cannot report the exit.
    pub async fn ended(mut self) -> io::Result<Option<String>> {
        let stdin = self.child.stdin.take(); // closing it would end the run
        let status = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await;
        drop(stdin);
        let status = match status {
            Ok(status) => status?,
            Err(_) => self.child.wait().await?,
        };
        Ok((!status.success()).then(|| last_words(&self.log)))
    }

    /// Ends it with all that it started.
    ///
    /// # Errors
    /// Fails if the system cannot report the exit.
    pub async fn stop(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        self.child.wait().await.map(|_| ())
    }
}

/// Returns the error at the end of a log, on one line.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 * 1024)..]).into_owned();
    let from = text
        .rfind("error: ")
        .unwrap_or(text.trim_end().rfind('\n').map_or(0, |at| at + 1));
    let words: Vec<_> = text[from..].split_whitespace().collect();
    words.join(" ").chars().take(LAST_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_explains_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        for (text, words) in [
            (
                "started\nerror: no batch\nhint: more tasks\n",
                "error: no batch hint: more tasks",
            ),
            ("error: old\nfine\nerror: new\n", "error: new"),
            ("started\ngone\n", "gone"),
            ("", ""),
        ] {
            fs::write(&log, text).unwrap();
            assert_eq!(last_words(&log), words);
        }
        assert_eq!(last_words(&dir.path().join("none")), "");
    }
}
