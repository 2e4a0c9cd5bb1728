//! A swarm in this process: server, client library and `roll` against fake engines.

mod agents;
mod batches;
mod code_sync;
mod feed;
mod fetch;
mod fuzz;
mod judges;
mod killed_clients;
mod limits;
mod roll;
mod roll_models;
mod roll_servers;
mod server;
#[path = "../support/mod.rs"]
mod support;
