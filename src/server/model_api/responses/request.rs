//! Converting a responses request to a chat request.

use serde_json::{Value, json};

use super::client_tools::ClientTool;
use super::kept::KeptResponses;
use super::tools::{flat_name, functions};
use crate::protocol::openai::{ChatMessage, ChatRequest, FunctionCall, ResponseFormat, StreamOptions, ToolCall};
use crate::protocol::responses::{ResponsesRequest, TextFormat};
use crate::server::http::error::Error;
use crate::server::model_api::{text_of, wrong};

/// Types of text parts.
const TEXTS: [&str; 6] = [
    "input_text",
    "output_text",
    "text",
    "refusal",
    "reasoning_text",
    "summary_text",
];

/// A converted request.
pub struct ChatInput {
    /// The chat request.
    pub request: ChatRequest,
    /// The new messages, without the instructions.
    pub new_messages: Vec<ChatMessage>,
}

/// Converts a responses request to a chat request that continues the `earlier` messages.
///
/// # Errors
/// Names the invalid field.
pub fn chat_input(request: &ResponsesRequest, earlier: Vec<ChatMessage>) -> Result<ChatInput, Error> {
    let new_messages = match &request.input {
        Value::String(text) => vec![ChatMessage::new("user", text.as_str())],
        Value::Array(items) => messages_of(items)?,
        Value::Null => Vec::new(),
        other => {
            return Err(wrong(
                "input",
                format!("must be a string or a list of items, got {other}"),
            ));
        }
    };
    let system = request.instructions.as_deref().filter(|text| !text.is_empty());
    let system = system.map(|text| ChatMessage::new("system", text));
    let stream = request.stream.unwrap_or(false);
    let (tools, _) = functions(request.tools.as_deref().unwrap_or_default())?;
    let request = ChatRequest {
        model: request.model.clone(),
        messages: system
            .into_iter()
            .chain(earlier)
            .chain(new_messages.iter().cloned())
            .collect(),
        tools: (!tools.is_empty()).then_some(tools),
        tool_choice: request.tool_choice.as_ref().map(tool_choice).transpose()?,
        parallel_tool_calls: request.parallel_tool_calls,
        stream: Some(stream),
        stream_options: stream.then_some(StreamOptions {
            include_usage: true,
            ..StreamOptions::default()
        }),
        max_tokens: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        response_format: request
            .text
            .as_ref()
            .and_then(|text| text.format.as_ref())
            .map(response_format),
        reasoning_effort: request
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort.clone()),
        ..ChatRequest::default()
    };
    Ok(ChatInput { request, new_messages })
}

fn response_format(format: &TextFormat) -> ResponseFormat {
    match format.kind.as_str() {
        "json_schema" => ResponseFormat::of_schema(format.schema.clone()),
        other => ResponseFormat {
            kind: other.to_owned(),
            json_schema: None,
        },
    }
}

fn tool_choice(choice: &Value) -> Result<Value, Error> {
    match choice["type"].as_str() {
        None => Ok(choice.clone()),
        Some("function" | "custom") => Ok(json!({"type": "function", "function": {"name": choice["name"]}})),
        Some(other) => {
            if let Some(client) = ClientTool::of_tool(other) {
                return Ok(json!({"type": "function", "function": {"name": client.name()}}));
            }
            let sentence = format!("has type `{other}`; allowed are auto, none, required and a function by name");
            Err(wrong("tool_choice", sentence))
        }
    }
}

/// Replaces references to items of earlier answers by the stored items.
///
/// # Errors
/// Fails for a reference to an unknown item.
pub fn resolve_references(input: &mut Value, kept: &KeptResponses) -> Result<(), Error> {
    for (number, item) in input.as_array_mut().into_iter().flatten().enumerate() {
        let is_reference = match item["type"].as_str() {
            Some(kind) => kind == "item_reference",
            None => item.get("role").is_none() && item["id"].is_string(),
        };
        if !is_reference {
            continue;
        }
        let id = item["id"].as_str().unwrap_or_default();
        *item = kept.item(id).cloned().ok_or_else(|| {
            let sentence = format!(
                "refers to the unknown item `{id}`; hint: only answers with `store` are kept, \
                 while their episode runs"
            );
            wrong(&format!("input[{number}]"), sentence)
        })?;
    }
    Ok(())
}

