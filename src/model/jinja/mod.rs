//! Jinja2 as `transformers` sets it up for chat templates: minijinja, with what it does otherwise put right.
//!
//! `tests/reference/make_jinja.py` renders a table of expressions with Python; what cannot be made equal is refused.

mod arguments;
mod filters;
mod format;
mod lexer;
mod methods;
mod objects;
mod operators;
mod python;
mod rewrite;
mod tests;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use serde_json::Value as Json;

pub(super) use objects::Digits;

/// Steps that a rendering may take; a step is an instruction or 64 bytes of text made.
pub(super) const STEPS: u64 = 4_000_000;
/// Bytes of text made by one step.
const STEP_BYTES: usize = 64;
/// Bytes of a conversation for which a rendering may take one step more.
const INPUT_BYTES: usize = 2;
/// Containers within containers that a value may be.
const MAX_DEPTH: usize = 100;

/// The environment that `transformers` gives its templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("only custom delimiters can be invalid"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, state, value| {
        if !matches!(state.auto_escape(), AutoEscape::None) {
            return Err(invalid("`autoescape` is not supported"));
        }
        match value.as_str() {
            Some(text) => out.write_str(text).map_err(Error::from),
            None => out.write_str(&python::text(state, value)?).map_err(Error::from),
        }
    });
    environment.set_unknown_method_callback(methods::call);
    filters::add_to(&mut environment);
    tests::add_to(&mut environment);
    environment.add_function("joiner", |separator: Option<&str>| {
        minijinja_contrib::globals::joiner(Some(Value::from(separator.unwrap_or(", "))))
    });
    environment.add_function("range", objects::Range::value);
    operators::add_to(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(invalid(message))
    });
    environment.add_function("strftime_now", |format: &str| -> Result<String, Error> {
        jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|e| invalid(format!("strftime_now: {e}")))
    });
    environment
}

/// Steps for a rendering over this many bytes of messages.
pub(super) fn steps(input: usize) -> u64 {
    STEPS + (input / INPUT_BYTES) as u64
}

/// A JSON value as templates see it.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => python::number(&number.to_string()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), value(item)))),
    }
}

/// A template's source as it is compiled: newlines are `\n` as for Jinja2's lexer, operators are calls of our functions,
/// and the marks around what the assistant says, `{% generation %}`, are a scope that has no effect on the text.
///
/// # Errors
/// A syntax error, or something that is not supported.
pub(super) fn prepared(source: &str) -> Result<String, Error> {
    rewrite::rewritten(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Pays for text before it is made.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / STEP_BYTES + 1) as u64)
}
