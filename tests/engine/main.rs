//! The engine with real models, without a server.

mod contract;
mod crash;
mod export;
mod model_api;
mod structured;
mod training;
