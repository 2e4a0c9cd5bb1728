//! What can go wrong between a client and its swarm server.

use crate::protocol::swarm::UPDATES_DONE;

/// An error of [`super::SwarmClient`]. Every message names the server; tokens in its URL are blanked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is not one of a swarm server.
    #[error("'{given}' is not the URL of a swarm server: {reason}\nhint: give one such as http://localhost:10086")]
    Url {
        /// As given, without its token.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No TLS or DNS could be set up.
    #[error("no HTTP client could be set up: {0}")]
    Setup(String),
    /// Nothing answered, or the connection broke, in every try.
    #[error(
        "the swarm server at {url} cannot be reached: {reason}\nhint: start one with `ajet-swarm start`, or check the URL"
    )]
    Unreachable {
        /// The server.
        url: String,
        /// The last try's error.
        reason: String,
    },
    /// The server answered with an error.
    #[error("the swarm server refused {call} ({status}): {detail}")]
    Refused {
        /// Path of the call.
        call: &'static str,
        /// HTTP status.
        status: u16,
        /// The server's own sentence.
        detail: String,
    },
    /// The server's answer is not what the protocol says.
    #[error("the answer of {url} to {call} makes no sense: {reason}\nhint: is this a swarm server?")]
    Answer {
        /// The server.
        url: String,
        /// Path of the call.
        call: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The engine did not come up.
    #[error("the engine did not start: {detail}")]
    Boot {
        /// The engine's own words.
        detail: String,
    },
    /// The engine was up and is not any more.
    #[error(
        "the engine at {url} went offline: {detail}\nhint: `ajet-swarm status` shows the server; the next `roll` starts the engine again"
    )]
    WentOffline {
        /// The server.
        url: String,
        /// The server's own words.
        detail: String,
    },
    /// An episode could not be claimed for a reason that waiting does not help.
    #[error("no episode could be claimed: {0}")]
    Claim(String),
    /// The throttle needs another collection method.
    #[error("a throttle works with rollout_until_finish_enough_tasks only, and the engine collects by {0}")]
    Throttle(String),
}

impl ClientError {
    /// Whether the server does not answer: it may be restarted, or the network may be down.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether the engine went offline because all updates of its configuration are done.
    pub fn is_regular_end(&self) -> bool {
        matches!(self, Self::WentOffline { detail, .. } if detail.contains(UPDATES_DONE))
    }
}
