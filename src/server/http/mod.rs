//! HTTP: routing, access control, limits of request bodies and connections, and error answers.

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
