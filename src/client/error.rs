//! Errors of the client.

use super::code::sources::SourcesError;
use crate::protocol::swarm::UPDATES_DONE;

/// What to do where no server answers.
const NO_SERVER: &str = match cfg!(feature = "server") {
    true => "start one with `ajet-swarm start`, or check the URL",
    false => "check the URL, or start a server there with a complete build of ajet-swarm",
};

/// An error of [`super::SwarmClient`]. Messages name the server; tokens in its URL are replaced.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is not a valid server URL.
    #[error("invalid swarm server URL '{given}': {reason}\nhint: use a URL such as http://localhost:10086")]
    Url {
        /// Given URL, without its token.
        given: String,
        /// Reason.
        reason: String,
    },
    /// TLS or DNS cannot be set up.
    #[error("cannot set up an HTTP client: {0}")]
    Setup(String),
    /// All attempts failed: no answer, or the connection broke.
    #[error("cannot reach the swarm server at {url}: {reason}\nhint: {}", NO_SERVER)]
    Unreachable {
        /// URL of the server.
        url: String,
        /// Error of the last attempt.
        reason: String,
    },
    /// The server answered with an error.
    #[error("the swarm server refused {call} ({status}): {detail}")]
    Refused {
        /// Path of the call.
        call: &'static str,
        /// HTTP status.
        status: u16,
        /// Message of the server.
        detail: String,
    },
    /// A model API that is not a swarm's answered with an error.
    #[error("the model API at {url} refused {call} ({status}): {detail}")]
    Api {
        /// Its base URL.
        url: String,
        /// Path of the call.
        call: &'static str,
        /// HTTP status.
        status: u16,
        /// Its own sentence.
        detail: String,
    },
    /// A model API that is not a swarm's cannot be reached.
    #[error("cannot reach the model API at {url}: {reason}\nhint: check the URL; it usually ends with /v1")]
    ApiUnreachable {
        /// Its base URL.
        url: String,
        /// The last try's error.
        reason: String,
    },
    /// The answer does not conform to the protocol.
    #[error("unexpected response of {url} to {call}: {reason}\nhint: check that this is the URL of a swarm server")]
    Answer {
        /// URL of the server.
        url: String,
        /// Path of the call.
        call: &'static str,
        /// Reason.
        reason: String,
    },
    /// There is no training code to send.
    #[error(transparent)]
    Sources(SourcesError),
    /// The engine did not start.
    #[error("the engine did not start: {detail}")]
    Boot {
        /// Message of the engine.
        detail: String,
    },
    /// The engine was up and went offline.
    #[error(
        "the engine at {url} went offline: {detail}\nhint: `ajet-swarm status` shows the server; the next `roll` restarts the engine"
    )]
    WentOffline {
        /// URL of the server.
        url: String,
        /// Message of the server.
        detail: String,
    },
    /// The claim was refused, and waiting does not help.
    #[error("cannot claim an episode: {0}")]
    Claim(String),
    /// The collection method does not support a throttle.
    #[error("a throttle requires the collection method rollout_until_finish_enough_tasks, but the engine uses {0}")]
    Throttle(String),
}

impl ClientError {
    /// Returns whether the server does not answer: it may be restarting, or the network may be down.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether the engine went offline because all updates of its configuration are done.
    pub fn is_regular_end(&self) -> bool {
        matches!(self, Self::WentOffline { detail, .. } if detail.contains(UPDATES_DONE))
    }
}

#[cfg(test)]
mod tests {
    use super::{ClientError, SourcesError};

    #[test]
    fn messages() {
        let url = || "http://gpu-box:10086/t/…".to_owned();
        let messages = messages!(ClientError:
            ClientError::Url { .. } => ClientError::Url {
                given: "ftp://box".into(),
                reason: "the scheme must be http or https".into(),
            },
            ClientError::Setup(_) => ClientError::Setup("no root certificates found".into()),
            ClientError::Unreachable { .. } => ClientError::Unreachable {
                url: url(),
                reason: "connection refused".into(),
            },
            ClientError::Refused { .. } => ClientError::Refused {
                call: "/stop_engine",
                status: 401,
                detail: "this server requires an access token".into(),
            },
            ClientError::Api { .. } => ClientError::Api {
            url: "https://api.example/v1".into(),
            call: "/chat/completions",
            status: 401,
            detail: "Incorrect API key provided".into(),
        },
        ClientError::ApiUnreachable { .. } => ClientError::ApiUnreachable {
            url: "https://api.example/v1".into(),
            reason: "connection refused".into(),
        },
        ClientError::Answer { .. } => ClientError::Answer {
                url: url(),
                call: "/get_engine_status",
                reason: "missing field `engine_status`".into(),
            },
            ClientError::Sources(_) => ClientError::Sources(SourcesError::NoCrate("/work".into())),
            ClientError::Boot { .. } => ClientError::Boot {
                detail: "no model found at `/models/none`".into(),
            },
            ClientError::WentOffline { .. } => ClientError::WentOffline {
                url: url(),
                detail: "the engine was killed by signal 9".into(),
            },
            ClientError::Claim(_) => ClientError::Claim("episode_type must be \"train\" or \"eval\"".into()),
            ClientError::Throttle(_) => ClientError::Throttle("rollout_until_finish_enough_episodes".into()),
        );
        // What to do where no server answers depends on the build.
        #[cfg(feature = "server")]
        insta::assert_snapshot!(messages);
        #[cfg(not(feature = "server"))]
        assert!(
            messages.contains("hint: check the URL, or start a server there"),
            "{messages}"
        );
    }
}
