//! Reinforcement learning of language-model agents: a swarm server that samples and trains, and the clients that roll
//! episodes against it. `docs/architecture.md` is the map.
// `terminal` prints: what is foreign is made printable, and a reader that goes away is no panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// The pages are for those who work on this code: they lead into private modules too.
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
