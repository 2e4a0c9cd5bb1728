//! The engine, the child process that owns the model: it serves the contract of [`crate::protocol::engine`] over a Unix
//! socket, records what agents call, collects finished episodes, and updates the weights from them.
//!
//! [`boot`] puts it together: the model thread ([`model_thread`], [`worker`]), the sessions of the running episodes
//! ([`session`]), the batch ([`ledger`]: [`journal`] and [`pool`]), [`checkpoint`]s, [`metrics`] and where they are written
//! ([`step_log`]), [`trajectories`]; [`core`] is what
//! it does, [`server`] the contract over HTTP, [`events`] what it tells. [`export`] makes models of its checkpoints.

mod append_file;
pub mod boot;
pub mod checkpoint;
pub mod core;
mod durable;
pub mod events;
pub mod export;
pub mod finished;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod lock;
pub mod metrics;
pub mod model_thread;
pub mod pool;
pub mod replay;
pub mod server;
pub mod session;
pub mod sessions;
pub mod step_log;
pub mod trajectories;
pub mod worker;
