//! What the integration tests share.

pub mod fake_engine;
pub mod fuzz_world;
pub mod mutate;
pub mod python_server;
pub mod swarm;
