//! HTTP: routing, access control, limits of request bodies and connections, and error answers.
//!
//! [`router`] is the table of all endpoints. A connection passes [`connections`], whose places [`connection_permits`]
//! gives out; a request passes [`hosts`] (whom a server without a token answers), [`auth`] (the [`token`] and episode
//! keys) and [`body`] (limits of size, rate and memory). [`error`] is the only place where errors become HTTP.

pub mod auth;
pub mod blocking_pool;
pub mod body;
pub mod body_budget;
pub mod byte_range;
pub mod connection_permits;
pub mod connections;
pub mod error;
pub mod hosts;
pub mod io_timeout;
pub mod lenient_json;
pub mod openapi;
pub mod request_id;
pub mod route;
pub mod router;
pub mod tls;
pub mod token;
