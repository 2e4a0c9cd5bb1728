//! The dashboard, which shows a swarm server in a terminal.
//!
//! [`Collector`] polls the server, [`State`] holds what is known (pure), `panels` draws it (pure), and [`watch`]
//! connects them with a terminal. When the server goes away, the dashboard waits for it.

mod app;
mod collector;
mod panels;
mod plain;
mod state;

pub use app::{unix_now, watch};
pub use collector::{Collector, Snapshot};
pub use plain::plain_text;
pub use state::State;
