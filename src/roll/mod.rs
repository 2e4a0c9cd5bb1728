//! `roll`: runs a job's tasks through an agent as episodes of a swarm, and tells how the training goes.

pub mod agents;
pub mod job;
mod process;
pub mod rewards;
mod section;
pub mod tasks;
pub mod template;
