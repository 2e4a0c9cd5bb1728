//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;

use super::code_sync::CodeOptions;
use super::http::connections::Limits;
use super::http::hosts::Hosts;
use super::http::token::Token;

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// Access token required from all clients, if set.
    pub token: Option<Token>,
    /// Host names accepted without a token.
    pub hosts: Hosts,
    /// Name of the model, if the server only serves it: no swarm API, and no episode keys on the model API.
    pub serving: Option<String>,
    /// Directory below which clients may have LoRA adapters loaded, to sample completions of token ids with them; only of
    /// a server that serves a model.
    pub adapters: Option<PathBuf>,
    /// YAML configuration that provides the keys missing in a synced one.
    pub default_config: Option<String>,
    /// Minimum duration of states that slow pollers must see.
    pub slow_poll: Duration,
    /// Minimum polling interval of clients that poll slowly. They act on a cached status for seconds, so the end of a
    /// batch that lasts less is not shown to them.
    pub min_poll_interval: Duration,
    /// Interval of time-driven checks, such as for idle episodes.
    pub tick: Duration,
    /// Maximum wait of a client for the engine to save an episode; Python clients time out after 30 s.
    pub end_timeout: Duration,
    /// Maximum time that a slow poller's claim is held during an update; such clients time out after 30 s.
    pub claim_timeout: Duration,
    /// Maximum wait of such a client for the outcome of the boot it requested.
    pub start_timeout: Duration,
    /// Time for the engine to exit in `stop_engine`; it may be writing a checkpoint.
    pub stop_timeout: Duration,
    /// The same when the server itself shuts down.
    pub exit_timeout: Duration,
    /// Maximum time without progress of a booting engine.
    pub boot_timeout: Duration,
    /// Configuration with which to start an engine immediately, to resume an interrupted experiment.
    pub start_with: Option<String>,
    /// Training code that clients send.
    pub code: CodeOptions,
    /// Limits of connections.
    pub limits: Limits,
    /// Serves TLS, if set.
    pub tls: Option<TlsAcceptor>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            hosts: Hosts::default(),
            serving: None,
            adapters: None,
            default_config: None,
            slow_poll: Duration::from_secs(6),
            min_poll_interval: Duration::from_millis(1200),
            tick: Duration::from_millis(250),
            end_timeout: Duration::from_secs(25),
            claim_timeout: Duration::from_secs(20),
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(300),
            exit_timeout: Duration::from_secs(6),
            boot_timeout: Duration::from_secs(600),
            start_with: None,
            code: CodeOptions::default(),
            limits: Limits::default(),
            tls: None,
        }
    }
}
