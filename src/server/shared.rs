//! State shared by all handlers and background tasks: the core behind its mutex, the running engine, and resources.

use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, mpsc};

use super::clock::Clock;
use super::code_sync::CodeSync;
use super::engine::client::EngineClient;
use super::engine::process::{EngineHandle, EngineLauncher};
use super::http::blocking_pool::BlockingPool;
use super::http::body_budget::BodyBudget;
use super::latest_event::LatestEvent;
use super::model_api::latest_call::LatestCall;
use super::options::Options;
use super::run_cache::RunCache;
use super::swarm::core::{Core, Effect};
use super::swarm::held_claims::HeldClaims;
use super::verbose_log::VerboseLogs;
use crate::protocol::status::Status;

/// A running engine and its channels.
#[derive(Clone)]
pub struct EngineLink {
    /// Client of the engine.
    pub client: EngineClient,
    /// Process.
    pub process: EngineHandle,
    /// Effects, run in order by one task.
    pub effects: mpsc::UnboundedSender<Effect>,
}

struct Inner {
    core: Core,
    link: Option<EngineLink>,
}

/// Shared state of the server.
pub struct Shared {
    /// Options of the server.
    pub options: Options,
    /// Starts engines.
    pub launcher: Arc<dyn EngineLauncher>,
    /// `http://HOST:PORT/v1`.
    pub base_url: String,
    /// Serialises starts and stops.
    pub lifecycle: tokio::sync::Mutex<()>,
    /// Training code that clients have sent.
    pub code: CodeSync,
    /// Pool for configuration checks.
    pub config_checks: BlockingPool,
    /// Memory budget of request bodies.
    pub body_budget: Arc<BodyBudget>,
    /// Pool for parsing large bodies.
    pub parsing: BlockingPool,
    /// Permits for LLM calls in flight.
    pub calls: Arc<Semaphore>,
    /// Notified when the end of an episode is complete.
    pub end_is_through: Notify,
    /// Notified when the engine's state changes.
    pub state_changed: Notify,
    /// Claims held until an update is done.
    pub held_claims: HeldClaims,
    /// Indexes of experiments' files.
    pub runs: RunCache,
    /// Pool for reading experiments' files.
    pub run_reads: BlockingPool,
    /// The status for the streams that follow it.
    pub latest_status: LatestEvent,
    clock: Clock,
    inner: Mutex<Inner>,
    latest_call: Mutex<Option<LatestCall>>,
    verbose_logs: Mutex<VerboseLogs>,
}

impl Shared {
    /// Creates the state of an offline server.
    pub fn new(options: Options, launcher: Arc<dyn EngineLauncher>, base_url: String) -> Self {
        let clock = Clock::start();
        let core = Core::new(options.slow_poll.as_secs_f64()).started_at(clock.now());
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let code = CodeSync::new(&options.code);
        let calls = Arc::new(Semaphore::new(options.limits.calls));
        Self {
            options,
            launcher,
            base_url,
            lifecycle: tokio::sync::Mutex::new(()),
            code,
            config_checks: BlockingPool::new(1, 16),
            body_budget: Arc::default(),
            parsing: BlockingPool::new(cores, 1024),
            calls,
            end_is_through: Notify::new(),
            state_changed: Notify::new(),
            held_claims: HeldClaims::default(),
            runs: RunCache::default(),
            run_reads: BlockingPool::new(2, 64),
            latest_status: LatestEvent::default(),
            clock,
            inner: Mutex::new(Inner { core, link: None }),
            latest_call: Mutex::new(None),
            verbose_logs: Mutex::new(VerboseLogs::default()),
        }
    }

    /// Runs `f` on the core with the current time and queues the resulting effects. Never waits: the caller makes calls
    /// that need the engine's answer.
    pub fn with<R>(&self, f: impl FnOnce(&mut Core, f64) -> R) -> R {
        let mut inner = lock(&self.inner);
        // Read under the lock, so that time never goes back for the core.
        let now = self.clock.now();
        let before = inner.core.state();
        let result = f(&mut inner.core, now);
        if inner.core.state() != before {
            self.state_changed.notify_waiters();
        }
        // Sent under the lock, so that effects keep the order of the decisions.
        for effect in inner.core.take_effects() {
            if let Some(link) = &inner.link {
                // A closed channel means that the engine is gone, and the effect with it.
                let _ = link.effects.send(effect);
            }
        }
        result
    }

    /// Returns the running engine.
    pub fn link(&self) -> Option<EngineLink> {
        lock(&self.inner).link.clone()
    }

    /// Sets or removes the engine; returns the previous one.
    pub fn set_link(&self, link: Option<EngineLink>) -> Option<EngineLink> {
        std::mem::replace(&mut lock(&self.inner).link, link)
    }

    /// Returns Unix seconds.
    pub fn now(&self) -> f64 {
        self.clock.now()
    }

    /// Returns the status. It may take a millisecond on a busy server, so it is called on blocking threads; the core is
    /// locked only while what it is made of is copied.
    pub fn status(&self) -> Status {
        let mut status = self.with(|core, now| core.feed(now)).status();
        status.log = self.verbose_logs().feed();
        status
    }

    /// Adds a line to the status feed's log.
    pub fn show(&self, tag: &str, message: &str) {
        let now = self.now();
        self.verbose_logs().show(tag, message, now);
    }

    /// Returns the latest finished chat call.
    pub fn latest_call(&self) -> MutexGuard<'_, Option<LatestCall>> {
        lock(&self.latest_call)
    }

    /// Returns the log lines pushed by clients.
    pub fn verbose_logs(&self) -> MutexGuard<'_, VerboseLogs> {
        lock(&self.verbose_logs)
    }
}

/// Locks a mutex, ignoring poisoning: a panic must not stop the server, and the core's methods leave it consistent
/// wherever they can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
