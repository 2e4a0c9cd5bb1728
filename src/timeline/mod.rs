//! From an agent's LLM calls to training rows: pure, no I/O, no model.

pub mod row;

pub use row::Row;
