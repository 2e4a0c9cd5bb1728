//! Errors of templates.

use minijinja::{Error, ErrorKind};

/// Why a template cannot be compiled or rendered: the message that it raised itself, or the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .line.map_or_else(String::new, |line| format!(" (line {line} of the template)")))]
pub struct TemplateError {
    /// What went wrong.
    pub message: String,
    /// The line of the source, from 1, where it is known.
    pub line: Option<usize>,
    /// Whether it uses a name or a field that does not exist.
    pub is_undefined: bool,
}

impl TemplateError {
    /// An error that the variables have no part in.
    pub(super) fn new(message: String, line: Option<usize>) -> Self {
        Self {
            message,
            line,
            is_undefined: false,
        }
    }
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        Self {
            message: error.detail().map_or_else(|| error.kind().to_string(), String::from),
            line: error.line(),
            is_undefined: error.kind() == ErrorKind::UndefinedError,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::jinja::{Dialect, Templates};
    use serde_json::{Map, json};

    #[test]
    fn messages() {
        let variables = Map::from_iter([("name".to_owned(), json!("text")), ("list".to_owned(), json!([1, 2]))]);
        let refused = [
            "{{ name",
            "{% if name %}",
            "{% unknown %}",
            "{{ name + }}",
            "{{ (1 + 2 }}",
            "{% for x in %}{% endfor %}",
            "{{ name | unknown }}",
            "{{ name is unknown }}",
            "{{ missing.field }}",
            "{{ name + 1 }}",
            "{{ list['a'] }}",
            "{{ 1 / 0 }}",
            "{{ name.append(1) }}",
            "{{ raise_exception('roles must alternate') }}",
            "{% for x in range(100000000) %}{% endfor %}",
            "{% include 'other' %}",
            "{% macro m(a, b=a) %}{% endmacro %}",
        ];
        let messages = refused.map(|source| {
            let mut templates = Templates::new(Dialect::Job);
            let rendered = templates
                .add("t", source)
                .and_then(|()| templates.render("t", &variables));
            match rendered {
                Ok(text) => format!("{source}\n  renders {text:?}"),
                Err(error) => format!("{source}\n  {error}"),
            }
        });
        insta::assert_snapshot!(messages.join("\n"));
    }
}
