//! The engine, the child process that owns the model: it serves the contract of [`crate::protocol::engine`] over a Unix
//! socket, records what agents call, collects finished episodes, and updates the weights from them.

pub mod checkpoint;
mod durable;
pub mod events;
pub mod finished;
pub mod identity;
pub mod journal;
pub mod metrics;
pub mod model_thread;
pub mod pool;
pub mod replay;
pub mod session;
