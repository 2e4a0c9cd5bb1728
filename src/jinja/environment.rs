//! What templates find: syntax, filters, tests and functions.

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior, Value};

use super::dialect::Dialect;
use super::{filters, invalid, is_tests, methods, objects, operators, python};

/// An environment without templates.
pub(super) fn environment(dialect: Dialect) -> Environment<'static> {
    let mut environment = Environment::new();
    let is_chat = dialect == Dialect::Chat;
    #[expect(clippy::expect_used, reason = "only custom delimiters can be invalid")]
    let syntax = SyntaxConfig::builder()
        .trim_blocks(is_chat)
        .lstrip_blocks(is_chat)
        .build()
        .expect("the usual delimiters are valid");
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(match dialect {
        Dialect::Chat => UndefinedBehavior::Lenient,
        Dialect::Job => UndefinedBehavior::Strict,
    });
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, state, value| {
        if !matches!(state.auto_escape(), AutoEscape::None) {
            return Err(invalid("`autoescape` is not supported"));
        }
        match value.as_str() {
            Some(text) => out.write_str(text).map_err(Error::from),
            // The environment has refused undefined names; this is an `if` without `else`.
            None if value.is_undefined() => Ok(()),
            None => out.write_str(&python::text(state, value)?).map_err(Error::from),
        }
    });
    environment.set_unknown_method_callback(methods::call);
    filters::add_to(&mut environment);
    is_tests::add_to(&mut environment);
    operators::add_to(&mut environment);
    environment.add_function("joiner", |separator: Option<&str>| {
        minijinja_contrib::globals::joiner(Some(Value::from(separator.unwrap_or(", "))))
    });
    environment.add_function("range", objects::Range::value);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(invalid(message))
    });
    environment.add_function("strftime_now", |format: &str| -> Result<String, Error> {
        jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|e| invalid(format!("strftime_now: {e}")))
    });
    environment
}
