//! Sampling: token ids in, token ids and log-probabilities out.
//!
//! A [`request`] waits in the `queue`, then it is a `sequence` that the [`scheduler`] computes step by step. Each step is
//! one pass of [`forward`], by the CPU kernels ([`forward_cpu`], with the weights of [`packed_model`]) or by tensor
//! operations ([`forward_plain`]); `backend` chooses. `blocks` counts references to the KV cache, and `prefix_cache` finds
//! the blocks of earlier prompts. [`sampler`] draws tokens from logits, `device_sampler` does so on a GPU, and
//! `constraint` masks what a grammar forbids. [`detokenizer`] and [`parsers`] turn tokens into messages.

pub mod backend;
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
mod mixture_cpu;
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
