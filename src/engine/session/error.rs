//! What a chat request can be refused with, as OpenAI's error objects.

use crate::protocol::openai::{ErrorBody, ErrorObject};

/// Why a chat request was not answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChatError {
    /// The request is wrong.
    #[error("{message}")]
    InvalidRequest {
        /// The field that is wrong.
        param: Option<String>,
        /// A sentence with the given value and what is allowed.
        message: String,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {given} tokens, at most {limit} are allowed (ajet.rollout.max_model_len less one to sample)"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        given: usize,
        /// Most tokens of a prompt.
        limit: usize,
    },
    /// The episode has ended or was discarded.
    #[error("the episode `{0}` has ended or was discarded")]
    EpisodeNotFound(String),
    /// Too many requests wait.
    #[error("{0}")]
    QueueFull(String),
    /// The sampler does not take or finish requests at the moment.
    #[error("{0}")]
    Unavailable(String),
    /// The sampler failed.
    #[error("sampling failed: {0}")]
    Sampling(String),
}

impl ChatError {
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidRequest {
            param: Some(param.into()),
            message: message.into(),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::ContextLengthExceeded { .. } => 400,
            Self::EpisodeNotFound(_) => 404,
            Self::QueueFull(_) => 429,
            Self::Unavailable(_) => 503,
            Self::Sampling(_) => 500,
        }
    }

    /// Seconds for `Retry-After`, where trying again makes sense.
    pub fn retry_after(&self) -> Option<u64> {
        matches!(self, Self::QueueFull(_) | Self::Unavailable(_)).then_some(1)
    }

    /// The body.
    pub fn body(&self) -> ErrorBody {
        let (kind, code) = match self {
            Self::InvalidRequest { .. } => ("invalid_request_error", None),
            Self::ContextLengthExceeded { .. } => ("invalid_request_error", Some("context_length_exceeded")),
            Self::EpisodeNotFound(_) => ("invalid_request_error", Some("episode_not_found")),
            Self::QueueFull(_) => ("rate_limit_error", Some("rate_limit_exceeded")),
            Self::Unavailable(_) => ("server_error", Some("engine_unavailable")),
            Self::Sampling(_) => ("server_error", None),
        };
        let param = match self {
            Self::InvalidRequest { param, .. } => param.clone(),
            Self::ContextLengthExceeded { .. } => Some("messages".to_owned()),
            _ => None,
        };
        ErrorBody {
            error: ErrorObject {
                message: self.to_string(),
                kind: kind.to_owned(),
                param,
                code: code.map(str::to_owned),
            },
        }
    }
}
