//! What all handlers and background tasks share: the core behind its mutex, the engine that runs, the odds and ends.

use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, mpsc};

use super::clock::Clock;
use super::engine::client::EngineClient;
use super::engine::process::{EngineHandle, EngineLauncher};
use super::http::body_room::BodyRoom;
use super::http::lane::Lane;
use super::model_api::latest_call::LatestCall;
use super::options::Options;
use super::swarm::core::{Core, Effect};
use super::swarm::held_claims::HeldClaims;
use super::verbose_log::VerboseLogs;

/// An engine process and the ways to reach it.
#[derive(Clone)]
pub struct EngineLink {
    /// Calls.
    pub client: EngineClient,
    /// The process.
    pub process: EngineHandle,
    /// Carried out in order by one task.
    pub effects: mpsc::UnboundedSender<Effect>,
}

struct Inner {
    core: Core,
    link: Option<EngineLink>,
}

/// See the module.
pub struct Shared {
    /// How the server was set up.
    pub options: Options,
    /// Starts engines.
    pub launcher: Arc<dyn EngineLauncher>,
    /// `http://HOST:PORT/v1`.
    pub base_url: String,
    /// One start or stop at a time, to its end.
    pub lifecycle: tokio::sync::Mutex<()>,
    /// One snapshot of code at a time.
    pub code_sync: tokio::sync::Mutex<()>,
    /// Where configurations are checked.
    pub config_checks: Lane,
    /// For request bodies.
    pub body_room: Arc<BodyRoom>,
    /// Where large ones are parsed.
    pub parsing: Lane,
    /// Places of the LLM calls that are being answered.
    pub calls: Arc<Semaphore>,
    /// Woken whenever an end is through.
    pub end_is_through: Notify,
    /// Woken whenever the engine's state changes.
    pub state_changed: Notify,
    /// Claims that wait for the end of an update.
    pub held_claims: HeldClaims,
    clock: Clock,
    inner: Mutex<Inner>,
    latest_call: Mutex<Option<LatestCall>>,
    verbose_logs: Mutex<VerboseLogs>,
}

impl Shared {
    /// Offline.
    pub fn new(options: Options, launcher: Arc<dyn EngineLauncher>, base_url: String) -> Self {
        let core = Core::new(options.slow_poll.as_secs_f64());
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let calls = Arc::new(Semaphore::new(options.limits.calls));
        Self {
            options,
            launcher,
            base_url,
            lifecycle: tokio::sync::Mutex::new(()),
            code_sync: tokio::sync::Mutex::new(()),
            config_checks: Lane::new(1, 16),
            body_room: Arc::default(),
            parsing: Lane::new(cores, 1024),
            calls,
            end_is_through: Notify::new(),
            state_changed: Notify::new(),
            held_claims: HeldClaims::default(),
            clock: Clock::start(),
            inner: Mutex::new(Inner { core, link: None }),
            latest_call: Mutex::new(None),
            verbose_logs: Mutex::new(VerboseLogs::default()),
        }
    }

    /// Runs `f` on the core at the present time and sends the effects on their way. Never waits: what needs the engine's
    /// answer is done by the caller outside.
    pub fn with<R>(&self, f: impl FnOnce(&mut Core, f64) -> R) -> R {
        let mut inner = lock(&self.inner);
        // Read under the lock, so that the core never sees time go back.
        let now = self.clock.now();
        let before = inner.core.state();
        let result = f(&mut inner.core, now);
        if inner.core.state() != before {
            self.state_changed.notify_waiters();
        }
        // Sent under the lock, so that effects keep the order of the decisions.
        for effect in inner.core.take_effects() {
            if let Some(link) = &inner.link {
                // A closed channel is an engine that is gone, and with it what the effect was about.
                let _ = link.effects.send(effect);
            }
        }
        result
    }

    /// The engine that runs.
    pub fn link(&self) -> Option<EngineLink> {
        lock(&self.inner).link.clone()
    }

    /// Puts an engine in place, or takes it away; the one before.
    pub fn set_link(&self, link: Option<EngineLink>) -> Option<EngineLink> {
        std::mem::replace(&mut lock(&self.inner).link, link)
    }

    /// Unix seconds.
    pub fn now(&self) -> f64 {
        self.clock.now()
    }

    /// The last chat call that finished.
    pub fn latest_call(&self) -> MutexGuard<'_, Option<LatestCall>> {
        lock(&self.latest_call)
    }

    /// Lines that clients pushed.
    pub fn verbose_logs(&self) -> MutexGuard<'_, VerboseLogs> {
        lock(&self.verbose_logs)
    }
}

/// A panic elsewhere must not stop the server: the core's methods leave it consistent at every point where they can
/// panic at all.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
