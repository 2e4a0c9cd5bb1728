//! The command line: one file per command.

pub mod bench;
pub mod start;
