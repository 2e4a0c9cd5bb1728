//! The optimizer: AdamW, its moments laid out in groups, and the learning-rate schedule.

pub mod adamw;
pub mod adamw_groups;
pub mod schedule;
