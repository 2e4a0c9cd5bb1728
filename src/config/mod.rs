//! The `ajet:` training configuration: its schema ([`schema`]), how a YAML becomes one, what is checked.

pub mod schema;
