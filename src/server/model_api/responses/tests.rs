use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::{Value, json};

use super::{KeptResponses, ResponseWriter, chat_input, resolve_references};
use crate::protocol::openai::{ChatCompletion, ChatMessage, Choice, ErrorObject, FinishReason, FunctionCall, ToolCall};
use crate::protocol::responses::ResponsesRequest;
use crate::server::http::error::Error;
use crate::server::model_api::Translator;
use crate::server::model_api::testing::{
    Answered, answered, any_json, stream_bytes, translated_stream, translated_whole,
};

fn request(extra: Value) -> ResponsesRequest {
    let mut body = json!({"model": "m", "input": "hi"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(body).unwrap()
}

fn writer(extra: Value) -> ResponseWriter {
    ResponseWriter::new(&request(extra), vec![ChatMessage::new("user", "hi")])
}

#[test]
fn items_become_a_chat() {
    let request = request(json!({
        "instructions": "be good",
        "input": [
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "let me see", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c3", "namespace": "ns", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": ""},
        ],
        "tools": [
            {"type": "function", "name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": false},
            {"type": "custom", "name": "patch", "format": {"type": "grammar"}},
            {"type": "web_search"},
            {"type": "namespace", "name": "ns", "description": "", "tools": [{"type": "function", "name": "f"}]},
        ],
        "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false,
        "max_output_tokens": 7, "temperature": 0.5, "stream": true, "include": ["reasoning.encrypted_content"],
    }));
    let earlier = vec![ChatMessage::new("user", "before"), ChatMessage::new("assistant", "yes")];
    let chat = chat_input(&request, earlier).unwrap();
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let new = json!([
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm",
         "tool_calls": [call("c1", "f", "{\"x\":1}"), call("c2", "patch", r#"{"input":"*** Begin"}"#)]},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
        {"role": "assistant", "content": null, "reasoning_content": "so", "tool_calls": [call("c3", "ns__f", "{}")]},
        {"role": "tool", "content": "", "tool_call_id": "c3"},
    ]);
    assert_eq!(json!(chat.new_messages), new);
    let mut messages = vec![
        json!({"role": "system", "content": "be good"}),
        json!({"role": "user", "content": "before"}),
        json!({"role": "assistant", "content": "yes"}),
    ];
    messages.extend(new.as_array().unwrap().clone());
    let text = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]});
    let expected = json!({
        "model": "m", "messages": messages,
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "patch", "parameters": text}},
            {"type": "function", "function": {"name": "ns__f"}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
        "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": false},
        "max_tokens": 7, "temperature": 0.5,
    });
    assert_eq!(json!(chat.request), expected);
}

#[test]
fn what_is_wrong_is_named() {
    let item = |item: Value| json!({"input": [item]});
    for (extra, named) in [
        (json!({"input": 3}), "input"),
        (item(json!({"type": "message", "content": "a"})), "input[0].role"),
        (
            item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})),
            "input[0].content[0]",
        ),
        (item(json!({"type": "item_reference", "id": "x"})), "input[0]"),
        (item(json!({"type": "function_call", "name": "f"})), "input[0].call_id"),
        (item(json!({"type": "function_call", "call_id": "f"})), "input[0].name"),
        (
            item(json!({"type": "function_call_output", "output": ""})),
            "input[0].call_id",
        ),
        (item(json!({"role": "robot", "content": "a"})), "input[0].role"),
        (json!({"tools": [{"type": "telepathy"}]}), "tools[0]"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice"),
    ] {
        match chat_input(&request(extra.clone()), Vec::new()).map(|_| ()) {
            Err(Error::Field { field, message }) => {
                assert_eq!(field, named, "{extra}");
                assert!(message.contains(named), "{message}");
            }
            other => panic!("{extra}: {other:?}"),
        }
    }
}

