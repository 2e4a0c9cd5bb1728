//! Converting a messages request to a chat request.

use serde_json::{Map, Value, json};

use super::tools::function;
use crate::protocol::anthropic::{MessageParam, MessagesRequest, OutputFormat, ToolChoice};
use crate::protocol::openai::{
    ChatMessage, ChatRequest, FunctionCall, ResponseFormat, StopStrings, StreamOptions, ToolCall,
};
use crate::server::http::error::Error;
use crate::server::model_api::{text_of, text_part, wrong};

/// Claude Code's first system block: a line for Anthropic's accounting that changes with every request. Like Anthropic,
/// we remove it before the model sees it: otherwise no turn could continue the tokens of the one before.
const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// Converts a messages request to a chat request.
///
/// # Errors
/// Names the invalid field.
pub fn chat_request(request: &MessagesRequest) -> Result<ChatRequest, Error> {
    let stream = request.stream.unwrap_or(false);
    let system = system_text(&request.system)?;
    let mut messages: Vec<ChatMessage> = Vec::new();
    messages.extend((!system.is_empty()).then(|| ChatMessage::new("system", system)));
    for (at, given) in request.messages.iter().enumerate() {
        add_message(&mut messages, given, at)?;
    }
    let tools = request.tools.iter().flatten().enumerate();
    let tools = tools
        .map(|(at, tool)| function(tool, at))
        .collect::<Result<Vec<Value>, _>>()?;
    let prefilled = messages.last().is_some_and(|last| last.role == "assistant");
    if prefilled {
        check_prefill(&messages[messages.len() - 1], request.messages.len() - 1)?;
    }
    let choice = request.tool_choice.as_ref();
    Ok(ChatRequest {
        model: request.model.clone(),
        messages,
        tools: (!tools.is_empty()).then_some(tools),
        tool_choice: choice.map(tool_choice).transpose()?,
        parallel_tool_calls: choice
            .and_then(|choice| choice.disable_parallel_tool_use)
            .map(|disabled| !disabled),
        stream: Some(stream),
        stream_options: stream.then_some(StreamOptions {
            include_usage: true,
            continuous_usage_stats: true,
        }),
        max_tokens: request.max_tokens,
        stop: request.stop_sequences.clone().map(StopStrings::Many),
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        continue_final_message: prefilled.then_some(true),
        response_format: response_format(request)?,
        reasoning_effort: request.output_config.as_ref().and_then(|config| config.effort.clone()),
        chat_template_kwargs: thinking_variables(request)?,
        ..ChatRequest::default()
    })
}

fn response_format(request: &MessagesRequest) -> Result<Option<ResponseFormat>, Error> {
    let format = request.output_config.as_ref().and_then(|config| config.format.as_ref());
    let schema = |format: &OutputFormat| match format.kind.as_str() {
        "json_schema" => Ok(ResponseFormat::of_schema(format.schema.clone())),
        other => {
            let sentence = format!("is `{other}`; allowed is json_schema");
            Err(wrong("output_config.format.type", sentence))
        }
    };
    format.map(schema).transpose()
}

fn tool_choice(choice: &ToolChoice) -> Result<Value, Error> {
    match choice.kind.as_str() {
        "auto" | "none" => Ok(choice.kind.as_str().into()),
        "any" => Ok("required".into()),
        "tool" => {
            let name = choice.name.as_deref();
            let name = name.ok_or_else(|| wrong("tool_choice.name", "is missing; it is required for type `tool`"))?;
            Ok(json!({"type": "function", "function": {"name": name}}))
        }
        other => {
            let sentence = format!("is `{other}`; allowed are auto, any, tool and none");
            Err(wrong("tool_choice.type", sentence))
        }
    }
}

fn system_text(system: &Value) -> Result<String, Error> {
    let Value::Array(blocks) = system else {
        return text_of(system, &["text"], "system");
    };
    let is_billing = |block: &&Value| {
        block["text"]
            .as_str()
            .is_some_and(|text| text.starts_with(BILLING_LINE))
    };
    let blocks: Vec<Value> = blocks.iter().filter(|block| !is_billing(block)).cloned().collect();
    text_of(&Value::Array(blocks), &["text"], "system")
}

