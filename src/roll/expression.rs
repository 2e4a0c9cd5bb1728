//! An expression of a job file, such as `metadata.level > 2`: a template's syntax, semantics and limits, and a value
//! instead of text.

use serde::Serialize;
use serde_json::Value;

use super::template::{Template, TemplateError};

/// A parsed expression and the key that it came from.
#[derive(Clone, Debug)]
pub struct Expression {
    template: Template,
    path: String,
    source: String,
}

impl Expression {
    /// Parses the expression that stands at the dotted key `path`.
    ///
    /// # Errors
    /// Fails if its syntax is wrong, or it is larger or nested deeper than templates may be.
    pub fn new(path: &str, source: &str) -> Result<Self, TemplateError> {
        if source.trim().is_empty() {
            return Err(TemplateError {
                path: path.to_owned(),
                reason: "the expression is empty".to_owned(),
            });
        }
        // A value comes out of a template as JSON. The newline ends a comment at the end of the source.
        let json = format!("{{{{ ({source}\n) | tojson }}}}");
        Ok(Self {
            template: Template::wrapping(path, source, &json)?,
            path: path.to_owned(),
            source: source.to_owned(),
        })
    }

    /// The expression's value over variables. Undefined names are errors.
    ///
    /// # Errors
    /// Fails if it uses an undefined name, takes too many steps, or has a value that is not JSON, such as NaN.
    pub fn evaluate(&self, variables: &impl Serialize) -> Result<Value, TemplateError> {
        let json = self.template.render(variables)?;
        serde_json::from_str(&json).map_err(|_| TemplateError {
            path: self.path.clone(),
            reason: format!("the value of `{}` is {json}, which JSON does not have", self.source),
        })
    }

    /// Whether a name occurs in the source.
    pub fn mentions(&self, name: &str) -> bool {
        self.template.names().contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_have_values() {
        let variables = json!({"output": "abc", "metadata": {"n": 3, "list": [1, 2]}, "reward": 0.5});
        for (source, expected) in [
            ("output | length", json!(3)),
            ("output == 'abc'", json!(true)),
            ("metadata.n > 2 and not reward > 1", json!(true)),
            ("reward + 1", json!(1.5)),
            ("1 if 'b' in output else 0", json!(1)),
            ("metadata['list'][-1]", json!(2)),
            ("{'a': {'b': 1}}", json!({"a": {"b": 1}})),
            ("output", json!("abc")),
            ("none", json!(null)),
        ] {
            let value = Expression::new("k", source).unwrap().evaluate(&variables).unwrap();
            assert_eq!(value.to_string(), expected.to_string(), "{source}");
        }
    }

    #[test]
    fn what_has_no_value_is_an_error_that_names_the_key() {
        for (source, told) in [
            (
                "metadata.none",
                "undefined value, in `metadata.none`\nhint: the fields here are metadata",
            ),
            ("1e308 * 10", "JSON does not have"),
        ] {
            let expression = Expression::new("roll.reward.expression", source).unwrap();
            let error = expression.evaluate(&json!({"metadata": {}})).unwrap_err().to_string();
            assert!(
                error.starts_with("roll.reward.expression: ") && error.contains(told),
                "{error}"
            );
        }
        for (source, shown) in [("1/0", "`1/0`"), ("1\n+ '2'", "`1\n+ '2'`")] {
            let expression = Expression::new("k", source).unwrap();
            let error = expression.evaluate(&json!({})).unwrap_err().to_string();
            assert!(error.ends_with(shown), "{error}");
        }
        for source in ["", "1 +", "a b", "a }} {{ b", "a) }}{% if x %}"] {
            assert!(Expression::new("k", source).is_err(), "{source:?}");
        }
    }
}
