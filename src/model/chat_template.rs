//! Chat templates: Hugging Face's Jinja templates, rendered byte for byte as `transformers` renders them.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

use super::error::ModelError;
use super::python_json;

/// A model's chat template, compiled.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplate {
    templates: Environment<'static>,
    has_default: bool,
    has_tool_use: bool,
    special_tokens: Map<String, serde_json::Value>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Special tokens that templates may use as variables.
const SPECIAL_TOKENS: [&str; 8] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
];

impl ChatTemplate {
    /// From `tokenizer_config.json` (template and special tokens) and, where it exists, `chat_template.jinja`, which
    /// goes before the configuration's template. A model without any template renders nothing but errors.
    pub fn new(tokenizer_config: &serde_json::Value, jinja: Option<&str>) -> Result<Self, ModelError> {
        let mut template = Self {
            templates: environment(),
            ..Self::default()
        };
        match (jinja, &tokenizer_config["chat_template"]) {
            (Some(source), _) => template.add(DEFAULT, source)?,
            (None, serde_json::Value::String(source)) => template.add(DEFAULT, source)?,
            (None, serde_json::Value::Array(named)) => {
                for entry in named {
                    match (entry["name"].as_str(), entry["template"].as_str()) {
                        (Some(DEFAULT), Some(source)) => template.add(DEFAULT, source)?,
                        (Some(TOOL_USE), Some(source)) => template.add(TOOL_USE, source)?,
                        (Some(_), Some(_)) => {} // for other uses, such as retrieval
                        _ => {
                            return Err(ModelError::ChatTemplate(
                                "a list of templates needs names and texts".into(),
                            ));
                        }
                    }
                }
            }
            _ => {}
        }
        for name in SPECIAL_TOKENS {
            let value = match &tokenizer_config[name] {
                serde_json::Value::Null => continue,
                token => token.get("content").unwrap_or(token).clone(),
            };
            template.special_tokens.insert(name.to_string(), value);
        }
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), ModelError> {
        self.templates
            .add_template_owned(name, without_generation_marks(source))
            .map_err(explain)?;
        self.has_default |= name == DEFAULT;
        self.has_tool_use |= name == TOOL_USE;
        Ok(())
    }

    /// Whether the model has a template.
    pub fn exists(&self) -> bool {
        self.has_default || self.has_tool_use
    }

    /// The source of its templates, in which formats of tool calls and thinking can be recognised.
    pub fn source(&self) -> String {
        let sources = self
            .templates
            .templates()
            .map(|(_, template)| template.source().to_owned());
        sources.collect::<Vec<_>>().join("\n")
    }

    /// Renders a conversation. Messages and tools are OpenAI's, as JSON; missing keys are undefined and nulls are
    /// `None`, as Python would see them. `extra` are further variables, such as `enable_thinking`.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&[serde_json::Value]>,
        add_generation_prompt: bool,
        extra: &Map<String, serde_json::Value>,
    ) -> Result<String, ModelError> {
        if !self.exists() {
            return Err(ModelError::ChatTemplate(
                "the model has none\nhint: use an instruction-tuned model, or put a chat_template.jinja beside its \
                 tokenizer.json"
                    .into(),
            ));
        }
        let name = if self.has_tool_use && (tools.is_some() || !self.has_default) {
            TOOL_USE
        } else {
            DEFAULT
        };
        let messages: Vec<serde_json::Value> = messages.iter().cloned().map(with_reasoning_aliases).collect();
        let mut variables = self.special_tokens.clone();
        variables.extend(extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        variables.insert("messages".into(), messages.into());
        variables.insert("tools".into(), tools.map_or(serde_json::Value::Null, Into::into));
        variables.insert("documents".into(), extra.get("documents").cloned().unwrap_or_default());
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        self.templates
            .get_template(name)
            .and_then(|t| t.render(Serde(variables)))
            .map_err(explain)
    }
}

/// A message's reasoning comes under one of three names; templates read the first two.
fn with_reasoning_aliases(mut message: serde_json::Value) -> serde_json::Value {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let reasoning = names
        .iter()
        .find_map(|name| message.get(name).filter(|value| !value.is_null()))
        .cloned();
    if let (Some(reasoning), Some(message)) = (reasoning, message.as_object_mut()) {
        if !message.contains_key("thinking") {
            message.shift_insert(0, "thinking".into(), reasoning.clone());
        }
        message.insert("reasoning_content".into(), reasoning);
    }
    message
}

/// The environment that `transformers` gives its templates.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("only custom delimiters can be invalid"));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: &str| -> Result<String, Error> {
        jiff::fmt::strtime::format(format, &jiff::Zoned::now())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    environment
}

