//! The policy loss: ratio clipping, KL terms, importance weights, and how tokens are aggregated.

pub mod aggregate;
pub mod importance;
pub mod kl;
pub mod objective;
pub mod policy;
