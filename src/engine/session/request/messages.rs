//! Messages for the chat template, and the answer's given beginning.

use serde_json::{Map, Value, json};

use crate::config::schema::Rollout;
use crate::engine::session::error::ChatError;
use crate::protocol::openai::{ChatMessage, ChatRequest};

pub(super) fn template_messages(given: Vec<ChatMessage>, rollout: &Rollout) -> Result<Vec<Value>, ChatError> {
    if given.is_empty() {
        return Err(ChatError::invalid(
            "messages",
            "`messages` must contain at least one message",
        ));
    }
    let mut messages = Vec::with_capacity(given.len() + 1);
    for (at, message) in given.into_iter().enumerate() {
        messages.push(template_message(at, message)?);
    }
    if let Some(prompt) = &rollout.default_system_prompt
        && messages.iter().all(|message| message["role"] != "system")
    {
        messages.insert(0, json!({"role": "system", "content": prompt}));
    }
    Ok(messages)
}

/// Converts a message for chat templates and timelines: content as a string, or null if an assistant only calls tools; no
/// empty fields.
fn template_message(at: usize, mut message: ChatMessage) -> Result<Value, ChatError> {
    let role = std::mem::take(&mut message.role);
    let role = match role.as_str() {
        // Templates do not know OpenAI's newer name of the system role.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        role => {
            let param = format!("messages[{at}].role");
            let message = format!("`{param}` must be system, developer, user, assistant or tool, got `{role}`");
            return Err(ChatError::invalid(param, message));
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let says_nothing = message.content.is_null() && message.refusal.is_none();
    let content = match calls && says_nothing {
        true => Value::Null,
        false => text_content(at, &mut message)?.into(),
    };
    out.insert("content".into(), content);
    let reasoning = message.reasoning_content.as_deref().or(message.reasoning.as_str());
    if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
        out.insert("reasoning_content".into(), reasoning.into());
    }
    if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
        if role != "assistant" {
            let param = format!("messages[{at}].tool_calls");
            let message = format!("`{param}` is only allowed in assistant messages, but the role is `{role}`");
            return Err(ChatError::invalid(param, message));
        }
        out.insert("tool_calls".into(), json!(calls));
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), id.as_str().into());
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), name.as_str().into());
    }
    Ok(Value::Object(out))
}

/// Takes the text out of a message.
fn text_content(at: usize, message: &mut ChatMessage) -> Result<String, ChatError> {
    let param = || format!("messages[{at}].content");
    let parts = match std::mem::take(&mut message.content) {
        Value::Null => return Ok(message.refusal.take().unwrap_or_default()),
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let message = format!(
                "`{}` must be a string, null, or a list of text parts, got {other}",
                param()
            );
            return Err(ChatError::invalid(param(), message));
        }
    };
    let texts = parts.iter().enumerate().map(
        |(number, part)| match (&part["type"], &part["text"], &part["refusal"]) {
            (Value::String(kind), Value::String(text), _) if kind == "text" => Ok(text.as_str()),
            (Value::String(kind), _, Value::String(text)) if kind == "refusal" => Ok(text.as_str()),
            (kind, ..) => {
                let param = format!("{}[{number}]", param());
                let message = format!("`{param}` has type {kind}, but only text parts are supported");
                Err(ChatError::invalid(param, message))
            }
        },
    );
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Removes the last message if it is the beginning of the answer.
pub(super) fn take_opening(request: &mut ChatRequest) -> Result<Option<String>, ChatError> {
    let continues = request.continue_final_message.unwrap_or(false);
    match (continues, request.add_generation_prompt) {
        (true, Some(true)) => {
            let message = "`add_generation_prompt` and `continue_final_message` cannot both be true";
            return Err(ChatError::invalid("add_generation_prompt", message));
        }
        (false, Some(false)) => {
            let message = "`add_generation_prompt: false` requires `continue_final_message` to be true";
            return Err(ChatError::invalid("add_generation_prompt", message));
        }
        (false, _) => return Ok(None),
        (true, _) => {}
    }
    let at = request.messages.len().saturating_sub(1);
    let calls = |message: &ChatMessage| message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    match request.messages.pop() {
        Some(mut last) if last.role == "assistant" && !calls(&last) => {
            if request.messages.is_empty() {
                let message = "`messages` has only the assistant's message with which the answer begins; hint: put a \
                               user's message before it";
                return Err(ChatError::invalid("messages", message));
            }
            text_content(at, &mut last).map(Some)
        }
        _ => Err(ChatError::invalid(
            "continue_final_message",
            "`continue_final_message` requires a last message of the assistant with text only",
        )),
    }
}
