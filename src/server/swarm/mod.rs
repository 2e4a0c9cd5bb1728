//! Rules of the swarm, without I/O: the state machine, episodes, clients, and the batch.
//!
//! [`core`] owns the state and decides; the other modules are its parts.

pub mod clients;
pub mod core;
pub mod episode_outcome;
pub mod episodes;
pub mod feed;
pub mod held_claims;
pub mod pool_information;
pub mod pool_view;
pub mod state;
