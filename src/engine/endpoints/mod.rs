//! Samplers elsewhere: HTTP endpoints, such as vLLM's, that sample answers with this engine's weights.
//!
//! The engine renders and tokenises as ever, and decides when an answer ends; an endpoint gets token ids and returns token
//! ids with log-probabilities ([`completion`]). After every update the LoRA adapter is written to a directory that the
//! endpoints see, and each of them loads it under a name of its own ([`adapters`]), which every request names: an endpoint
//! with other weights refuses it. [`roster`] says which endpoint gets a request. What no endpoint can sample, the engine's
//! own sampler does ([`worker`]).

mod adapters;
mod answer;
mod client;
mod completion;
mod logprobs;
mod roster;
mod service;
#[cfg(test)]
mod tests;
mod worker;

pub use service::Endpoints;
pub use worker::EndpointSampling;

/// Why an endpoint did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It cannot be reached, or broke the connection.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("did not answer within {0} s")]
    Silent(u64),
    /// It refused a request.
    #[error("answered with HTTP status {status}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its reason.
        message: String,
    },
    /// Its answer is not of the API that it should speak.
    #[error("sent an unexpected response: {0}")]
    Unexpected(String),
    /// It ended an answer before the engine did.
    #[error("ended an answer early")]
    Early,
}

impl EndpointError {
    /// Returns whether only this request failed: the endpoint cannot sample it, but may sample others.
    fn is_of_request(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 400 | 413 | 422,
                ..
            } | Self::Early
        )
    }
}
