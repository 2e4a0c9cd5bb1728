//! The control plane: the swarm API and the model API over HTTP, in front of an engine process.
//!
//! [`core`] decides, without I/O; [`state`], [`episodes`], [`clients`] and [`pool_info`] are its parts. [`router`] and
//! [`handlers`] turn HTTP into calls of the core, [`lifecycle`] starts, follows and stops the engine
//! ([`engine_process`], [`engine_client`]). It never blocks and never names the model.

mod auth;
mod body;
mod clients;
mod clock;
mod core;
pub mod engine_client;
mod engine_process;
mod episodes;
mod error;
mod handlers;
mod lenient_json;
mod lifecycle;
mod pool_info;
mod preflight;
mod replay;
mod router;
mod shared;
mod state;
mod synced_config;
mod verbose_log;
mod workflow_output;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

pub use auth::{Token, TokenError};
pub use engine_process::{ChildLauncher, EngineHandle, EngineLauncher, Kill, Launch};

use shared::Shared;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted of everyone, where set.
    pub token: Option<Token>,
    /// A configuration (YAML) that gives what a synced one leaves out.
    pub default_config: Option<String>,
    /// How long states stay visible to clients that poll a cached status every few seconds.
    pub slow_poll: Duration,
    /// Between two looks at what time changes, such as idle episodes.
    pub tick: Duration,
    /// How long a client is kept waiting for the engine to take an end; Python clients give up after 30 s.
    pub end_patience: Duration,
    /// How long `stop_engine` waits for the engine to end by itself; it may be writing a checkpoint.
    pub stop_patience: Duration,
    /// The same when the server itself is told to end.
    pub exit_patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            default_config: None,
            slow_poll: Duration::from_secs(6),
            tick: Duration::from_millis(250),
            end_patience: Duration::from_secs(25),
            stop_patience: Duration::from_secs(300),
            exit_patience: Duration::from_secs(6),
        }
    }
}

/// A swarm server.
pub struct Server {
    options: Options,
    launcher: Arc<dyn EngineLauncher>,
}

impl Server {
    /// A server whose engines come from `launcher`.
    pub fn new(options: Options, launcher: Arc<dyn EngineLauncher>) -> Self {
        Self { options, launcher }
    }

    /// Serves until `shutdown` is through, then stops the engine.
    ///
    /// # Errors
    ///
    /// The listener has no address, or fails.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let base_url = base_url(listener.local_addr()?);
        let shared = Arc::new(Shared::new(self.options, self.launcher, base_url));
        let _ticks = AbortOnDropHandle::new(tokio::spawn(tick(Arc::clone(&shared))));
        let app = router::app(Arc::clone(&shared));
        let service = axum::ServiceExt::<Request>::into_make_service(app);
        let patience = shared.options.exit_patience;
        // Connections are not waited for: streams and idle ones would hold the server up. What matters, running ends,
        // is through when the engine is.
        tokio::select! {
            outcome = axum::serve(listener, service).into_future() => outcome?,
            () = async { shutdown.await; lifecycle::stop(&shared, patience).await } => {}
        }
        Ok(())
    }
}

/// Clients replace scheme and authority by those under which they reached us.
fn base_url(address: SocketAddr) -> String {
    let address = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        address => address,
    };
    format!("http://{address}/v1")
}

async fn tick(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(shared.options.tick);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        shared.with(|core, now| core.tick(now));
    }
}
