use proptest::prelude::*;
use serde_json::{Value, json};

use super::{MessageWriter, chat_request};
use crate::protocol::anthropic::{BlockDelta, ContentBlock, Message, MessagesRequest, StreamEvent};
use crate::protocol::openai;
use crate::server::http::error::Error;
use crate::server::model_api::Translator;
use crate::server::model_api::testing::{answered, any_json, translated_stream, translated_whole};

fn request(extra: Value) -> MessagesRequest {
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(body).unwrap()
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let chat = chat_request(&request(json!({
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0a1b2;"},
            {"type": "text", "text": "be good", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "be quick"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"x": [1]}},
                {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "one"}]},
                {"type": "tool_result", "tool_use_id": "call_2", "is_error": true},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_3", "content": "three"}]},
        ],
        "tools": [
            {"name": "f", "description": "does f", "input_schema": {"type": "object"}, "cache_control": {}},
            {"type": "custom", "name": "g", "input_schema": {"type": "object"}},
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "stop_sequences": ["END"], "temperature": 0.5, "top_k": 3, "stream": true,
        "metadata": {"user_id": "u"},
    })))
    .unwrap();
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "be good\nbe quick"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "let me see", "reasoning_content": "hm",
             "tool_calls": [call("call_1", "f", r#"{"x":[1]}"#), call("call_2", "g", "{}")]},
            {"role": "tool", "content": "one", "tool_call_id": "call_1"},
            {"role": "tool", "content": "", "tool_call_id": "call_2"},
            {"role": "user", "content": "go on"},
            {"role": "assistant", "content": "done"},
            {"role": "tool", "content": "three", "tool_call_id": "call_3"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}},
        ],
        "tool_choice": "required", "parallel_tool_calls": false,
        "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "max_tokens": 9, "stop": ["END"], "temperature": 0.5, "top_k": 3,
    });
    assert_eq!(json!(chat), expected);
}

#[test]
fn what_is_wrong_is_named() {
    let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    for (extra, named) in [
        (json!({"system": 3}), "system"),
        (
            json!({"messages": [{"role": "robot", "content": ""}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": 3}]}),
            "messages[0].content",
        ),
        (user(json!({"type": "image", "source": {}})), "messages[0].content[0]"),
        (user(json!({"text": "a"})), "messages[0].content[0]"),
        (user(json!("a")), "messages[0].content[0]"),
        (
            user(json!({"type": "tool_result"})),
            "messages[0].content[0].tool_use_id",
        ),
        (
            user(json!({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})),
            "messages[0].content[0].content[0]",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}),
            "messages[0].content[0].name",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "The answer is "}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}),
            "messages[0].content",
        ),
        (
            json!({"tools": [{"name": "f"}, {"type": "telepathy_20300101", "name": "t"}]}),
            "tools[1]",
        ),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tool_choice": {"type": "sometimes"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
    ] {
        match chat_request(&request(extra.clone())) {
            Err(Error::Field { field, message }) => {
                assert_eq!(field, named, "{extra}");
                assert!(message.contains(named), "{message}");
            }
            other => panic!("{extra}: {other:?}"),
        }
    }
}

/// The request has neither description nor schema of them.
#[test]
fn tools_that_the_client_runs_are_described() {
    for (kind, name, command) in [
        ("bash_20241022", "bash", "command"),
        ("bash_20250124", "bash", "restart"),
        ("text_editor_20241022", "str_replace_editor", "view_range"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text"),
        ("memory_20250818", "memory", "old_path"),
    ] {
        let chat = json!(chat_request(&request(json!({"tools": [{"type": kind, "name": name}]}))).unwrap());
        let function = &chat["tools"][0]["function"];
        assert_eq!(function["name"], name);
        assert!(function["description"].is_string() && function["parameters"]["properties"].get(command).is_some());
        let undoes = function.to_string().contains("undo_edit");
        assert_eq!(undoes, kind == "text_editor_20241022", "{kind}");
    }
    let with_examples = json!({"tools": [{"name": "f", "description": "does f", "input_examples": [{"x": 1}]}]});
    let chat = json!(chat_request(&request(with_examples)).unwrap());
    assert_eq!(
        chat["tools"][0]["function"]["description"],
        "does f\nExamples of its input:\n{\"x\":1}"
    );
}

#[test]
fn formats_and_strict_tools_reach_the_engine() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let with = |format: Value| request(json!({"output_config": {"format": format}}));
    let chat = json!(chat_request(&with(json!({"type": "json_schema", "schema": schema}))).unwrap());
    let expected = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    assert_eq!(chat["response_format"], expected);
    match chat_request(&with(json!({"type": "xml"}))).unwrap_err() {
        Error::Field { field, message } => assert!(field == "output_config.format.type" && message.contains("`xml`")),
        other => panic!("{other:?}"),
    }
    for (strict, expected) in [
        (json!(true), json!(true)),
        (json!(false), Value::Null),
        (Value::Null, Value::Null),
    ] {
        let tools = json!([{"name": "f", "input_schema": schema, "strict": strict}]);
        let chat = json!(chat_request(&request(json!({"tools": tools}))).unwrap());
        assert_eq!(chat["tools"][0]["function"]["strict"], expected);
    }
}

