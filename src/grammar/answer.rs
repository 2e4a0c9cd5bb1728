//! The grammar of an answer: reasoning, then content or tool calls.

use std::fmt::Write;

use serde_json::{Value, json};

use super::schema_check::with_separators;

/// What an answer may consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerGrammar {
    /// Reasoning before the answer.
    pub reasoning: Reasoning,
    /// Content of the answer.
    pub content: Content,
    /// Tool calls.
    pub calls: Option<Calls>,
}

/// Reasoning between `<think>` and `</think>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// None.
    None,
    /// The answer may begin with it.
    Allowed,
    /// The prompt has begun it.
    Open,
}

/// Content of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// None: the answer must be a tool call.
    None,
    /// Any text.
    Text,
    /// JSON that fits this schema.
    Json(Value),
}

/// Tool calls of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// Functions that may be called.
    pub functions: Vec<Function>,
    /// How the model writes calls.
    pub syntax: CallSyntax,
    /// Whether several calls are allowed.
    pub parallel: bool,
    /// How far the prompt has written the first call, if it has begun it.
    pub opened: Option<Opened>,
}

/// How far the prompt has written the first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Up to the name of the function.
    Name,
    /// Up to the arguments.
    Arguments,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Schema of the arguments.
    pub arguments: Value,
}

/// How a model writes calls: `before {"name": …, "key": …} after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSyntax {
    /// Text before the JSON object.
    pub before: &'static str,
    /// Key of the arguments.
    pub key: &'static str,
    /// Text after the JSON object.
    pub after: &'static str,
    /// Text between two calls.
    pub between: &'static str,
}

impl CallSyntax {
    /// Returns the text of a call up to the name of the function.
    pub fn before_name(self) -> String {
        format!("{}{{\"name\": \"", self.before)
    }

    /// Returns the text of a call up to the arguments.
    pub fn before_arguments(self, name: &str) -> String {
        format!("{}{{\"name\": {}, \"{}\": ", self.before, json!(name), self.key)
    }
}

impl AnswerGrammar {
    /// Returns the grammar as a text.
    pub fn text(&self) -> String {
        let reasoning = match self.reasoning {
            Reasoning::None => "",
            Reasoning::Allowed => "reasoning? ",
            Reasoning::Open => "thought ",
        };
        let tag = self.calls.as_ref().map(|calls| calls.syntax.before.trim_end());
        let answer = match (&self.content, &self.calls) {
            (Content::None, None) => "",
            (Content::None, Some(_)) => "calls",
            (Content::Text, Some(_)) => "TEXT | calls",
            (Content::Text, None) => "TEXT",
            (Content::Json(_), Some(_)) => "content | calls",
            (Content::Json(_), None) => "content",
        };
        let mut text = format!("start: {reasoning}answer\nanswer: {answer}\n");
        if self.reasoning == Reasoning::Allowed {
            add(&mut text, "reasoning", "\"<think>\" thought");
        }
        if self.reasoning != Reasoning::None {
            add(&mut text, "thought", "thinking (\"\\n\" | \"\\n\\n\")?");
            add(&mut text, "thinking[lazy]", "/(?s:.*)/ \"</think>\"");
        }
        match (&self.content, tag) {
            (Content::Json(schema), _) => add(&mut text, "content", &json_rule(schema)),
            (Content::Text, None) => add(&mut text, "TEXT", "/(?s:.*)/"),
            // Without a tag, the first character shows that it is a call.
            (Content::Text, Some("")) => add(&mut text, "TEXT", "/([^{\\[\\s](?s:.*))?/"),
            (Content::Text, Some(tag)) => {
                add(&mut text, "TEXT", &without(tag));
                add(&mut text, "tagged[lazy]", &format!("/(?s:.*)/ {}", literal(tag)));
            }
            (Content::None, _) => {}
        }
        if let Some(calls) = &self.calls {
            let tagged = tag.filter(|tag| self.content == Content::Text && !tag.is_empty());
            calls.add_to(&mut text, tagged.map_or(0, str::len));
        }
        text
    }
}

impl Calls {
    /// Adds the rules of calls. The first call is behind a text that ends with the first `tagged` bytes of it.
    fn add_to(&self, text: &mut String, tagged: usize) {
        let first = match self.opened {
            Some(Opened::Arguments) => self.call(|head| head.len()),
            Some(Opened::Name) => self.call(|_| self.syntax.before_name().len()),
            None => self.call(|_| tagged),
        };
        let tag = if tagged > 0 { "tagged " } else { "" };
        let more = match self.parallel {
            true => format!(" ({} call)*", literal(self.syntax.between)),
            false => String::new(),
        };
        add(text, "calls", &format!("{tag}{first}{more}"));
        if self.parallel {
            add(text, "call", &self.call(|_| 0));
        }
        for (number, function) in self.functions.iter().enumerate() {
            add(text, &format!("arguments_{number}"), &json_rule(&function.arguments));
        }
    }

    /// Returns the rule of a call of any function. `written` says how many bytes of its text before the arguments are already
    /// there.
    fn call(&self, written: impl Fn(&str) -> usize) -> String {
        let alternatives = self.functions.iter().enumerate().map(|(number, function)| {
            let head = self.syntax.before_arguments(&function.name);
            format!("{} arguments_{number}", literal(&head[written(&head)..]))
        });
        let alternatives = alternatives.collect::<Vec<_>>().join(" | ");
        format!("({alternatives}) {}", literal(&format!("}}{}", self.syntax.after)))
    }
}

fn add(text: &mut String, name: &str, rule: &str) {
    let _ = writeln!(text, "{name}: {rule}"); // writing to a string cannot fail
}

fn json_rule(schema: &Value) -> String {
    format!("%json {}", with_separators(schema.clone()))
}

/// Returns a text as a string of the grammar.
fn literal(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => json!(text).to_string(),
    }
}

/// Returns the regular expression of all texts that do not contain `text`.
fn without(text: &str) -> String {
    let escaped = regex::escape(text).replace('/', "\\/");
    format!("/(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/")
}
