//! The dashboard: what a swarm server is doing, in a terminal.
//!
//! [`Collector`] asks the server, [`State`] is what is known from its answers (pure), `panels` draw it (pure), and
//! [`watch`] ties the three to a terminal. A server that goes away is waited for.

mod app;
mod collector;
mod panels;
mod plain;
mod state;

pub use app::{unix_now, watch};
pub use collector::{Collector, Look};
pub use plain::plain_text;
pub use state::State;
