//! The engine, the child process that owns the model: it serves the contract of [`crate::protocol::engine`] over a Unix
//! socket, records the agents' calls, collects finished episodes, and updates the weights from them.
//!
//! [`boot`] assembles it: the model thread ([`model_thread`], [`worker`] or, without training, [`sampling_worker`]), the
//! sessions of running episodes ([`session`]), the [`batch`], the files on disk ([`storage`]) and the [`metrics`].
//! [`ranks`] lets several processes be one engine, and `endpoints` has samplers elsewhere sample for it. [`core`]
//! implements the contract, [`server`] serves it over HTTP, `recorder` writes what dashboards read, [`events`] and
//! `sampling_load` report to the control plane.

pub mod batch;
pub mod boot;
mod completions;
pub mod core;
mod endpoints;
pub mod events;
#[cfg(test)]
mod messages;
pub mod metrics;
pub mod model_thread;
pub mod ranks;
mod recorder;
mod sampling_load;
pub mod sampling_worker;
pub mod served_model;
pub mod server;
pub mod session;
pub mod storage;
pub mod worker;
