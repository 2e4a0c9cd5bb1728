//! The control plane: the swarm API and the model API over HTTP, in front of an engine process.
//!
//! [`swarm`] holds the rules, without I/O. [`http`] and [`handlers`] map requests to them, [`model_api`] translates
//! between the model APIs and the engine's contract, and [`engine`] starts, follows and stops the engine process. The
//! control plane never blocks and does not depend on the model's code.

mod checkpoints;
mod clock;
mod code_sync;
pub mod engine;
mod handlers;
pub mod http;
mod latest_event;
#[cfg(test)]
mod messages;
mod model_api;
mod options;
mod prometheus;
mod run_cache;
mod shared;
mod status_stream;
mod swarm;
mod verbose_log;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use crate::protocol::swarm::SERVER_ENDS;
pub use crate::protocol::swarm::TOKEN_VARIABLE;
pub use code_sync::{CodeAccess, CodeOptions};
pub use engine::process::{ChildLauncher, EngineHandle, EngineLauncher, Kill, Launch};
pub use engine::rank_command::{Devices, RankCommand};
pub use http::connections::Limits;
pub use http::hosts::Hosts;
pub use http::token::{Token, TokenError};
pub use options::Options;

use http::connections::Connections;
use shared::Shared;

/// Time for pending answers when the server ends.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Time to terminate and kill the engine, after its own timeout.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

/// A swarm server.
pub struct Server {
    options: Options,
    launcher: Arc<dyn EngineLauncher>,
}

impl Server {
    /// Creates a server whose engines are started by `launcher`.
    pub fn new(options: Options, launcher: Arc<dyn EngineLauncher>) -> Self {
        Self { options, launcher }
    }

    /// Serves until `shutdown` completes, then stops the engine.
    ///
    /// # Errors
    ///
    /// Fails if the listener has no address.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        let base_url = base_url(scheme, listener.local_addr()?);
        let shared = Arc::new(Shared::new(self.options, self.launcher, base_url));
        let _ticks = AbortOnDropHandle::new(tokio::spawn(tick(Arc::clone(&shared))));
        let (tls, limits) = (shared.options.tls.clone(), shared.options.limits);
        let connections = Connections::new(http::router::app(Arc::clone(&shared)), tls, limits);
        if let Some(config_yaml) = shared.options.start_with.clone() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { engine::supervisor::start_with(&shared, config_yaml).await });
        }
        let stopped = async {
            shutdown.await;
            let timeout = shared.options.exit_timeout;
            // A client's stop may be in progress with a longer timeout of its own; the engine then ends with the
            // server.
            let _ = tokio::time::timeout(
                timeout + KILL_TIMEOUT,
                engine::supervisor::stop(&shared, timeout, Some(SERVER_ENDS)),
            )
            .await;
        };
        tokio::select! {
            never = connections.accept_from(listener) => match never {},
            () = stopped => {}
        }
        connections.shut_down(LAST_ANSWERS).await;
        Ok(())
    }

    /// Creates the server without a listener, for programs that pass requests directly. Needs a tokio runtime.
    pub fn in_process(self) -> InProcess {
        let shared = Arc::new(Shared::new(self.options, self.launcher, "http://localhost/v1".into()));
        let ticks = AbortOnDropHandle::new(tokio::spawn(tick(Arc::clone(&shared))));
        InProcess {
            app: http::router::app(shared),
            _ticks: Arc::new(ticks),
        }
    }
}

/// A server that is called directly; see [`Server::in_process`]. Only `stop_engine` stops its engine.
#[derive(Clone)]
pub struct InProcess {
    app: http::connections::App,
    _ticks: Arc<AbortOnDropHandle<()>>,
}

impl InProcess {
    /// Answers a request as a client over HTTP would see it.
    pub async fn answer(&self, request: Request) -> Response {
        match self.app.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Returns the base URL; clients replace its scheme and authority by those under which they reached the server.
fn base_url(scheme: &str, address: SocketAddr) -> String {
    let here: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let ip = if address.ip().is_unspecified() {
        here
    } else {
        address.ip()
    };
    let address = SocketAddr::new(ip, address.port());
    format!("{scheme}://{address}/v1")
}

async fn tick(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(shared.options.tick);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        shared.with(|core, now| core.tick(now));
    }
}
