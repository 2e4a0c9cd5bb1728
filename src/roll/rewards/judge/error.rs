//! Why a judge returned no score.

/// Why a judge returned no score. No default reward takes its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError {
    /// The environment has no key.
    #[error(
        "the judge needs an API key: the environment variable {variable} is not set\nhint: export {variable}, or name another one in `api_key_env`"
    )]
    NoKey {
        /// The variable.
        variable: String,
    },
    /// No HTTP client could be set up.
    #[error("cannot set up the judge's HTTP client: {0}")]
    Setup(String),
    /// The judge refused the request.
    #[error("the judge at {url} refused the request ({status}): {detail}")]
    Refused {
        /// Its base URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// The message of its answer.
        detail: String,
    },
    /// Nothing usable came back in any try.
    #[error("the judge at {url} returned no score (attempts: {tries}); the last failure: {reason}")]
    NoScore {
        /// Its base URL.
        url: String,
        /// Requests that were sent.
        tries: u32,
        /// What was wrong with the last answer.
        reason: String,
    },
}

impl JudgeError {
    /// Whether every request must fail: the key, the model or the URL is wrong.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NoKey { .. } | Self::Setup(_) => true,
            Self::Refused { status, .. } => matches!(status, 401 | 403 | 404),
            Self::NoScore { .. } => false,
        }
    }
}
