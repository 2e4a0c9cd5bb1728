//! Ctrl-C and other signals: the first one ends a run in order, the second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::terminal::{READER_GONE, note};

/// Exit code of a process that was stopped by Ctrl-C.
const EXIT_CODE: u8 = 130;

/// Interruption of a run: a signal of [`EndSignals`], or a closed standard output. The default is never interrupted.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    token: CancellationToken,
    reader_gone: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for signals until the process exits.
    ///
    /// # Errors
    /// Fails if signals cannot be handled.
    pub fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = EndSignals::listen()?;
        let listening = interrupt.clone();
        tokio::spawn(async move {
            signals.next().await;
            note("stopping: running episodes are finished or aborted; press Ctrl-C again to exit now");
            listening.stop();
            signals.next().await;
            // Agents and the server that `roll` started notice that this process is gone, and end too.
            std::process::exit(EXIT_CODE.into());
        });
        Ok(interrupt)
    }

    /// Ends the run in order, as the first Ctrl-C does.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Ends the run in order, since its output has no reader.
    pub(super) fn reader_is_gone(&self) {
        self.reader_gone.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Waits for the first Ctrl-C.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// Returns whether there was a Ctrl-C.
    pub fn happened(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns the exit code of an interrupted run.
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
    /// Listens for signals until the process exits.
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

    /// Waits for the next signal.
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

/// Returns whether a process was started with a signal ignored, by `SigIgn` of its `/proc/PID/status`: a hexadecimal
/// mask whose lowest bit is signal 1.
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