/// What the SDK makes of the events.
fn fold(events: &[Value]) -> Value {
    let mut items: Vec<Value> = Vec::new();
    let mut last = None;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        assert!(last.is_none(), "nothing comes after the end");
        let at = event["output_index"].as_u64().map(|at| at as usize);
        if let (Some(at), Some(id)) = (at, event["item_id"].as_str()) {
            assert_eq!(items[at]["id"], id);
            assert_eq!(at, items.len() - 1, "items do not overlap");
        }
        let kind = event["type"].as_str().unwrap();
        let add =
            |text: &mut Value| *text = (text.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap()).into();
        match kind {
            "response.created" | "response.in_progress" => assert_eq!(event["response"]["status"], "in_progress"),
            "response.output_item.added" => {
                assert_eq!(at, Some(items.len()));
                items.push(event["item"].clone());
            }
            "response.content_part.added" => {
                items[at.unwrap()]["content"]
                    .as_array_mut()
                    .unwrap()
                    .push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                add(&mut items[at.unwrap()]["content"][0]["text"]);
            }
            "response.function_call_arguments.delta" => add(&mut items[at.unwrap()]["arguments"]),
            "response.custom_tool_call_input.delta" => add(&mut items[at.unwrap()]["input"]),
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], items[at.unwrap()]["content"][0]["text"]);
            }
            "response.content_part.done" => assert_eq!(event["part"], items[at.unwrap()]["content"][0]),
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], items[at.unwrap()]["arguments"]);
            }
            "response.custom_tool_call_input.done" => assert_eq!(event["input"], items[at.unwrap()]["input"]),
            "response.output_item.done" => {
                let item = &mut items[at.unwrap()];
                item["status"] = event["item"]["status"].clone();
                assert_eq!(event["item"], *item);
            }
            "response.completed" | "response.incomplete" => last = Some(event["response"].clone()),
            other => panic!("{other}"),
        }
    }
    let last = last.unwrap();
    assert_eq!(last["output"], json!(items), "the end has what the events told");
    last
}

/// Tools that make the calls those of namespaces, where their names say so, and else of text.
fn with_other_tools(answered: &Answered) -> Value {
    let calls = answered.whole.choices[0].message.tool_calls.iter().flatten();
    let tools = calls.map(|call| match call.function.name.strip_prefix("ns__") {
        Some(inner) => json!({"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": inner}]}),
        None => json!({"type": "custom", "name": call.function.name}),
    });
    json!({"tools": tools.collect::<Vec<_>>()})
}

proptest! {
    #[test]
    fn streamed_and_whole_responses_are_the_same(answered in answered(), other: bool, cut in 1_usize..200) {
        let extra = if other { with_other_tools(&answered) } else { json!({}) };
        let whole = translated_whole(writer(extra.clone()), &answered.whole);
        prop_assert_eq!(&fold(&translated_stream(writer(extra), &answered.chunks, cut)), &whole);

        let said = &answered.whole.choices[0].message;
        let of_type = |kind: &str| whole["output"].as_array().unwrap().iter().filter(|item| item["type"] == kind).count();
        prop_assert_eq!(of_type("message"), usize::from(said.content.as_str().is_some_and(|text| !text.is_empty())));
        prop_assert_eq!(of_type("reasoning"), usize::from(said.reasoning_content.is_some()));
        let calls = of_type("function_call") + of_type("custom_tool_call");
        prop_assert_eq!(calls, said.tool_calls.as_ref().map_or(0, Vec::len));
        let cut = answered.whole.choices[0].finish_reason == Some(FinishReason::Length);
        prop_assert_eq!(&whole["status"], if cut { "incomplete" } else { "completed" });
    }

    #[test]
    fn any_body_is_understood_or_refused(input in any_json(), tools in any_json(), choice in any_json()) {
        for input in [input.clone(), json!([input, tools])] {
            let body = json!({"input": input, "tools": tools, "tool_choice": choice});
            for body in [body, json!({"input": input}), input] {
                if let Ok(request) = serde_json::from_value::<ResponsesRequest>(body) {
                    let _ = chat_input(&request, Vec::new());
                }
            }
        }
    }

    /// The agent sends our items back, or their id: it is the message that the engine knows.
    #[test]
    fn an_answer_that_comes_back_is_what_it_was(answered in answered(), other: bool) {
        let said = answered.whole.choices[0].message.clone();
        let extra = if other { with_other_tools(&answered) } else { json!({}) };
        let mut translator = Translator::new(Box::new(writer(extra.clone())), true);
        prop_assert!(translator.kept().is_none());
        translator.push(&stream_bytes(&answered.chunks)).unwrap();
        let kept = translator.kept().unwrap();
        prop_assert_eq!(&kept.messages, &[ChatMessage::new("user", "hi"), said.clone()]);

        let whole = translated_whole(writer(extra), &answered.whole);
        let items = chat_input(&request(json!({"input": whole["output"]})), Vec::new()).unwrap().new_messages;
        prop_assert_eq!(items, if whole["output"] == json!([]) { vec![] } else { vec![said] });
    }
}

