//! A section of a job file, read key by key. What is asked for is what is known: keys that nobody asked for are
//! unknown, and every problem of a file is told at once.

use std::cell::RefCell;
use std::rc::Rc;

use serde_yaml::{Mapping, Value};

use super::template::Template;

/// A mapping of the `roll:` part.
pub(super) struct Section {
    path: String,
    entries: Mapping,
    known: Vec<&'static str>,
    problems: Rc<RefCell<Vec<String>>>,
}

impl Section {
    /// The section at the dotted `path`; null is an empty one.
    pub fn new(path: &str, value: &Value, problems: &Rc<RefCell<Vec<String>>>) -> Self {
        let section = Self {
            path: path.to_string(),
            entries: value.as_mapping().cloned().unwrap_or_default(),
            known: vec![],
            problems: problems.clone(),
        };
        if !value.is_mapping() && !value.is_null() {
            section.problem(format!("{path}: {} is not a section of keys", show(value)));
        }
        section
    }

    /// The value of a key, null as absent.
    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.entries.shift_remove(name).filter(|value| !value.is_null())
    }

    fn read<T>(&mut self, name: &'static str, allowed: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = self.take(name)?;
        let fitting = read(&value);
        if fitting.is_none() {
            self.problem(format!("{}.{name}: {} is not {allowed}", self.path, show(&value)));
        }
        fitting
    }

    /// Text; a bare number is taken as it would be written.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        self.read(name, "text", as_text)
    }

    /// One of a few names.
    pub fn choice(&mut self, name: &'static str, names: &[&'static str]) -> Option<&'static str> {
        let allowed = format!("one of {}", names.join(", "));
        self.read(name, &allowed, |value| {
            names.iter().find(|known| Some(**known) == value.as_str()).copied()
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// A whole number of at least `least`.
    pub fn whole(&mut self, name: &'static str, least: u64) -> Option<u64> {
        let allowed = format!("a whole number of {least} or more");
        self.read(name, &allowed, |value| value.as_u64().filter(|number| *number >= least))
    }

    /// A finite number above zero.
    pub fn positive(&mut self, name: &'static str) -> Option<f64> {
        self.read(name, "a number above 0", |value| {
            value.as_f64().filter(|number| number.is_finite() && *number > 0.0)
        })
    }

    /// A finite number.
    pub fn number(&mut self, name: &'static str) -> Option<f64> {
        self.read(name, "a number", |value| {
            value.as_f64().filter(|number| number.is_finite())
        })
    }

    /// A list of texts.
    pub fn texts(&mut self, name: &'static str) -> Option<Vec<String>> {
        self.read(name, "a list of texts", |value| {
            value.as_sequence()?.iter().map(as_text).collect()
        })
    }

    /// A template.
    pub fn template(&mut self, name: &'static str) -> Option<Template> {
        let source = self.text(name)?;
        self.compile(name, &source)
    }

    /// A list of templates.
    pub fn templates(&mut self, name: &'static str) -> Option<Vec<Template>> {
        let sources = self.texts(name)?;
        sources.iter().map(|source| self.compile(name, source)).collect()
    }

    fn compile(&self, name: &str, source: &str) -> Option<Template> {
        let path = format!("{}.{name}", self.path);
        Template::new(&path, source)
            .map_err(|error| self.problem(error.to_string()))
            .ok()
    }

    /// A section below this one.
    pub fn section(&mut self, name: &'static str) -> Option<Section> {
        let value = self.take(name)?;
        Some(Section::new(&format!("{}.{name}", self.path), &value, &self.problems))
    }

    /// Notes that `name` has to be there.
    pub fn require<T>(&self, name: &str, value: Option<T>, what: &str) -> Option<T> {
        if value.is_none()
            && !self
                .problems
                .borrow()
                .iter()
                .any(|known| known.starts_with(&format!("{}.{name}:", self.path)))
        {
            self.problem(format!("{}.{name} is missing: {what}", self.path));
        }
        value
    }

    /// Notes a problem.
    pub fn problem(&self, sentence: String) {
        self.problems.borrow_mut().push(sentence);
    }

    /// Every key that nobody asked for is unknown.
    pub fn finish(self) {
        for name in self.entries.keys() {
            let name = as_text(name).unwrap_or_else(|| show(name));
            let hint = match nearest(&name, &self.known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("known keys are {}", self.known.join(", ")),
            };
            self.problem(format!("{}.{name}: unknown key; {hint}", self.path));
        }
    }
}

/// The known name that a misspelt one was most likely meant to be.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let similarity = |known: &str| strsim::normalized_damerau_levenshtein(name, known);
    known
        .iter()
        .copied()
        .filter(|known| similarity(known) >= 0.6)
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A value on one line, as an error shows it.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Mapping(_) => "a section".into(),
        Value::Sequence(_) => "a list".into(),
        Value::Tagged(tagged) => show(&tagged.value),
        scalar => serde_yaml::to_string(scalar).unwrap_or_default().trim_end().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(yaml: &str, read: impl FnOnce(&mut Section)) -> Vec<String> {
        let problems = Rc::default();
        let mut section = Section::new("roll", &serde_yaml::from_str(yaml).unwrap(), &problems);
        read(&mut section);
        section.finish();
        problems.take()
    }

    #[test]
    fn every_problem_names_key_value_and_what_is_allowed() {
        let problems = problems_of(
            "{epochs: many, seeed: 1, zzz: 1, eval: 3, user: '{{ x', ratio: -1, type: chatt}",
            |roll| {
                assert_eq!(roll.whole("epochs", 1), None);
                assert_eq!(roll.whole("seed", 0), None);
                roll.section("eval").unwrap().finish();
                assert!(roll.template("user").is_none());
                assert_eq!(roll.positive("ratio"), None);
                assert_eq!(roll.choice("type", &["chat", "command"]), None);
                assert_eq!(roll.require("argv", None::<u8>, "the program to run"), None);
            },
        );
        assert_eq!(problems[0], r#"roll.epochs: "many" is not a whole number of 1 or more"#);
        assert_eq!(problems[1], "roll.eval: 3 is not a section of keys");
        assert!(problems[2].starts_with("roll.user: "), "{}", problems[2]);
        assert_eq!(problems[3], "roll.ratio: -1 is not a number above 0");
        assert_eq!(problems[4], r#"roll.type: "chatt" is not one of chat, command"#);
        assert_eq!(problems[5], "roll.argv is missing: the program to run");
        assert_eq!(problems[6], "roll.seeed: unknown key; did you mean `seed`?");
        assert!(
            problems[7].starts_with("roll.zzz: unknown key; known keys are epochs, seed"),
            "{}",
            problems[7]
        );
        assert_eq!(problems.len(), 8);
    }

    #[test]
    fn null_is_absent_and_a_bare_number_is_text() {
        let problems = problems_of("{epochs: null, user: 5, turns: [a, 1]}", |roll| {
            assert_eq!(roll.whole("epochs", 1), None);
            assert_eq!(roll.text("user"), Some("5".into()));
            assert_eq!(roll.texts("turns"), Some(vec!["a".into(), "1".into()]));
        });
        assert!(problems.is_empty(), "{problems:?}");
    }
}
