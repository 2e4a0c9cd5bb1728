//! Chat templates: Hugging Face's Jinja templates, rendered byte for byte as `transformers` renders them.

use std::collections::BTreeMap;

use serde_json::{Map, json};

use super::call_content::CallContent;
use super::error::ModelError;
use crate::jinja::{TemplateError, Templates};

/// Compiled chat template of a model.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplate {
    templates: Templates,
    has_default: bool,
    has_tool_use: bool,
    call_content: CallContent,
    special_tokens: Map<String, serde_json::Value>,
    source: String,
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
    /// Creates the template from `tokenizer_config.json` (template and special tokens), or from files, which replace
    /// its templates: `chat_template.jinja`, and by name those of `additional_chat_templates`. Without any template,
    /// rendering fails.
    pub fn new(
        tokenizer_config: &serde_json::Value,
        jinja: Option<&str>,
        additional: &BTreeMap<String, String>,
    ) -> Result<Self, ModelError> {
        let mut template = Self::default();
        for (name, source) in sources(tokenizer_config, jinja, additional)? {
            template.add(name, source)?;
        }
        for name in SPECIAL_TOKENS {
            let value = match &tokenizer_config[name] {
                serde_json::Value::Null => continue,
                token => token.get("content").unwrap_or(token).clone(),
            };
            template.special_tokens.insert(name.to_string(), value);
        }
        let render = |messages: &[serde_json::Value]| template.render(messages, None, true, &Map::new()).ok();
        template.call_content = CallContent::try_out(render);
        Ok(template)
    }

    /// Compiles a template; skips those for other uses, such as retrieval.
    fn add(&mut self, name: &str, source: &str) -> Result<(), ModelError> {
        let name = match name {
            DEFAULT => DEFAULT,
            TOOL_USE => TOOL_USE,
            _ => return Ok(()),
        };
        self.templates.add(name, source).map_err(refused)?;
        self.source = std::mem::take(&mut self.source) + source + "\n";
        self.has_default |= name == DEFAULT;
        self.has_tool_use |= name == TOOL_USE;
        Ok(())
    }

    /// Returns whether the model has a template.
    pub fn exists(&self) -> bool {
        self.has_default || self.has_tool_use
    }

    /// Returns the source of its templates, from which the formats of tool calls and thinking are detected.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. Messages and tools are JSON in OpenAI's format; missing keys are undefined and nulls are
    /// `None`, as in Python. `extra` are further variables, such as `enable_thinking`.
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
        let name = if self.has_tool_use && tools.is_some() {
            TOOL_USE
        } else {
            DEFAULT
        };
        if name == DEFAULT && !self.has_default {
            return Err(ModelError::ChatTemplate(
                "the model has a template for requests with tools only, none named `default`".into(),
            ));
        }
        let messages: Vec<serde_json::Value> = messages.iter().cloned().map(with_reasoning_aliases).collect();
        let mut variables = self.special_tokens.clone();
        variables.extend(extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        variables.insert("messages".into(), messages.into());
        variables.insert("tools".into(), tools.map_or(serde_json::Value::Null, Into::into));
        variables.insert("documents".into(), extra.get("documents").cloned().unwrap_or_default());
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        self.templates.render(name, &variables).map_err(refused)
    }
}

impl ChatTemplate {
    /// Sets the content of an assistant's message with tool calls but without text to a form that the template treats
    /// as empty: null, or an empty string or no content if the template would print `None` or omit the calls.
    pub fn adapt_content(&self, message: &mut serde_json::Value) {
        self.call_content.adapt(message);
    }
}

/// Names of a message's reasoning; templates read the first two.
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

/// Markers of a trial conversation.
const TRIAL_TOOL: &str = "trial_tool";
const TRIAL_RESULT: &str = "trial result";

/// What trial conversations showed: a warning for each kind of request that will be refused, or of which the model will
/// not see a part.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// About requests of any kind.
    pub warnings: Vec<String>,
    /// About requests with tools, which concern nobody who brings none.
    pub tool_warnings: Vec<String>,
}

