//! Jinja2 in two dialects, for chat templates and for job files: minijinja, with what differs from Python put right,
//! and with limits on steps, depth and source.
//!
//! `tests/reference/make_jinja.py` renders a table of expressions with Python; what cannot be made equal is refused.

mod arguments;
mod dialect;
mod environment;
mod error;
mod escape;
mod filters;
mod format;
mod is_tests;
mod lexer;
mod method_names;
mod methods;
mod numbers;
mod objects;
mod operators;
mod python;
mod python_json;
mod rewrite;
mod slices;
#[cfg(test)]
mod table_tests;
mod templates;
mod weight;

use minijinja::{Error, ErrorKind, State, UndefinedBehavior, Value};

pub use dialect::Dialect;
pub use error::TemplateError;
pub use templates::Templates;

/// Bytes of text made by one step.
const STEP_BYTES: usize = 64;
/// Containers within containers that a value may be.
const MAX_DEPTH: usize = 100;

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Pays for text before it is made.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / STEP_BYTES + 1) as u64)
}

/// Whether an undefined value is an error wherever it is used.
fn is_strict(state: &State) -> bool {
    matches!(state.undefined_behavior(), UndefinedBehavior::Strict)
}

/// The value, unless it is undefined.
fn defined(value: &Value) -> Result<&Value, Error> {
    match value.is_undefined() {
        true => Err(Error::from(ErrorKind::UndefinedError)),
        false => Ok(value),
    }
}

/// The value, unless it is undefined where that is an error.
fn usable<'v>(state: &State, value: &'v Value) -> Result<&'v Value, Error> {
    match is_strict(state) {
        true => defined(value),
        false => Ok(value),
    }
}
