//! Client library and `roll` against the real server with fake engines.

mod client;
mod program;
mod python_server;
mod runs;