impl ChatTemplate {
    /// Renders trial conversations, with and without a tool, its call and its result.
    ///
    /// # Errors
    /// Fails if a user's question alone cannot be rendered.
    pub fn trial(&self) -> Result<Trial, ModelError> {
        let user = json!({"role": "user", "content": "question"});
        let system = json!({"role": "system", "content": "instruction"});
        let call = json!({"id": "call00000", "type": "function",
                          "function": {"name": TRIAL_TOOL, "arguments": {"a": "b"}}});
        let mut called = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        self.adapt_content(&mut called);
        let answered =
            json!({"role": "tool", "tool_call_id": "call00000", "name": TRIAL_TOOL, "content": TRIAL_RESULT});
        let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "description": "b"}},
                                "required": ["a"]});
        let tool = json!({"type": "function", "function": {"name": TRIAL_TOOL, "description": "c",
                                                           "parameters": parameters}});
        let render = |messages: &[&serde_json::Value], tools: Option<&[serde_json::Value]>| {
            let messages: Vec<_> = messages.iter().map(|message| (*message).clone()).collect();
            self.render(&messages, tools, true, &Map::new())
        };
        render(&[&user], None)?;
        let tools = Some(std::slice::from_ref(&tool));
        let with_system = ("a system message", render(&[&system, &user], None), "");
        let with_tools = [
            ("tools", render(&[&user], tools), TRIAL_TOOL),
            (
                "a tool's result",
                render(&[&user, &called, &answered], tools),
                TRIAL_RESULT,
            ),
        ];
        let warning = |(what, rendered, shown): (&str, Result<String, ModelError>, &str)| match rendered {
            Err(error) => Some(format!("requests with {what} will be refused: {error}")),
            Ok(text) if !text.contains(shown) => Some(format!(
                "the chat template leaves {what} out; the model will not see it\nhint: use a model whose template has \
                 `tools`, or put a chat_template.jinja that has beside its tokenizer.json"
            )),
            Ok(_) => None,
        };
        Ok(Trial {
            warnings: warning(with_system).into_iter().collect(),
            tool_warnings: with_tools.into_iter().filter_map(warning).collect(),
        })
    }
}

/// Returns the templates by name; like `transformers`, those in files replace the configuration's.
fn sources<'a>(
    tokenizer_config: &'a serde_json::Value,
    jinja: Option<&'a str>,
    additional: &'a BTreeMap<String, String>,
) -> Result<Vec<(&'a str, &'a str)>, ModelError> {
    let mut sources: Vec<(&str, &str)> = jinja.map(|source| (DEFAULT, source)).into_iter().collect();
    sources.extend(additional.iter().map(|(name, source)| (name.as_str(), source.as_str())));
    if !sources.is_empty() {
        return Ok(sources);
    }
    match &tokenizer_config["chat_template"] {
        serde_json::Value::String(source) => Ok(vec![(DEFAULT, source)]),
        serde_json::Value::Array(named) => {
            let entry = |entry: &'a serde_json::Value| Some((entry["name"].as_str()?, entry["template"].as_str()?));
            let complete = named.iter().map(entry).collect::<Option<Vec<_>>>();
            complete.ok_or_else(|| ModelError::ChatTemplate("a list of templates needs names and texts".into()))
        }
        _ => Ok(Vec::new()),
    }
}

