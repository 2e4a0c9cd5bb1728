//! Wire types, named once: client ↔ server ([`swarm`]), server ↔ engine ([`engine`]), agent ↔ model API ([`openai`],
//! [`responses`], [`anthropic`]; what becomes of each of their fields: [`fields`]).
//!
//! Nothing here does I/O or holds state; every other layer may use it.

pub mod anthropic;
pub mod engine;
pub mod fields;
pub mod openai;
pub mod responses;
pub mod swarm;
