//! Configuration: the reader of YAML for the two parts of a job, and the schema of the `ajet:` part.
//!
//! A document is parsed once ([`parse`]) to a [`Node`], laid over defaults where there are some, and made to fit the
//! schema of a type ([`mod@fit`]). [`schema`] is the single source of what `ajet:` can hold; [`keys`] adds what AgentJet and
//! verl know besides. [`mod@load`] makes a checked configuration of a document, [`dump_yaml`] the reverse.

pub mod checksum;
mod dump;
mod effective;
mod error;
pub mod experiment;
pub mod fit;
mod json;
pub mod keys;
mod load;
mod model_path;
mod nearest;
mod node;
#[cfg(test)]
mod reference;
pub mod schema;
pub mod setting;
pub mod shape;
pub mod small_file;
pub mod validate;
mod variables;
pub mod yaml;

pub use dump::dump_yaml;
pub use effective::{ALL_LINEAR, LINEAR_PROJECTIONS};
pub use error::{Error, Problem};
pub use fit::{Strictness, fit};
pub use json::{from_json, to_json};
pub use load::{Loaded, load, load_over, parse, read};
pub use model_path::check_model_path;
pub use nearest::nearest;
pub use node::Node;
#[cfg(test)]
pub use reference::{ajet_reference, reference};
pub use schema::Ajet;
pub use variables::expand;
