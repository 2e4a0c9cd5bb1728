//! The engine process as the control plane sees it: start, call, follow, stop, restart.
//!
//! [`supervisor`] is the engine's life cycle, restarts after crashes included; it starts a [`process`] in a
//! [`runtime_dir`], after [`preflight`] has checked the configuration. [`client`] calls the engine. [`resume`] finds
//! experiments that a server left unfinished.

pub mod client;
pub mod code_build;

pub mod kept_config;
pub mod preflight;
pub mod process;
pub mod rank_command;
pub mod resume;
pub mod runtime_dir;
mod stderr;
pub mod supervisor;
pub mod synced_config;
