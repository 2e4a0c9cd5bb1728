//! What the integration tests share.

pub mod fake_engine;
pub mod swarm;
