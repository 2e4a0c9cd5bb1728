//! HTTP: which path leads to which handler, who may call, what a body may cost, and how errors are answered.

pub mod auth;
pub mod body;
pub mod body_room;
pub mod connections;
pub mod error;
pub mod hosts;
pub mod io_timeout;
pub mod lane;
pub mod lenient_json;
pub mod openapi;
pub mod places;
pub mod route;
pub mod router;
pub mod tls;
pub mod token;
