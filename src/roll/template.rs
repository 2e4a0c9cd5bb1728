//! A template of a job file, rendered over a task.

use std::borrow::Cow;
use std::collections::HashSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

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
    /// Whether the source is a part of the template, which errors show as a whole.
    is_wrapped: bool,
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

/// Maximum number of fields that an error lists.
const LISTED: usize = 40;

impl Template {
    /// Parses the template that stands at the dotted key `path`.
    ///
    /// # Errors
    /// Fails if its syntax is wrong, or it is larger or nested deeper than templates may be.
    pub fn new(path: &str, source: &str) -> Result<Self, TemplateError> {
        Self::compiled(path, source, source, false)
    }

    /// Parses a template that is made of what stands at the key: errors show `source`.
    ///
    /// # Errors
    /// As [`Template::new`].
    pub(super) fn wrapping(path: &str, source: &str, template: &str) -> Result<Self, TemplateError> {
        Self::compiled(path, source, template, true)
    }

    fn compiled(path: &str, source: &str, template: &str, is_wrapped: bool) -> Result<Self, TemplateError> {
        let mut compiled = Self {
            path: path.to_string(),
            source: source.to_string(),
            templates: Templates::new(Dialect::Job),
            is_wrapped,
        };
        let added = compiled.templates.add(NAME, template);
        added.map_err(|error| compiled.refused(compiled.reason(&error)))?;
        Ok(compiled)
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
        rendered.map_err(|error| {
            let mut reason = self.reason(&error);
            if error.is_undefined {
                reason += &format!("\nhint: {}", fields_of(&context));
            }
            self.refused(reason)
        })
    }

    /// The names that it looks up, and perhaps more.
    pub fn names(&self) -> HashSet<String> {
        self.templates.names(NAME)
    }

    /// What went wrong, and the line that it went wrong in, or the whole of what is wrapped.
    fn reason(&self, error: &jinja::TemplateError) -> String {
        let line = |line: usize| self.source.lines().nth(line.saturating_sub(1));
        let line = error.line.filter(|_| !self.is_wrapped).and_then(line);
        format!("{}, in `{:.200}`", error.message, line.unwrap_or(&self.source).trim())
    }

    fn refused(&self, reason: String) -> TemplateError {
        TemplateError {
            path: self.path.clone(),
            reason,
        }
    }
}

/// Lists the fields that a template may name, those of objects with a dot.
fn fields_of(variables: &Map<String, Json>) -> String {
    let names = variables.iter().flat_map(|(name, value)| {
        let inner = value.as_object().into_iter().flat_map(Map::keys);
        let inner = inner.map(move |key| format!("{name}.{key}"));
        std::iter::once(name.clone()).chain(inner)
    });
    let names: Vec<String> = names.collect();
    match names.len() {
        0 => "there are no fields here".into(),
        1..=LISTED => format!("the fields here are {}", names.join(", ")),
        _ => format!("the fields here are {}, …", names[..LISTED].join(", ")),
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
            let error = template
                .render(&json!({ "metadata": { "answer": 1 } }))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("roll.reward.answer: "), "{error}");
            assert!(error.contains("undefined"), "{error}");
            let (sentence, hint) = error.split_once("\nhint: ").unwrap();
            assert!(
                sentence.contains("`{{ metadata") && sentence.ends_with("}}`"),
                "{error}"
            );
            assert_eq!(hint, "the fields here are metadata, metadata.answer");
        }
    }

    #[test]
    fn the_fields_of_an_error_are_bounded() {
        let fields = |number: usize| (0..number).map(|n| (format!("f{n}"), json!(n))).collect();
        assert_eq!(fields_of(&fields(0)), "there are no fields here");
        assert_eq!(fields_of(&fields(2)), "the fields here are f0, f1");
        assert!(fields_of(&fields(1000)).ends_with("f39, …"));
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
