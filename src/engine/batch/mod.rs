//! The batch that is being collected: finished episodes in memory and on disk, and how a restart finds them again.

pub mod finished;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod pool;
pub mod resume_plan;
