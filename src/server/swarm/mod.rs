//! The rules of the swarm, without I/O: the state machine, episodes and clients, and when a batch is complete.
//!
//! [`core`] holds the state and decides; everything else here is a part of it.

pub mod clients;
pub mod core;
pub mod episode_outcome;
pub mod episodes;
pub mod held_claims;
pub mod pool_information;
pub mod pool_view;
pub mod state;
