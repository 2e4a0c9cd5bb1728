//! Ctrl-C and its kin: once, and the run winds up; twice, and it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::terminal::{READER_GONE, note};

/// What a process that was stopped by Ctrl-C exits with.
const EXIT_CODE: u8 = 130;

/// What winds a run up: a signal of [`EndSignals`], or a reader of its output that went away. The default never sees
/// one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    token: CancellationToken,
    reader_gone: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on, for as long as the process lives.
    ///
    /// # Errors
    /// Fails if signals cannot be handled.
    pub fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = EndSignals::listen()?;
        let listening = interrupt.clone();
        tokio::spawn(async move {
            signals.next().await;
            note("stopping: running episodes are finished or given up; once more to stop at once");
            listening.stop();
            signals.next().await;
            // Agents and a server of ours notice that we are gone, and follow.
            std::process::exit(EXIT_CODE.into());
        });
        Ok(interrupt)
    }

    /// Winds the run up, as the first Ctrl-C does.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Winds the run up, since nobody reads what it prints.
    pub(super) fn reader_is_gone(&self) {
        self.reader_gone.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Resolves at the first Ctrl-C.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// Whether there was a Ctrl-C.
    pub fn happened(&self) -> bool {
        self.token.is_cancelled()
    }

    /// What an interrupted run exits with.
    pub fn exit_code(&self) -> u8 {
        match self.reader_gone.load(Ordering::Relaxed) {
            true => READER_GONE,
            false => EXIT_CODE,
        }
    }
}

/// Signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, SIGQUIT, and SIGHUP (its terminal is gone) unless it
/// was started by `nohup`.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    hang_up: Option<Signal>,
}

impl EndSignals {
    /// Listens from now on, for as long as the process lives.
    ///
    /// # Errors
    /// Fails if signals cannot be handled.
    pub fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up: match ignores(&status, SignalKind::hangup()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Resolves at the next one.
    pub async fn next(&mut self) {
        let hung_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Whether a process was started with a signal ignored, by `SigIgn` of its `/proc/PID/status`: a hexadecimal mask whose
/// lowest bit is signal 1.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_ignored() {
        for (mask, ignored) in [("0000000000000001", true), ("0000000000001000", false), ("", false)] {
            let status = format!("Name:\tx\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
            assert_eq!(ignores(&status, SignalKind::hangup()), ignored, "{mask}");
        }
        assert!(!ignores("", SignalKind::hangup()));
    }
}
