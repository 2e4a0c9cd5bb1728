//! The engine, the child process that owns the model: it serves the contract of [`crate::protocol::engine`] over a Unix
//! socket, records what agents call, collects finished episodes, and updates the weights from them.
//!
//! [`boot`] puts it together: the model thread ([`model_thread`], [`worker`]), the sessions of the running episodes
//! ([`session`]), the [`batch`], what is kept on disk ([`storage`]) and the [`metrics`]. [`core`] carries out what the
//! contract asks for, [`server`] is the contract over HTTP, [`events`] are what the engine reports.

pub mod batch;
pub mod boot;
pub mod core;
pub mod events;
pub mod metrics;
pub mod model_thread;
pub mod server;
pub mod session;
pub mod storage;
pub mod worker;
