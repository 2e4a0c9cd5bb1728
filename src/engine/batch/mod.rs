//! The batch being collected: finished episodes in memory and on disk, and their recovery after a restart.
//!
//! [`pool`] decides when the batch is full and which episodes it consists of. [`journal`] is its copy on disk, and
//! [`ledger`] changes both together. After a restart, [`resume_plan`] says what the journal makes the engine repeat, and
//! [`identity`] whether journal and checkpoints belong to the configuration.

pub mod finished;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod pool;
pub mod resume_plan;