#[test]
fn thinking_effort_and_a_begun_answer_reach_the_engine() {
    let begun =
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]});
    for (extra, field, expected) in [
        (begun, "continue_final_message", json!(true)),
        (json!({}), "continue_final_message", Value::Null),
        (
            json!({"output_config": {"effort": "high"}}),
            "reasoning_effort",
            json!("high"),
        ),
        (
            json!({"thinking": {"type": "disabled"}}),
            "chat_template_kwargs",
            json!({"enable_thinking": false}),
        ),
        (
            json!({"thinking": {"type": "enabled"}}),
            "chat_template_kwargs",
            json!({"enable_thinking": true}),
        ),
        (
            json!({"thinking": {"type": "adaptive"}}),
            "chat_template_kwargs",
            Value::Null,
        ),
    ] {
        let chat = json!(chat_request(&request(extra.clone())).unwrap());
        assert_eq!(chat[field], expected, "{extra}");
    }
}

/// What the SDK makes of the events.
fn fold(events: &[Value]) -> Message {
    let (mut message, mut inputs, mut over) = (None, Vec::<String>::new(), false);
    for event in events {
        assert!(!over, "nothing comes after the stop");
        let message: &mut Option<Message> = &mut message;
        match serde_json::from_value(event.clone()).unwrap() {
            StreamEvent::MessageStart { message: begun } => assert!(message.replace(begun).is_none()),
            StreamEvent::ContentBlockStart { index, content_block } => {
                let content = &mut message.as_mut().unwrap().content;
                assert_eq!(index, content.len());
                content.push(content_block);
                inputs.push(String::new());
            }
            StreamEvent::ContentBlockDelta { index, delta } => {
                let content = &mut message.as_mut().unwrap().content;
                assert_eq!(index, content.len() - 1, "blocks do not overlap");
                match (&mut content[index], delta) {
                    (ContentBlock::Text { text }, BlockDelta::TextDelta { text: more }) => text.push_str(&more),
                    (ContentBlock::Thinking { thinking, .. }, BlockDelta::ThinkingDelta { thinking: more }) => {
                        thinking.push_str(&more);
                    }
                    (ContentBlock::Thinking { signature, .. }, BlockDelta::SignatureDelta { signature: more }) => {
                        signature.push_str(&more);
                    }
                    (ContentBlock::ToolUse { .. }, BlockDelta::InputJsonDelta { partial_json }) => {
                        inputs[index] += &partial_json;
                    }
                    (block, delta) => panic!("{delta:?} on {block:?}"),
                }
            }
            StreamEvent::ContentBlockStop { index } => {
                if let ContentBlock::ToolUse { input, .. } = &mut message.as_mut().unwrap().content[index] {
                    *input = serde_json::from_str(&inputs[index]).unwrap();
                }
            }
            StreamEvent::MessageDelta { delta, usage } => {
                let message = message.as_mut().unwrap();
                (message.stop_reason, message.stop_sequence) = (delta.stop_reason, delta.stop_sequence);
                message.usage = usage;
            }
            StreamEvent::MessageStop => over = true,
            StreamEvent::Ping => {}
        }
    }
    assert!(over);
    message.unwrap()
}

/// Anthropic's clients compact their history on these words.
#[test]
fn a_prompt_that_does_not_fit_is_told_in_anthropics_words() {
    for (given, max) in [(400, 399), (200_001, 199_999), (1, 0)] {
        let error = openai::ErrorObject {
            message: "This model's maximum context length is exceeded.".into(),
            code: Some("context_length_exceeded".into()),
            prompt_tokens: Some(openai::PromptTokens { given, max }),
            ..openai::ErrorObject::default()
        };
        let body = json!(super::error_body(400, error));
        let message = format!("prompt is too long: {given} tokens > {max} maximum");
        let expected = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
        assert_eq!(body, expected);
    }
}

