//! Sampling: token ids in, token ids and log-probabilities out.

pub mod parsers;
pub mod request;

pub use request::{FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams, StopCheck};
