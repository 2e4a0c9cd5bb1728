//! Sampling: token ids in, token ids and log-probabilities out.

mod backend;
pub mod bench;
mod blocks;
mod constraint;
pub mod detokenizer;
mod device_sampler;
#[cfg(test)]
mod device_sampler_tests;
pub mod error;
pub mod forward;
pub mod forward_cpu;
pub mod forward_plain;
#[cfg(test)]
mod forward_tests;
#[cfg(test)]
mod head_tests;
pub mod packed_model;
pub mod parsers;
mod prefix_cache;
mod queue;
pub mod request;
pub mod sampler;
pub mod scheduler;
#[cfg(test)]
mod scheduler_tests;
mod sequence;
mod settings;

pub use error::InferenceError;
pub use request::{Bias, FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams, StopCheck};
pub use scheduler::{Scheduler, StepReport, Totals};
pub use settings::SamplingSettings;
