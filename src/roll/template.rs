//! A template of a job file, rendered over a task.

use std::borrow::Cow;
use std::collections::HashSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::config::fit::Format;
use crate::jinja::{self, Dialect, Templates};

/// A template that does not parse, or asks for something that a task does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TemplateError {
    /// The key that holds the template.
    pub path: String,
    /// What is wrong, with its line.
    pub reason: String,
}

/// A parsed template and the key that it came from. Undefined names are errors: a prompt with a hole in it would train
/// something else than what was meant.
///
/// In a job it is text.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Source")]
pub struct Template {
    path: String,
    source: String,
    templates: Templates,
}

/// What the reader of jobs makes of a template's text: it adds the key, so that errors can name it.
#[derive(Deserialize)]
struct Source {
    path: String,
    text: String,
}

/// How the reader of jobs takes text that is a template.
pub const FORMAT: Format = Format {
    name: "template",
    check: |path, text| Template::new(path, text).map(drop).map_err(|error| error.reason),
};

/// The only template of its set.
const NAME: &str = "template";

impl Template {
    /// Parses the template that stands at the dotted key `path`.
    ///
    /// # Errors
    /// Fails if its syntax is wrong, or it is larger or nested deeper than templates may be.
    pub fn new(path: &str, source: &str) -> Result<Self, TemplateError> {
        let mut template = Self {
            path: path.to_string(),
            source: source.to_string(),
            templates: Templates::new(Dialect::Job),
        };
        let added = template.templates.add(NAME, source);
        added.map_err(|error| template.error(&error))?;
        Ok(template)
    }

    /// The template over a task and what else it may name.
    ///
    /// # Errors
    /// Fails if it uses an undefined name or takes too many steps.
    pub fn render(&self, context: &impl Serialize) -> Result<String, TemplateError> {
        let context = match serde_json::to_value(context) {
            Ok(Json::Object(variables)) => variables,
            Ok(other) => return Err(self.refused(format!("a task is an object of fields, not {other}"))),
            Err(error) => return Err(self.refused(error.to_string())),
        };
        let rendered = self.templates.render(NAME, &context);
        rendered.map_err(|error| self.error(&error))
    }

    /// The names that it looks up, and perhaps more.
    pub fn names(&self) -> HashSet<String> {
        self.templates.names(NAME)
    }

    /// What went wrong, and the line that it went wrong in.
    fn error(&self, error: &jinja::TemplateError) -> TemplateError {
        let line = |line: usize| self.source.lines().nth(line.saturating_sub(1));
        let line = error.line.and_then(line).unwrap_or(&self.source);
        self.refused(format!("{}, in `{:.200}`", error.message, line.trim()))
    }

    fn refused(&self, reason: String) -> TemplateError {
        TemplateError {
            path: self.path.clone(),
            reason,
        }
    }
}

impl TryFrom<Source> for Template {
    type Error = TemplateError;

    fn try_from(Source { path, text }: Source) -> Result<Self, TemplateError> {
        Self::new(&path, &text)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": FORMAT.name })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_render_over_a_task() {
        let template = Template::new("roll.agent.user", "{{ main_query }} ({{ metadata.level }})").unwrap();
        let task = json!({ "main_query": "1+1", "metadata": { "level": 3 } });
        assert_eq!(template.render(&task).unwrap(), "1+1 (3)");
    }

    /// Seen with a big integer in a task's metadata, which came out as a float.
    #[test]
    fn numbers_keep_their_digits() {
        for (number, printed) in [
            ("12345678901234567890123", "12345678901234567890123"),
            ("-98765432109876543210", "-98765432109876543210"),
            ("18446744073709551616", "18446744073709551616"),
            (&"9".repeat(60), &"9".repeat(60)),
            ("-7", "-7"),
            ("0.1", "0.1"),
            ("1.10", "1.1"),
            ("1E5", "100000.0"),
            ("1e400", "inf"),
        ] {
            let task: Json = serde_json::from_str(&format!("{{\"n\": {number}}}")).unwrap();
            let rendered = Template::new("k", "{{ n }}").unwrap().render(&task).unwrap();
            assert_eq!(rendered, printed);
        }
        let task: Json = serde_json::from_str(r#"{"n": 12345678901234567890123}"#).unwrap();
        let sum = Template::new("k", "{{ n + 1 }}").unwrap().render(&task).unwrap();
        assert_eq!(sum, "12345678901234567890124");
    }

    #[test]
    fn the_names_that_a_template_looks_up_are_known() {
        for (source, names) in [
            ("{{ a.b }} {{ c['d'] }}", vec!["a", "c"]),
            ("{{ text.split('x')[1] | upper }}", vec!["text"]),
            ("{% for x in items %}{{ x ~ y }}{% endfor %}", vec!["items", "y"]),
            (
                "{% if a in b and not c %}{% set d = e %}{{ d }}{% endif %}",
                vec!["a", "b", "c", "e"],
            ),
            ("{{ '%s' % f }}{{ g + h }}{{ \"i\" }}", vec!["f", "g", "h"]),
        ] {
            let found = Template::new("k", source).unwrap().names();
            assert!(names.iter().all(|name| found.contains(*name)), "{source}: {found:?}");
        }
    }

    #[test]
    fn a_missing_field_names_key_and_expression() {
        for source in [
            "{{ metadata.anwser }}",
            "{{ metadata['anwser'] }}",
            "a\n{{ metadata.anwser ~ 1 }}\n",
        ] {
            let template = Template::new("roll.reward.answer", source).unwrap();
            let error = template.render(&json!({ "metadata": {} })).unwrap_err().to_string();
            assert!(error.starts_with("roll.reward.answer: "), "{error}");
            assert!(error.contains("undefined"), "{error}");
            assert!(error.contains("`{{ metadata") && error.ends_with("}}`"), "{error}");
        }
    }

    #[test]
    fn templates_too_large_or_too_slow_are_errors_that_name_their_key() {
        let cases = ["x".repeat(2_000_000), "{{ ".to_owned() + &"[".repeat(10_000) + " }}"];
        for source in &cases {
            let error = Template::new("roll.agent.user", source).unwrap_err().to_string();
            assert!(error.starts_with("roll.agent.user: ") && error.len() < 500, "{error}");
        }
        let slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let template = Template::new("roll.agent.user", slow).unwrap();
        let error = template.render(&json!({})).unwrap_err().to_string();
        assert!(error.contains("steps"), "{error}");
    }
}
