//! The optimizer: AdamW, its moments laid out in groups, and the learning-rate schedule.

pub mod adamw;
mod adamw_groups;
pub mod parameter_state;
pub mod schedule;