/// Converts items to chat messages. An assistant turn consists of up to three kinds of items (reasoning, a message,
/// calls), but is one chat message.
pub fn messages_of(items: &[Value]) -> Result<Vec<ChatMessage>, Error> {
    let mut messages: Vec<ChatMessage> = Vec::new();
    let mut reasoning = None;
    let only_reasoning = |text: String| ChatMessage {
        reasoning_content: Some(text),
        ..ChatMessage::new("assistant", "")
    };
    for (number, item) in items.iter().enumerate() {
        let at = format!("input[{number}]");
        let kind = item["type"].as_str().unwrap_or("message");
        let goes_on = match kind {
            "message" => item["role"] == "assistant",
            kind => matches!(kind, "function_call" | "custom_tool_call") || ClientTool::of_call(kind).is_some(),
        };
        if !goes_on {
            messages.extend(reasoning.take().map(only_reasoning));
        }
        match kind {
            "message" => {
                let role = item["role"]
                    .as_str()
                    .ok_or_else(|| wrong(&format!("{at}.role"), "is missing"))?;
                if !matches!(role, "user" | "assistant" | "system" | "developer") {
                    let sentence = format!("is `{role}`; allowed are user, assistant, system and developer");
                    return Err(wrong(&format!("{at}.role"), sentence));
                }
                let text = text_of(&item["content"], &TEXTS, &format!("{at}.content"))?;
                messages.push(ChatMessage {
                    reasoning_content: reasoning.take(), // other roles have none
                    ..ChatMessage::new(role, text)
                });
            }
            "reasoning" => {
                let written = match item["content"].as_array().is_some_and(|parts| !parts.is_empty()) {
                    true => text_of(&item["content"], &TEXTS, &format!("{at}.content"))?,
                    false => text_of(&item["summary"], &TEXTS, &format!("{at}.summary"))?,
                };
                reasoning = Some(written).filter(|text| !text.is_empty());
            }
            "function_call" => {
                let arguments = item["arguments"].as_str().unwrap_or_default().to_owned();
                add_call(&mut messages, reasoning.take(), call(item, arguments, &at)?);
            }
            "custom_tool_call" => {
                let arguments = json!({"input": item["input"]}).to_string();
                add_call(&mut messages, reasoning.take(), call(item, arguments, &at)?);
            }
            "function_call_output" | "custom_tool_call_output" => {
                messages.push(tool_message(item, &item["output"], &at)?);
            }
            other => match (ClientTool::of_call(other), ClientTool::of_output(other)) {
                (Some(client), _) => {
                    let named = json!({"call_id": item["call_id"], "name": client.name()});
                    let call = call(&named, client.arguments(item), &at)?;
                    add_call(&mut messages, reasoning.take(), call);
                }
                (_, Some(client)) => messages.push(tool_message(item, &client.output(item), &at)?),
                _ => return Err(wrong(&at, format!("has the unsupported type `{other}`"))),
            },
        }
    }
    messages.extend(reasoning.take().map(only_reasoning));
    Ok(messages)
}

/// Converts a tool's output. Local shells name the call by `id`.
fn tool_message(item: &Value, output: &Value, at: &str) -> Result<ChatMessage, Error> {
    let is_local_shell = item["type"] == "local_shell_call_output";
    let id = item["call_id"]
        .as_str()
        .or(item["id"].as_str().filter(|_| is_local_shell));
    let id = id.ok_or_else(|| wrong(&format!("{at}.call_id"), "is missing"))?;
    Ok(ChatMessage {
        tool_call_id: Some(id.to_owned()),
        ..ChatMessage::new("tool", text_of(output, &TEXTS, &format!("{at}.output"))?)
    })
}

fn call(item: &Value, arguments: String, at: &str) -> Result<ToolCall, Error> {
    let field = |name: &str| {
        let text = item[name].as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(&format!("{at}.{name}"), "is missing"))
    };
    Ok(ToolCall {
        id: field("call_id")?,
        kind: "function".into(),
        function: FunctionCall {
            name: flat_name(item["namespace"].as_str(), &field("name")?),
            arguments,
        },
    })
}

/// Adds a call to the assistant turn, or starts a turn.
fn add_call(messages: &mut Vec<ChatMessage>, reasoning: Option<String>, call: ToolCall) {
    match messages.last_mut() {
        Some(last) if last.role == "assistant" && reasoning.is_none() => {
            last.tool_calls.get_or_insert_default().push(call);
        }
        _ => messages.push(ChatMessage {
            reasoning_content: reasoning,
            tool_calls: Some(vec![call]),
            ..ChatMessage::new("assistant", Value::Null)
        }),
    }
}