#[test]
fn a_kept_answer_leads_back_to_the_first() {
    let mut kept = KeptResponses::default();
    let turn = |id: &str, previous: Option<&str>| super::Kept {
        id: id.into(),
        previous: previous.map(str::to_owned),
        messages: vec![ChatMessage::new("user", id), ChatMessage::new("assistant", id)],
        response: json!({}),
        output: Vec::new(),
    };
    kept.keep(turn("a", None));
    kept.keep(turn("b", Some("a")));
    kept.keep(turn("c", Some("a")));
    let said = |messages: Option<Vec<ChatMessage>>| -> Vec<String> {
        messages
            .unwrap()
            .iter()
            .map(|m| m.content.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(said(kept.conversation("c")), ["a", "a", "c", "c"]);
    assert_eq!(said(kept.conversation("b")), ["a", "a", "b", "b"]);
    assert_eq!(kept.conversation("d"), None);
}

/// Seen with the Vercel AI SDK, which refers to every earlier item of its loop.
#[test]
fn references_stand_for_the_items_of_kept_answers() {
    let mut kept = KeptResponses::default();
    let items = json!([
        {"type": "reasoning", "id": "rs_0f_0", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_0f_1", "call_id": "c", "name": "f", "arguments": "{}"},
    ]);
    kept.keep(super::Kept {
        id: "resp_0f".into(),
        previous: None,
        messages: Vec::new(),
        response: json!({"id": "resp_0f", "output": null}),
        output: items.as_array().unwrap().clone(),
    });
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let mut input = json!([{"role": "user", "content": "q"}, {"type": "item_reference", "id": "rs_0f_0"}, {"id": "fc_0f_1"}, output]);
    resolve_references(&mut input, &kept).unwrap();
    assert_eq!(
        input,
        json!([{"role": "user", "content": "q"}, items[0], items[1], output])
    );
    assert_eq!(kept.response("resp_0f").unwrap()["output"], items);

    for id in ["fc_0f_0", "fc_0f_7", "fc_00_0", "msg_0f_1", "", "x", "rs_0f_-1"] {
        let mut input = json!(["text", {"type": "item_reference", "id": id}]);
        match resolve_references(&mut input, &kept) {
            Err(Error::Field { field, .. }) => assert_eq!(field, "input[1]", "{id}"),
            other => panic!("{id}: {other:?}"),
        }
    }
}

#[test]
fn what_is_kept_is_bounded_and_items_outlive_conversations() {
    let mut kept = KeptResponses::default();
    for number in 0..40 {
        kept.keep(super::Kept {
            id: format!("resp_{number}"),
            previous: None,
            messages: vec![ChatMessage::new("user", "x".repeat(1 << 20))],
            response: json!({}),
            output: vec![json!({"id": format!("msg_{number}_0")})],
        });
    }
    assert_eq!(kept.conversation("resp_0"), None);
    assert!(kept.conversation("resp_39").is_some());
    assert!(kept.item("msg_0_0").is_some(), "items are small");
    kept.keep(super::Kept {
        id: "resp_big".into(),
        previous: None,
        messages: Vec::new(),
        response: json!({}),
        output: vec![json!({"id": "msg_big_0", "text": "x".repeat(20 << 20)})],
    });
    assert!(kept.item("msg_0_0").is_none() && kept.item("msg_big_0").is_none());
}

/// Each is a function to the model and an item of its own kind to the client, whichever way the client sends it back.
#[test]
fn tools_that_the_client_runs_are_called_and_come_back() {
    let patch = json!({"type": "update_file", "path": "a", "diff": "-x\n+y"});
    let cases = [
        (
            "local_shell",
            json!({"command": ["ls", "-l"]}),
            "action",
            json!({"type": "exec", "command": ["ls", "-l"], "env": {}}),
        ),
        (
            "shell",
            json!({"commands": ["ls"], "timeout_ms": 5}),
            "action",
            json!({"commands": ["ls"], "timeout_ms": 5}),
        ),
        ("apply_patch", json!({"operation": patch}), "operation", patch.clone()),
    ];
    for (kind, arguments, field, action) in cases {
        let asked = request(json!({"tools": [{"type": kind}], "tool_choice": {"type": kind}}));
        let chat = json!(chat_input(&asked, Vec::new()).unwrap().request);
        let function = &chat["tools"][0]["function"];
        assert_eq!(function["name"], kind);
        let required = function["parameters"]["required"][0].as_str().unwrap();
        assert!(arguments.get(required).is_some() && !function["description"].is_null());
        assert_eq!(chat["tool_choice"]["function"]["name"], kind);

        let call = ToolCall {
            id: "c".into(),
            kind: "function".into(),
            function: FunctionCall {
                name: kind.into(),
                arguments: arguments.to_string(),
            },
        };
        let completion = answer_with(call);
        let whole = translated_whole(writer(json!({"tools": [{"type": kind}]})), &completion);
        let item = &whole["output"][0];
        assert_eq!(
            (&item["type"], &item["call_id"]),
            (&json!(format!("{kind}_call")), &json!("c"))
        );
        assert_eq!(
            (&item[field], &item["status"]),
            (&action, &json!("completed")),
            "{item}"
        );

        let output = json!({"type": format!("{kind}_call_output"), "call_id": "c", "output": "done"});
        let back = chat_input(&request(json!({"input": [item, output]})), Vec::new())
            .unwrap()
            .new_messages;
        let back_call = &back[0].tool_calls.as_ref().unwrap()[0].function;
        assert_eq!(back_call.name, kind);
        assert_eq!(serde_json::from_str::<Value>(&back_call.arguments).unwrap(), arguments);
        assert_eq!((back[1].role.as_str(), &back[1].content), ("tool", &json!("done")));
    }
}

/// What the SDKs cannot read as an action is a function call, which the client can refuse.
#[test]
fn calls_that_do_not_fit_the_tool_are_function_calls() {
    for (kind, arguments) in [
        ("local_shell", r#"{"command": "ls"}"#),
        ("shell", r#"{"commands": [1]}"#),
        ("shell", "{}"),
        ("apply_patch", r#"{"operation": {"type": "update_file", "path": "a"}}"#),
        (
            "apply_patch",
            r#"{"operation": {"type": "rename_file", "path": "a", "diff": ""}}"#,
        ),
    ] {
        let call = ToolCall {
            id: "c".into(),
            kind: "function".into(),
            function: FunctionCall {
                name: kind.into(),
                arguments: arguments.into(),
            },
        };
        let whole = translated_whole(writer(json!({"tools": [{"type": kind}]})), &answer_with(call));
        let item = &whole["output"][0];
        assert_eq!(
            (&item["type"], &item["arguments"]),
            (&json!("function_call"), &json!(arguments))
        );
    }
}

#[test]
fn outputs_of_client_tools_are_text() {
    let shell = |output: Value| json!({"type": "shell_call_output", "call_id": "c", "output": output});
    let run = |out: &str, err: &str, outcome: Value| json!({"stdout": out, "stderr": err, "outcome": outcome});
    for (item, expected) in [
        (
            shell(json!([
                run("a\n", "", json!({"type": "exit", "exit_code": 0})),
                run("", "no", json!({"type": "exit", "exit_code": 2}))
            ])),
            "a\nno\nexit code 2",
        ),
        (shell(json!([run("a", "", json!({"type": "timeout"}))])), "a\ntimed out"),
        (
            json!({"type": "local_shell_call_output", "id": "c", "output": "x"}),
            "x",
        ),
        (
            json!({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}),
            "failed",
        ),
        (
            json!({"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "ok"}),
            "ok",
        ),
    ] {
        let chat = chat_input(&request(json!({"input": [item]})), Vec::new()).unwrap();
        assert_eq!(
            json!(chat.new_messages[0]),
            json!({"role": "tool", "content": expected, "tool_call_id": "c"})
        );
    }
}

#[test]
fn a_custom_tools_grammar_is_told() {
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /x/"});
    let asked = request(json!({"tools": [{"type": "custom", "name": "t", "format": format}]}));
    let chat = json!(chat_input(&asked, Vec::new()).unwrap().request);
    let input = &chat["tools"][0]["function"]["parameters"]["properties"]["input"];
    assert_eq!(input["description"], "A text by this lark grammar:\nstart: /x/");
}

fn answer_with(call: ToolCall) -> ChatCompletion {
    let message = ChatMessage {
        tool_calls: Some(vec![call]),
        ..ChatMessage::new("assistant", Value::Null)
    };
    ChatCompletion {
        id: "chatcmpl-00".into(),
        choices: vec![Choice {
            message,
            finish_reason: Some(FinishReason::ToolCalls),
            ..Choice::default()
        }],
        ..ChatCompletion::default()
    }
}

#[test]
fn formats_and_strict_tools_reach_the_engine_and_the_format_comes_back() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
    let tools = json!([
        {"type": "function", "name": "f", "parameters": schema, "strict": true},
        {"type": "function", "name": "g", "parameters": schema, "strict": false},
    ]);
    let body = json!({"text": {"format": format}, "tools": tools});
    let chat = json!(chat_input(&request(body.clone()), vec![]).unwrap().request);
    let expected = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    assert_eq!(chat["response_format"], expected);
    assert_eq!(chat["tools"][0]["function"]["strict"], true);
    assert!(chat["tools"][1]["function"].get("strict").is_none());
    let whole = translated_whole(writer(body), &answer_with(ToolCall::default()));
    assert_eq!(whole["text"]["format"], format);
    let object = json!(
        chat_input(&request(json!({"text": {"format": {"type": "json_object"}}})), vec![])
            .unwrap()
            .request
    );
    assert_eq!(object["response_format"], json!({"type": "json_object"}));
}

#[test]
fn what_is_not_to_be_stored_is_not_kept() {
    let strategy = answered();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let answered = strategy.new_tree(&mut runner).unwrap().current();
    let mut translator = Translator::new(Box::new(writer(json!({"store": false}))), true);
    translator.push(&stream_bytes(&answered.chunks)).unwrap();
    assert!(translator.kept().is_none());
}

#[test]
fn a_stream_that_fails_ends_with_a_failed_response() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let answered = answered().new_tree(&mut runner).unwrap().current();
    let stream = stream_bytes(&answered.chunks[..1]);
    let begun = stream.strip_suffix(b"data: [DONE]\n\n").unwrap();
    let error = |kind: &str| ErrorObject {
        message: "no".into(),
        kind: kind.into(),
        ..ErrorObject::default()
    };
    for (kind, code) in [
        ("server_error", "server_error"),
        ("rate_limit_error", "rate_limit_exceeded"),
        ("invalid_request_error", "invalid_prompt"),
    ] {
        let mut translator = Translator::new(Box::new(writer(json!({}))), true);
        translator.push(begun).unwrap();
        let written = String::from_utf8(translator.fail(error(kind))).unwrap();
        let (name, data) = written.trim_end().split_once("\ndata: ").unwrap();
        assert_eq!(name, "event: response.failed");
        let event: Value = serde_json::from_str(data).unwrap();
        let response = &event["response"];
        assert_eq!(response["status"], "failed");
        assert_eq!(response["error"], json!({"code": code, "message": "no"}));
        assert!(translator.kept().is_none());

        let mut translator = Translator::new(Box::new(writer(json!({}))), true);
        let body = json!({"error": error(kind)});
        let written = translator.push(format!("data: {body}\n\n").as_bytes()).unwrap();
        let expected = json!({"type": "error", "code": code, "message": "no", "param": null, "sequence_number": 0});
        let data = written.strip_prefix(b"event: error\ndata: ").unwrap();
        assert_eq!(serde_json::from_slice::<Value>(data).unwrap(), expected);
    }
}

#[test]
fn a_heartbeat_of_the_engine_is_passed_on() {
    let mut translator = Translator::new(Box::new(writer(json!({}))), true);
    assert_eq!(translator.push(b": heartbeat\n\n: ").unwrap(), b": heartbeat\n\n");
    assert_eq!(translator.push(b"heartbeat\n\n").unwrap(), b": heartbeat\n\n");
}
