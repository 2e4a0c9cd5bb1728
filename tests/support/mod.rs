//! What the integration tests share.

pub mod fake_engine;
pub mod python_server;
pub mod swarm;