fn refused(error: TemplateError) -> ModelError {
    ModelError::ChatTemplate(error.to_string())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

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

    /// Those of `AJET_CHAT_TEMPLATES` too, a directory that `tests/reference/make_chat_templates.py` rendered.
    #[test]
    fn every_template_renders_as_in_transformers() {
        let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates");
        let others = std::env::var("AJET_CHAT_TEMPLATES").ok();
        let wrong: Vec<_> = [Some(ours), others.as_deref()]
            .into_iter()
            .flatten()
            .flat_map(|directory| different(std::path::Path::new(directory)))
            .collect();
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n\n"));
    }

    /// The cases of a directory that render otherwise than there.
    fn different(directory: &std::path::Path) -> Vec<String> {
        let fixture: Fixture =
            serde_json::from_str(&std::fs::read_to_string(directory.join("renders.json")).unwrap()).unwrap();
        assert!(fixture.cases.len() > 300);
        let mut wrong = Vec::new();
        for case in &fixture.cases {
            let source = std::fs::read_to_string(directory.join(format!("{}.jinja", case.template))).unwrap();
            let tokens = &fixture.special_tokens[&case.template];
            let template = ChatTemplate::new(tokens, Some(&source), &BTreeMap::new());
            let mut extra = fixture.variants[&case.variant].as_object().unwrap().clone();
            let tools = extra.remove("tools");
            let prompt = extra.remove("add_generation_prompt").is_none();
            extra.insert("date_string".into(), "26 Jul 2024".into());
            let messages = fixture.conversations[&case.conversation].as_array().unwrap();
            let tools = tools.as_ref().and_then(Value::as_array).map(Vec::as_slice);
            let rendered = template.and_then(|template| template.render(messages, tools, prompt, &extra));
            if rendered.as_ref().ok() != case.text.as_ref() {
                let name = format!("{}, {}, {}", case.template, case.conversation, case.variant);
                wrong.push(format!("{name}:\n{rendered:?}\n{:?}", case.text));
            }
        }
        wrong
    }

    fn render(config: Value, tools: Option<&[Value]>) -> Result<String, String> {
        let template = ChatTemplate::new(&config, None, &BTreeMap::new()).map_err(|e| e.to_string())?;
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

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(&json!({}), Some(source), &BTreeMap::new()).unwrap()
    }

    #[test]
    fn files_go_before_the_configuration_and_tools_have_their_own() {
        // seen with Command-R and Hermes 3, whose `tool_use` stands in a file of its own
        let cases = [
            (None, vec![], false, Some("configured")),
            (None, vec![], true, Some("configured")),
            (Some("file"), vec![], true, Some("file")),
            (Some("file"), vec!["tool_use"], false, Some("file")),
            (Some("file"), vec!["tool_use"], true, Some("tool_use ['t']")),
            (Some("file"), vec!["rag"], true, Some("file")),
            (None, vec!["default", "tool_use"], false, Some("default None")),
            (None, vec!["tool_use"], true, Some("tool_use ['t']")),
            (None, vec!["tool_use"], false, None),
        ];
        for (jinja, names, with_tools, expected) in cases {
            let additional = names
                .iter()
                .map(|n| ((*n).to_owned(), format!("{n} {{{{ tools }}}}")))
                .collect();
            let template = ChatTemplate::new(&json!({"chat_template": "configured"}), jinja, &additional).unwrap();
            let tools = [json!("t")];
            let rendered = template.render(&[], with_tools.then_some(&tools[..]), true, &Map::new());
            assert_eq!(rendered.ok().as_deref(), expected, "{jinja:?} {names:?} {with_tools}");
        }
    }

    #[test]
    fn a_template_that_cannot_work_says_so_in_its_trial() {
        let refuses = |when: &str| format!("{{% if {when} %}}{{{{ raise_exception('never') }}}}{{% endif %}}");
        let all = "{{ messages }}{{ tools }}";
        let cases = [
            (all.to_owned(), Some(vec![])),
            (refuses("true"), None),
            ("{{ messages[0].zz.y }}".into(), None),
            (
                "{% for m in messages %}{{ m.content.nothing() }}{% endfor %}".into(),
                None,
            ),
            (
                refuses("messages[0].role == 'system'") + all,
                Some(vec!["requests with a system message"]),
            ),
            (
                refuses("tools") + all,
                Some(vec!["requests with tools", "requests with a tool's result"]),
            ),
            (
                refuses("messages[-1].role == 'tool'") + all,
                Some(vec!["requests with a tool's result"]),
            ),
            (
                "{{ messages }}".into(),
                Some(vec!["the chat template leaves tools out"]),
            ),
            (
                "{{ messages[0].content }}{{ tools }}".into(),
                Some(vec!["the chat template leaves a tool's result out"]),
            ),
        ];
        for (source, expected) in cases {
            let all = |trial: Trial| [trial.warnings, trial.tool_warnings].concat();
            let trial = template(&source).trial().map(all);
            match (&trial, expected) {
                (Err(_), None) => {}
                (Ok(warnings), Some(expected)) => {
                    assert_eq!(warnings.len(), expected.len(), "{source}: {warnings:?}");
                    for (warning, expected) in warnings.iter().zip(expected) {
                        assert!(warning.starts_with(expected), "{source}: {warning}");
                    }
                }
                _ => panic!("{source}: {trial:?}"),
            }
        }
    }

    /// Seen with a big integer in a tool's definition, which came out as a float. The others are as in Python.
    #[test]
    fn integers_keep_their_digits() {
        let source = json!({"chat_template": "{{ tools[0] | tojson }}|{{ tools[0].n }}"});
        for (number, rendered) in [
            ("12345678901234567890123", "12345678901234567890123"),
            ("-98765432109876543210", "-98765432109876543210"),
            (&"9".repeat(60), &"9".repeat(60)),
            ("18446744073709551616", "18446744073709551616"),
            ("-7", "-7"),
            ("-0", "0"),
            ("1.10", "1.1"),
            ("1E5", "100000.0"),
        ] {
            let tools: [Value; 1] = [serde_json::from_str(&format!("{{\"n\": {number}}}")).unwrap()];
            let expected = format!("{{\"n\": {rendered}}}|{rendered}");
            assert_eq!(render(source.clone(), Some(&tools)).unwrap(), expected);
        }
        let tools: [Value; 1] = [serde_json::from_str(r#"{"n": 1e400}"#).unwrap()];
        assert_eq!(render(source, Some(&tools)).unwrap(), r#"{"n": Infinity}|inf"#);
    }
}
