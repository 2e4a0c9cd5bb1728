//! The engine process as the control plane sees it: start, call, follow, stop, restart.

pub mod client;
pub mod code_build;
pub mod compare;
pub mod preflight;
pub mod process;
pub mod resume;
pub mod runtime_dir;
mod stderr;
pub mod supervisor;
pub mod synced_config;
