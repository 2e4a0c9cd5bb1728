//! Reinforcement learning of language-model agents: a swarm server that samples and trains, and clients that run
//! episodes with it. See `docs/architecture.md` for an overview.
// Use `terminal` to print: it escapes control characters, and a closed pipe does not panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// The documentation is for developers of this crate, so it links to private items too.
#![allow(rustdoc::private_intra_doc_links)]

pub mod cli;
pub mod client;
pub mod config;
pub mod engine;
pub mod hub;
pub mod inference;
pub mod jinja;
pub mod model;
pub mod overwatch;
pub mod protocol;
pub mod roll;
pub mod server;
pub mod terminal;
pub mod timeline;
pub mod train;
