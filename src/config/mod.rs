//! The `ajet:` training configuration.
//!
//! [`schema`] is the single source of what can be set; [`keys`] adds what AgentJet and verl know besides. [`mod@load`] makes
//! a checked configuration of a YAML document, [`dump_yaml`] the reverse.

mod dump;
mod effective;
mod error;
pub mod experiment;
pub mod keys;
mod load;
mod reference;
pub mod schema;
mod size;
pub mod small_file;
pub mod validate;
mod value;

pub use dump::dump_yaml;
pub use effective::LINEAR_PROJECTIONS;
pub use error::{Error, Problem};
pub use load::{Loaded, Strictness, load, load_over};
pub use reference::configuration_md;
pub use schema::Ajet;
