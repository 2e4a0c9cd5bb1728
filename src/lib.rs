//! Reinforcement learning of language-model agents: a swarm server that samples and trains, and clients that run
//! episodes with it. See `docs/architecture.md` for an overview.
//!
//! Without the feature `server`, only the clients are built: nothing that holds or computes a model.
// Use `terminal` to print: it escapes control characters, and a closed pipe does not panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// What cannot fail says why: `#[expect(clippy::expect_used, reason = "…")]`. Tests may (clippy.toml).
#![warn(clippy::unwrap_used, clippy::expect_used)]
// The documentation is for developers of this crate, so it links to private items too.
#![allow(rustdoc::private_intra_doc_links)]

/// Returns the messages of an error type, for a snapshot. The patterns must cover all variants, so that a variant without
/// an example does not compile.
#[cfg(test)]
macro_rules! messages {
    ($type:ty: $($pattern:pat => $example:expr),+ $(,)?) => {{
        let _covers_all_variants = |error: &$type| match error {
            $($pattern => ()),+
        };
        let examples: Vec<$type> = vec![$($example),+];
        examples.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n")
    }};
}

pub mod cli;
pub mod client;
#[cfg(feature = "server")]
pub mod collective;
mod compare;
pub mod config;
pub mod counted;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod grammar;
pub mod hub;
#[cfg(feature = "server")]
pub mod inference;
pub mod jinja;
#[cfg(feature = "server")]
pub mod model;
pub mod overwatch;
#[cfg(feature = "server")]
pub mod plan;
pub mod protocol;
pub mod research;
pub mod roll;
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, unused_imports, reason = "clients read metrics alone")
)]
mod runs;
#[cfg(feature = "server")]
pub mod server;
pub mod terminal;
#[cfg(feature = "server")]
pub mod timeline;
#[cfg(feature = "server")]
pub mod train;
pub mod trend;
