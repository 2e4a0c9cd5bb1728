//! The dashboard, which shows a swarm server or the files of a run in a terminal.
//!
//! A [`Source`] (server or directory) sends updates, the `state` holds what is known and what the user looks at
//! (pure), `tabs` draw it (pure), and [`watch`] connects them with a terminal. When the server goes away, the dashboard
//! waits for it.

mod app;
mod chart;
mod clock;
#[cfg(test)]
mod fixtures;
mod format;
mod input;
mod list;
mod phase_band;
mod plain;
mod source;
mod state;
mod tabs;
mod theme;
mod update;
mod wrap;

pub use app::watch;
pub use clock::unix_now;
pub use plain::plain_text;
pub use source::{Source, WatchError};
pub use state::State;
