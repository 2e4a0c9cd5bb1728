//! Content of assistant messages that only call tools, in the form that a chat template accepts.
//!
//! OpenAI's clients send null, an empty string or no content. Templates expect one of these: DeepSeek's recognise calls
//! by `content is none`, others append the content to a string, and print `None` or fail.

use serde_json::{Map, Value, json};

/// Form of an empty content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Null,
    Missing,
    Empty,
}

/// Forms with which a template renders calls, the preferred one first.
#[derive(Clone, Debug, Default)]
pub(super) struct CallContent(Vec<Form>);

/// Markers in the call and the result of the trial conversation.
const ARGUMENT: &str = "trial argument";
const RESULT: &str = "trial result";

impl CallContent {
    /// Tests each form with a template.
    pub(super) fn try_out(render: impl Fn(&[Value]) -> Option<String>) -> Self {
        let user = json!({"role": "user", "content": "question"});
        let call = json!({"id": "call00000", "type": "function",
                          "function": {"name": "trial_tool", "arguments": {"a": ARGUMENT}}});
        let called = json!({"role": "assistant", "tool_calls": [call]});
        let answered = json!({"role": "tool", "tool_call_id": "call00000", "name": "trial_tool", "content": RESULT});
        let nones = |text: &str| text.matches("None").count();
        let usual = render(std::slice::from_ref(&user)).map_or(0, |text| nones(&text));
        let shows_call = |form: &Form| {
            let mut called = called.clone();
            called
                .as_object_mut()
                .into_iter()
                .for_each(|message| form.put_into(message));
            let mut conversation = vec![user.clone(), called, answered.clone()];
            let at_end = render(&conversation);
            // Templates treat what comes before the last question in ways of their own.
            conversation.extend([json!({"role": "assistant", "content": "answer"}), user.clone()]);
            [at_end, render(&conversation)].into_iter().all(|text| {
                text.is_some_and(|text| text.contains(ARGUMENT) && text.contains(RESULT) && nones(&text) <= usual)
            })
        };
        Self(
            [Form::Null, Form::Missing, Form::Empty]
                .into_iter()
                .filter(shows_call)
                .collect(),
        )
    }

    /// Sets the empty content of a message with tool calls to a form that the template accepts: its own form if that is
    /// one, as `transformers` would pass it, or an empty string if none is.
    pub(super) fn adapt(&self, message: &mut Value) {
        let Some(message) = message.as_object_mut() else {
            return;
        };
        let calls = message.get("tool_calls").and_then(Value::as_array);
        if calls.is_none_or(Vec::is_empty) {
            return;
        }
        let own = match message.get("content") {
            None => Form::Missing,
            Some(Value::Null) => Form::Null,
            Some(Value::String(text)) if text.is_empty() => Form::Empty,
            Some(_) => return,
        };
        if !self.0.contains(&own) {
            self.0.first().unwrap_or(&Form::Empty).put_into(message);
        }
    }
}

impl Form {
    fn put_into(self, message: &mut Map<String, Value>) {
        match self {
            Self::Missing => _ = message.shift_remove("content"),
            Self::Null => _ = message.insert("content".into(), Value::Null),
            Self::Empty => _ = message.insert("content".into(), "".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::ChatTemplate;

    const LOOP: &str = "{% for m in messages %}<{{ m.role }}>";
    const CALLS: &str = "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}";
    const END: &str = "{% endfor %}";

    #[test]
    fn a_template_gets_the_form_that_it_takes() {
        use Form::{Empty, Missing, Null};
        let refuses = |when: &str| format!("{{% if {when} %}}{{{{ raise_exception('never') }}}}{{% endif %}}");
        let calls_and = |content: &str| format!("{LOOP}{CALLS}{content}{END}");
        let cases = [
            // Qwen, Llama 3.1, Hermes
            (
                calls_and("{% if m.content %}{{ m.content }}{% endif %}"),
                vec![Null, Missing, Empty],
            ),
            // DeepSeek V3
            (
                format!(
                    "{LOOP}{{% if m.content is none %}}{CALLS}{{% else %}}{{{{ '' + m.content }}}}{{% endif %}}{END}"
                ),
                vec![Null],
            ),
            // SmolLM2 with tools: null would be the word `None`
            (calls_and("{{ m.content }}"), vec![Missing, Empty]),
            (calls_and("{{ m.content | trim }}"), vec![Missing, Empty]),
            (calls_and("{{ '' + m.content }}"), vec![Empty]),
            (
                calls_and("{% if 'content' not in m %}x{% else %}{{ m.content + '' }}{% endif %}"),
                vec![Missing, Empty],
            ),
            (
                calls_and("{% if 'content' in m and m.content is not none %}{{ m.content }}{% endif %}"),
                vec![Null, Missing, Empty],
            ),
            // refused in the middle of a conversation only
            (
                calls_and(
                    &(refuses("not loop.last and m.content is none and messages[-1].role == 'user'")
                        + "{% if m.content %}{{ m.content }}{% endif %}"),
                ),
                vec![Missing, Empty],
            ),
            // no calls, no results, nothing
            (format!("{LOOP}{{{{ m.content }}}}{END}"), vec![]),
            (refuses("messages | length > 1"), vec![]),
            (refuses("true"), vec![]),
        ];
        for (source, expected) in cases {
            let template = ChatTemplate::new(&json!({}), Some(&source), &BTreeMap::new()).unwrap();
            let render = |messages: &[Value]| template.render(messages, None, true, &Map::new()).ok();
            let content = CallContent::try_out(render);
            assert_eq!(content.0, expected, "{source}");
            for own in [Null, Missing, Empty] {
                let mut message = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]});
                own.put_into(message.as_object_mut().unwrap());
                let mut adapted = message.clone();
                content.adapt(&mut adapted);
                let given = if expected.contains(&own) {
                    own
                } else {
                    *expected.first().unwrap_or(&Empty)
                };
                given.put_into(message.as_object_mut().unwrap());
                assert_eq!(adapted, message, "{source} {own:?}");
            }
        }
    }

    #[test]
    fn what_says_something_or_calls_nothing_stays() {
        for message in [
            json!({"role": "assistant", "content": "a", "tool_calls": [{"id": "a"}]}),
            json!({"role": "assistant", "content": null}),
            json!({"role": "assistant", "content": "", "tool_calls": []}),
            json!({"role": "user", "content": null, "tool_calls": null}),
            json!("text"),
        ] {
            let mut adapted = message.clone();
            CallContent(vec![Form::Missing]).adapt(&mut adapted);
            assert_eq!(adapted, message);
        }
    }
}
