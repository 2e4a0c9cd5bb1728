//! HTTP in, HTTP out: each handler reads a request, asks the core, and shapes the answer.

pub mod code;
pub mod engine;
pub mod episodes;
pub mod logs;
pub mod metrics;
pub mod model_api;
pub mod models;
