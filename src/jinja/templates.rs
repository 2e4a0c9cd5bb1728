//! Templates by name: compiled within the limits on their source, rendered within the limits on steps and depth.

use std::collections::HashSet;

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::dialect::Dialect;
use super::environment::environment;
use super::error::TemplateError;
use super::{python, rewrite};

/// Steps that a rendering may take; a step is an instruction, 64 bytes of text made or two values visited.
const STEPS: u64 = 4_000_000;
/// Bytes of the variables for which a rendering may take one step more.
const INPUT_BYTES: usize = 2;

/// Compiled templates.
#[derive(Clone, Debug)]
pub struct Templates {
    environment: Environment<'static>,
}

impl Default for Templates {
    fn default() -> Self {
        Self::new(Dialect::default())
    }
}

impl Templates {
    /// None yet.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            environment: environment(dialect),
        }
    }

    /// Compiles a template. Newlines are `\n`, as for Jinja2's lexer.
    ///
    /// # Errors
    /// Fails for a syntax error, an unsupported feature of Jinja2, or a source beyond the limits of size and nesting.
    pub fn add(&mut self, name: &str, source: &str) -> Result<(), TemplateError> {
        let rewritten = rewrite::rewritten(&source.replace("\r\n", "\n").replace('\r', "\n"))?;
        Ok(self.environment.add_template_owned(name.to_owned(), rewritten)?)
    }

    /// The names that a template uses without defining them; none where there is no such template.
    pub fn names(&self, name: &str) -> HashSet<String> {
        let template = self.environment.get_template(name);
        template.map_or_else(|_| HashSet::new(), |template| template.undeclared_variables(false))
    }

    /// Renders a template over variables. Missing keys are undefined and nulls are `None`, as Python would see them.
    ///
    /// # Errors
    /// Fails if there is no template of this name, it raises an error, or it takes more steps than variables of this
    /// size allow.
    pub fn render(&self, name: &str, variables: &Map<String, Json>) -> Result<String, TemplateError> {
        let size = variables
            .iter()
            .map(|(key, item)| key.len() + size_of(item))
            .sum::<usize>();
        let steps = STEPS + (size / INPUT_BYTES) as u64;
        // The limit belongs to the environment, of which a copy shares the compiled templates.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps));
        let variables = Value::from_pairs(variables.iter().map(|(key, item)| (key.as_str(), value(item))));
        let rendered = environment
            .get_template(name)
            .and_then(|template| template.render(variables));
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                let message = format!(
                    "rendering takes more than {steps} steps, the limit for an input of {size} bytes (a step is an \
                     instruction or 64 bytes of text)"
                );
                TemplateError::new(message, error.line())
            }
            _ => error.into(),
        })
    }
}

/// Bytes of text in a value.
fn size_of(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(size_of).sum(),
        Json::Object(map) => map.iter().map(|(key, item)| key.len() + size_of(item)).sum(),
        _ => 1,
    }
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
