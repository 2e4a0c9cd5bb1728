//! The batch being collected: finished episodes in memory and on disk, and their recovery after a restart.

pub mod finished;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod pool;
pub mod resume_plan;
