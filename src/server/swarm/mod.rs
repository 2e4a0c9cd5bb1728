//! Rules of the swarm, without I/O: the state machine, episodes, clients, and the batch.
//!
//! [`core`] owns the state and decides: the rules of episodes, model calls, the engine's life and the passing of time are
//! files below it. The other modules are its parts: [`episodes`] knows who has claimed what, [`clients`] who agreed to end
//! the batch, [`pool_view`] what the engine has collected, [`state`] which transitions exist. When a batch is full is the
//! engine's decision (`engine/batch/pool.rs`).

pub mod clients;
pub mod core;
pub mod episode_outcome;
pub mod episodes;
pub mod feed;
pub mod held_claims;
mod in_order;
pub mod pool_information;
pub mod pool_view;
pub mod state;