proptest! {
    #[test]
    fn streamed_and_whole_messages_are_the_same(answered in answered(), shown: bool, cut in 1_usize..200) {
        let request = request(if shown { json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}) } else { json!({}) });
        let whole = translated_whole(MessageWriter::new(&request), &answered.whole);
        let folded = fold(&translated_stream(MessageWriter::new(&request), &answered.chunks, cut));
        prop_assert_eq!(json!(folded), whole.clone());

        let said = &answered.whole.choices[0].message;
        let blocks = whole["content"].as_array().unwrap();
        let text: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "text").map(|block| &block["text"]).collect();
        prop_assert!(text == [&said.content] || text.is_empty() && said.content.as_str().is_none_or(str::is_empty));
        let calls = blocks.iter().filter(|block| block["type"] == "tool_use").count();
        prop_assert_eq!(calls, said.tool_calls.as_ref().map_or(0, Vec::len));
        let thinking = blocks.iter().any(|block| block["type"] == "thinking");
        prop_assert_eq!(thinking, shown && said.reasoning_content.is_some());
        prop_assert_eq!(&whole["usage"], &json!({"input_tokens": 5, "cache_creation_input_tokens": 0,
                                                "cache_read_input_tokens": 4, "output_tokens": 5}));
    }

    #[test]
    fn any_body_is_understood_or_refused(messages in any_json(), system in any_json(), tools in any_json(), choice in any_json()) {
        let body = json!({"messages": messages, "system": system, "tools": tools, "tool_choice": choice});
        let one = json!({"messages": [{"role": "user", "content": messages}, {"role": "assistant", "content": system}]});
        for body in [body, one, messages] {
            if let Ok(request) = serde_json::from_value::<MessagesRequest>(body) {
                let _ = chat_request(&request);
            }
        }
    }

    /// The agent sends our answer back: it is the message that the engine knows.
    #[test]
    fn an_answer_that_comes_back_is_what_it_was(answered in answered()) {
        let shown = request(json!({"thinking": {"type": "enabled"}}));
        let whole = translated_whole(MessageWriter::new(&shown), &answered.whole);
        let back = json!({"messages": [{"role": "user", "content": "q"},
                                       {"role": "assistant", "content": whole["content"]},
                                       {"role": "user", "content": "go on"}]});
        let message = chat_request(&request(back)).unwrap().messages.swap_remove(1);
        prop_assert_eq!(message, answered.whole.choices[0].message.clone());
    }
}

#[test]
fn a_stream_that_fails_ends_with_an_error_event() {
    for (kind, code, told) in [
        ("server_error", json!("engine_unavailable"), "overloaded_error"),
        ("server_error", Value::Null, "api_error"),
        ("rate_limit_error", json!("rate_limit_exceeded"), "rate_limit_error"),
        ("invalid_request_error", json!("episode_not_found"), "not_found_error"),
    ] {
        let error = json!({"message": "no \"more\"", "type": kind, "param": null, "code": code});
        let mut translator = Translator::new(Box::new(MessageWriter::new(&request(json!({})))), true);
        let written = translator
            .push(format!("data: {}\n\n", json!({"error": error})).as_bytes())
            .unwrap();
        let expected = json!({"type": "error", "error": {"type": told, "message": "no \"more\""}});
        assert_eq!(
            String::from_utf8(written).unwrap(),
            format!("event: error\ndata: {expected}\n\n")
        );
    }
}

/// Seen with a long tool call, which is sent only when it is complete.
#[test]
fn a_heartbeat_of_the_engine_is_a_ping() {
    let mut translator = Translator::new(Box::new(MessageWriter::new(&request(json!({})))), true);
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    assert_eq!(translator.push(b": heart").unwrap(), b"");
    assert_eq!(translator.push(b"beat\n\n").unwrap(), ping.as_bytes());
    assert_eq!(translator.push(b": a\n\n: b\n\n").unwrap(), ping.repeat(2).as_bytes());
}

/// Seen with a big integer, which came out as a float in an answer's `input` and in the one that came back.
#[test]
fn inputs_keep_their_digits() {
    for input in [
        r#"{"n":12345678901234567890123,"m":-98765432109876543210}"#,
        r#"{"x":[1.10,1e+5,-0,1.0,2.50e-3,1e+400]}"#,
        r#"{"pi":3.14159265358979323846264338327950288,"b":{"z":1,"a":2}}"#,
    ] {
        let body = format!(
            r#"{{"max_tokens":9,"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"a","name":"f","input":{input}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":"r"}}]}}]}}"#
        );
        let chat = chat_request(&serde_json::from_str(&body).unwrap()).unwrap();
        assert_eq!(
            chat.messages[0].tool_calls.as_ref().unwrap()[0].function.arguments,
            input
        );

        let mut translator = Translator::new(Box::new(MessageWriter::new(&request(json!({})))), false);
        let answer = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "m", "usage": {
            "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, "choices": [{"index": 0, "message": {
            "role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {
            "name": "f", "arguments": input}}]}, "finish_reason": "tool_calls", "logprobs": null}]});
        translator.push(answer.to_string().as_bytes()).unwrap();
        let message = String::from_utf8(translator.finish().unwrap()).unwrap();
        assert!(message.contains(&format!(r#""input":{input}"#)), "{message}");
    }
}
