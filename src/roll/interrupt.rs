//! Ctrl-C: once, and the run winds up; twice, and it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a process that was stopped by Ctrl-C exits with.
pub const EXIT_CODE: u8 = 130;

/// Ctrl-C and SIGTERM, as a run sees them. The default never sees one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    token: CancellationToken,
    /// A server that has to go with us; 0 for none.
    server: Arc<AtomicU32>,
}

impl Interrupt {
    /// Listens from now on, for as long as the process lives.
    ///
    /// # Errors
    /// The system gives no signals.
    pub fn listen() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let (mut ctrl_c, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let listening = interrupt.clone();
        tokio::spawn(async move {
            tokio::select! { _ = ctrl_c.recv() => {}, _ = terminate.recv() => {} }
            eprintln!("stopping: running episodes are finished or given up; once more to stop at once");
            listening.stop();
            tokio::select! { _ = ctrl_c.recv() => {}, _ = terminate.recv() => {} }
            listening.exit_now();
        });
        Ok(interrupt)
    }

    /// Winds the run up, as the first Ctrl-C does.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Names a server that is asked to end where the process exits at once.
    pub(super) fn takes_along(&self, pid: Option<u32>) {
        self.server.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// Resolves at the first Ctrl-C.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// Whether there was a Ctrl-C.
    pub fn happened(&self) -> bool {
        self.token.is_cancelled()
    }

    fn exit_now(&self) -> ! {
        let server = self.server.load(Ordering::Relaxed);
        if server != 0 {
            let _ = kill(Pid::from_raw(server as i32), Signal::SIGTERM);
        }
        std::process::exit(EXIT_CODE.into())
    }
}
