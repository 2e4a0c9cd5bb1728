//! A template of a job file, rendered over a task.

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde::Serialize;
use serde_json::Value as Json;

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
#[derive(Clone, Debug)]
pub struct Template {
    path: String,
    environment: Environment<'static>,
}

/// The only template of its environment.
const NAME: &str = "template";

/// Steps that a rendering may take; a step is an instruction or 64 bytes of text made.
const STEPS: u64 = 4_000_000;

impl Template {
    /// Parses the template that stands at the dotted key `path`.
    ///
    /// # Errors
    /// Its syntax is wrong.
    pub fn new(path: &str, source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(STEPS));
        minijinja_contrib::add_to_environment(&mut environment);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(|error| template_error(path, source, &error))?;
        Ok(Self {
            path: path.to_string(),
            environment,
        })
    }

    /// The template over a task and what else it may name.
    ///
    /// # Errors
    /// It names something that is not there.
    pub fn render(&self, context: &impl Serialize) -> Result<String, TemplateError> {
        let context = serde_json::to_value(context).map_err(|error| TemplateError {
            path: self.path.clone(),
            reason: error.to_string(),
        })?;
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(value(&context)));
        rendered.map_err(|error| {
            let template = self.environment.get_template(NAME);
            let source = template.as_ref().map_or("", |template| template.source());
            template_error(&self.path, source, &error)
        })
    }
}

/// JSON as templates see it. Numbers that have neither 128 bits nor a float's range are texts of their digits.
fn value(json: &Json) -> minijinja::Value {
    match json {
        Json::Null => ().into(),
        Json::Bool(yes) => (*yes).into(),
        Json::Number(number) => match (number.as_i64(), number.as_i128(), number.as_f64()) {
            (Some(integer), ..) => integer.into(),
            (_, Some(integer), _) => integer.into(),
            (.., Some(float)) if number.is_f64() => float.into(),
            _ => number.to_string().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => {
            minijinja::Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field))))
        }
    }
}

fn template_error(path: &str, source: &str, error: &minijinja::Error) -> TemplateError {
    let limit = format!("rendering takes more than {STEPS} steps (a step is an instruction or 64 bytes of text)");
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    let what = if error.kind() == ErrorKind::OutOfFuel {
        limit
    } else {
        what
    };
    let line = error
        .line()
        .and_then(|line| source.lines().nth(line.saturating_sub(1)))
        .unwrap_or(source);
    TemplateError {
        path: path.to_string(),
        reason: format!("{what}, in `{}`", line.trim()),
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
            ("1e400", "1e+400"),
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
    fn a_missing_field_names_key_and_expression() {
        let template = Template::new("roll.reward.answer", "{{ metadata.anwser }}").unwrap();
        let error = template.render(&json!({ "metadata": {} })).unwrap_err().to_string();
        assert!(error.starts_with("roll.reward.answer: undefined value"), "{error}");
        assert!(error.contains("metadata.anwser"), "{error}");
    }
}