/// Returns the template variables for thinking. `adaptive` leaves the decision to the model, as the template's default
/// does.
fn thinking_variables(request: &MessagesRequest) -> Result<Option<Map<String, Value>>, Error> {
    let thinks = match request.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
        None | Some("adaptive") => return Ok(None),
        Some("enabled") => true,
        Some("disabled") => false,
        Some(other) => {
            let sentence = format!("is `{other}`; allowed are enabled, disabled and adaptive");
            return Err(wrong("thinking.type", sentence));
        }
    };
    Ok(Some(Map::from_iter([("enable_thinking".to_owned(), thinks.into())])))
}

/// Checks that a trailing assistant message can be continued as the beginning of the answer.
fn check_prefill(last: &ChatMessage, at: usize) -> Result<(), Error> {
    let at = format!("messages[{at}].content");
    if last.tool_calls.is_some() {
        return Err(wrong(
            &at,
            "ends with a tool call; hint: add its result in a user message",
        ));
    }
    if last
        .content
        .as_str()
        .is_some_and(|text| text.ends_with(char::is_whitespace))
    {
        return Err(wrong(
            &at,
            "ends with white space, so the answer cannot continue it; hint: remove the trailing white space",
        ));
    }
    Ok(())
}

fn add_message(messages: &mut Vec<ChatMessage>, given: &MessageParam, at: usize) -> Result<(), Error> {
    let content_at = format!("messages[{at}].content");
    match given.role.as_str() {
        "user" => add_user(messages, &given.content, &content_at),
        "assistant" => {
            messages.push(assistant(&given.content, &content_at)?);
            Ok(())
        }
        "system" => {
            messages.push(ChatMessage::new(
                "system",
                text_of(&given.content, &["text"], &content_at)?,
            ));
            Ok(())
        }
        other => {
            let sentence = format!("is `{other}`; allowed are user, assistant and system");
            Err(wrong(&format!("messages[{at}].role"), sentence))
        }
    }
}

/// Adds a user turn: one message per tool result, and the user's own text.
fn add_user(messages: &mut Vec<ChatMessage>, content: &Value, at: &str) -> Result<(), Error> {
    let Value::Array(blocks) = content else {
        messages.push(ChatMessage::new("user", text_of(content, &["text"], at)?));
        return Ok(());
    };
    let mut said: Vec<&str> = Vec::new();
    let mut answered = false;
    for (number, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{number}]");
        if block["type"] != "tool_result" {
            said.push(text_part(block, &["text"], &at)?);
            continue;
        }
        let id = block["tool_use_id"].as_str();
        let id = id.ok_or_else(|| wrong(&format!("{at}.tool_use_id"), "is missing"))?;
        messages.push(ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new("tool", text_of(&block["content"], &["text"], &format!("{at}.content"))?)
        });
        answered = true;
    }
    if !said.is_empty() || !answered {
        messages.push(ChatMessage::new("user", said.join("\n")));
    }
    Ok(())
}

fn assistant(content: &Value, at: &str) -> Result<ChatMessage, Error> {
    let Value::Array(blocks) = content else {
        return Ok(ChatMessage::new("assistant", text_of(content, &["text"], at)?));
    };
    let (mut texts, mut thinking, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (number, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{number}]");
        match block["type"].as_str() {
            Some("thinking") => thinking.extend(block["thinking"].as_str()),
            // Redacted thinking can only be read by Anthropic's servers.
            Some("redacted_thinking" | "fallback") => {}
            Some("tool_use") => {
                let name = block["name"].as_str();
                calls.push(ToolCall {
                    id: block["id"].as_str().unwrap_or_default().to_owned(),
                    kind: "function".into(),
                    function: FunctionCall {
                        name: name
                            .ok_or_else(|| wrong(&format!("{at}.name"), "is missing"))?
                            .to_owned(),
                        arguments: block["input"].to_string(),
                    },
                });
            }
            _ => texts.push(text_part(block, &["text"], &at)?),
        }
    }
    let content = match texts.is_empty() && !calls.is_empty() {
        true => Value::Null,
        false => texts.join("\n").into(),
    };
    Ok(ChatMessage {
        reasoning_content: (!thinking.is_empty()).then(|| thinking.join("\n")),
        tool_calls: (!calls.is_empty()).then_some(calls),
        ..ChatMessage::new("assistant", content)
    })
}
