//! What the integration tests share.

pub mod fake_engine;
#[allow(dead_code, reason = "the targets of `fuzz/` use the rest")]
pub mod fuzz_world;
pub mod mutate;
pub mod python_server;
pub mod roll_job;
pub mod swarm;