/// `json.dumps` as a filter, with its own defaults and without HTML escapes.
fn to_json(value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(place) {
            Some(value) => Some(value.clone()),
            None => keywords.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|v| !v.is_none()))
    };
    let mut style = python_json::Style::default();
    if let Some(ensure_ascii) = argument(0, "ensure_ascii")? {
        style.ensure_ascii = ensure_ascii.is_true();
    }
    if let Some(indent) = argument(1, "indent")? {
        let width = indent.as_usize().map(|n| " ".repeat(n.min(64)));
        style.indent = width.or_else(|| indent.as_str().map(String::from));
        style.item_separator = ",".into();
    }
    if let Some(separators) = argument(2, "separators")? {
        style.item_separator = separators.get_item_by_index(0)?.to_string();
        style.key_separator = separators.get_item_by_index(1)?.to_string();
    }
    if let Some(sort_keys) = argument(3, "sort_keys")? {
        style.sort_keys = sort_keys.is_true();
    }
    keywords.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(python_json::dumps(&json, &style))
}

/// Some templates mark what the assistant says with `{% generation %}`, which has no effect on the text: the marks
/// become a block that is always taken, whitespace control kept.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = tag.find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let word = tag[2..end - 2].trim_matches(['-', '+']).trim();
        match word {
            "generation" => result.push_str(&tag[..end].replace(word, "if true")),
            "endgeneration" => result.push_str(&tag[..end].replace(word, "endif")),
            _ => result.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    result.push_str(rest);
    result
}

/// The template's own message where it refused the conversation, else what went wrong and in which line.
fn explain(error: Error) -> ModelError {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    let line = error
        .line()
        .map_or_else(String::new, |line| format!(" (line {line} of the template)"));
    ModelError::ChatTemplate(format!("{detail}{line}"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        special_tokens: Map<String, Value>,
        conversations: Map<String, Value>,
        variants: Map<String, Value>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        template: String,
        conversation: String,
        variant: String,
        text: Option<String>,
    }

    #[test]
    fn every_template_renders_as_in_transformers() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates");
        let fixture: Fixture =
            serde_json::from_str(include_str!("../../tests/fixtures/chat_templates/renders.json")).unwrap();
        assert!(fixture.cases.len() > 300);
        let mut wrong = Vec::new();
        for case in &fixture.cases {
            let source = std::fs::read_to_string(format!("{directory}/{}.jinja", case.template)).unwrap();
            let template = ChatTemplate::new(&fixture.special_tokens[&case.template], Some(&source)).unwrap();
            let mut extra = fixture.variants[&case.variant].as_object().unwrap().clone();
            let tools = extra.remove("tools");
            let prompt = extra.remove("add_generation_prompt").is_none();
            extra.insert("date_string".into(), "26 Jul 2024".into());
            let messages = fixture.conversations[&case.conversation].as_array().unwrap();
            let tools = tools.as_ref().and_then(Value::as_array).map(Vec::as_slice);
            let rendered = template.render(messages, tools, prompt, &extra);
            if rendered.as_ref().ok() != case.text.as_ref() {
                let name = format!("{}, {}, {}", case.template, case.conversation, case.variant);
                wrong.push(format!("{name}:\n{:?}\n{:?}", rendered.ok(), case.text));
            }
        }
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n\n"));
    }

    fn render(config: Value, tools: Option<&[Value]>) -> Result<String, String> {
        let template = ChatTemplate::new(&config, None).map_err(|e| e.to_string())?;
        template
            .render(&[json!({"role": "user"})], tools, true, &Map::new())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_template_may_be_one_of_a_list() {
        let config = json!({"chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ tools | length }}"},
            {"name": "rag", "template": "{% not even jinja"},
        ]});
        assert_eq!(render(config.clone(), None).unwrap(), "plain");
        assert_eq!(render(config, Some(&[json!({})])).unwrap(), "1");
    }

    #[test]
    fn special_tokens_may_be_objects() {
        let config = json!({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}",
                            "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null});
        assert_eq!(render(config, None).unwrap(), "<s></s>False");
    }

    #[test]
    fn errors_say_what_the_template_says() {
        let refused = render(json!({"chat_template": "\n{{ raise_exception('only users') }}"}), None).unwrap_err();
        assert_eq!(refused, "chat template: only users (line 2 of the template)");
        let none = render(json!({}), None).unwrap_err();
        assert!(none.contains("hint: use an instruction-tuned model"), "{none}");
        let broken = render(json!({"chat_template": "{% if %}"}), None).unwrap_err();
        assert!(
            broken.starts_with("chat template: ") && broken.contains("line 1"),
            "{broken}"
        );
        let unnamed = render(json!({"chat_template": [{"template": "x"}]}), None).unwrap_err();
        assert!(unnamed.contains("needs names and texts"), "{unnamed}");
    }

    #[test]
    fn the_date_is_known() {
        let year = render(json!({"chat_template": "{{ strftime_now('%Y') }}"}), None).unwrap();
        assert!(year.parse::<u32>().unwrap() >= 2025, "{year}");
    }
}
