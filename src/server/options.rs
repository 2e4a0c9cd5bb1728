//! How a server is set up.

use std::path::PathBuf;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;

use super::http::connections::Limits;
use super::http::hosts::Hosts;
use super::http::token::Token;

/// How a server is set up.
#[derive(Clone)]
pub struct Options {
    /// Wanted of everyone, where set.
    pub token: Option<Token>,
    /// Host names that are answered to where there is no token.
    pub hosts: Hosts,
    /// A configuration (YAML) that gives what a synced one leaves out.
    pub default_config: Option<String>,
    /// How long states stay visible to clients that poll a cached status every few seconds.
    pub slow_poll: Duration,
    /// How often clients that poll slowly look at the status, at the least. Then they act by it for seconds, so the end of a
    /// batch that is over sooner is not told.
    pub look_interval: Duration,
    /// Between two looks at what time changes, such as idle episodes.
    pub tick: Duration,
    /// How long a client is kept waiting for the engine to take an end; Python clients give up after 30 s.
    pub end_patience: Duration,
    /// How long a claim of a client that polls slowly is held while an update is under way; such clients give up after
    /// 30 s.
    pub claim_patience: Duration,
    /// How long such a client is kept waiting for the outcome of the boot that it asked for.
    pub start_patience: Duration,
    /// How long `stop_engine` waits for the engine to end by itself; it may be writing a checkpoint.
    pub stop_patience: Duration,
    /// The same when the server itself is told to end.
    pub exit_patience: Duration,
    /// How long an engine that boots may say nothing new before it is given up.
    pub boot_patience: Duration,
    /// A configuration to start an engine with at once: an interrupted experiment goes on.
    pub start_with: Option<String>,
    /// Where uploaded snapshots of code are kept.
    pub code_root: PathBuf,
    /// What connections are allowed.
    pub limits: Limits,
    /// Speaks TLS, where set.
    pub tls: Option<TlsAcceptor>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            hosts: Hosts::default(),
            default_config: None,
            slow_poll: Duration::from_secs(6),
            look_interval: Duration::from_millis(1200),
            tick: Duration::from_millis(250),
            end_patience: Duration::from_secs(25),
            claim_patience: Duration::from_secs(20),
            start_patience: Duration::from_secs(30),
            stop_patience: Duration::from_secs(300),
            exit_patience: Duration::from_secs(6),
            boot_patience: Duration::from_secs(600),
            start_with: None,
            code_root: "synced_code".into(),
            limits: Limits::default(),
            tls: None,
        }
    }
}
