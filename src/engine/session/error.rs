//! Errors of chat requests, as OpenAI's error objects.

use crate::protocol::openai::{ErrorBody, ErrorObject, PromptTokens};

/// Reasons why a chat request was not answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChatError {
    /// The request is invalid.
    #[error("{message}")]
    InvalidRequest {
        /// Name of the invalid field.
        param: Option<String>,
        /// Message with the given value and the allowed ones.
        message: String,
    },
    /// The prompt leaves no room for an answer. Agents compact their history when they see OpenAI's wording.
    #[error(
        "This model's maximum context length is {max_model_len} tokens. However, your messages resulted in {given} \
         tokens. Please reduce the length of the messages to at most {} tokens (ajet.rollout.max_model_len less 1).",
        max_model_len.saturating_sub(1)
    )]
    ContextLengthExceeded {
        /// Number of prompt tokens.
        given: usize,
        /// Maximum number of tokens of prompt and answer together.
        max_model_len: usize,
    },
    /// The episode has ended or was discarded.
    #[error("the episode `{0}` has ended or was discarded")]
    EpisodeNotFound(String),
    /// Too many requests are queued.
    #[error("{0}")]
    QueueFull(String),
    /// The sampler cannot accept or finish requests now.
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

    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::ContextLengthExceeded { .. } => 400,
            Self::EpisodeNotFound(_) => 404,
            Self::QueueFull(_) => 429,
            Self::Unavailable(_) => 503,
            Self::Sampling(_) => 500,
        }
    }

    /// Returns the seconds for `Retry-After`, if a retry can succeed.
    pub fn retry_after(&self) -> Option<u64> {
        matches!(self, Self::QueueFull(_) | Self::Unavailable(_)).then_some(1)
    }

    /// Returns the body.
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
        let prompt_tokens = match self {
            Self::ContextLengthExceeded { given, max_model_len } => Some(PromptTokens {
                given: *given as u64,
                max: max_model_len.saturating_sub(1) as u64,
            }),
            _ => None,
        };
        ErrorBody {
            error: ErrorObject {
                message: self.to_string(),
                kind: kind.to_owned(),
                param,
                code: code.map(str::to_owned),
                prompt_tokens,
            },
        }
    }
}
