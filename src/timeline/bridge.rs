//! Builds the prompt of the next turn without decoding and re-encoding sampled tokens.
//!
//! If a request continues an earlier call, its prompt is that call's prompt ids, its sampled ids, and the ids of the
//! new suffix alone as the chat template renders it (the *bridge*). If the template or the agent changed earlier
//! messages, bridging fails with a reason and the whole prompt is rendered again.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::call::{Call, Conversation, RenderError, Renderer, TurnEnd};
use super::counters::SplitReason;
use super::matching::{continues, same_message, text};

/// Placeholder for an answer, to find the text that the template writes after one.
const MARK: &str = "\u{fffc}answer\u{fffc}";

/// Prompt of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The request; if it was bridged, with earlier answers as the model gave them.
    pub conversation: Conversation,
    /// Text of the conversation, as the template renders it.
    pub rendered: String,
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
    /// Beginning of the answer, if the request gives it: the end of `rendered` and of `ids`.
    pub opening: String,
    /// Why it continues none of the earlier calls, if there are any.
    pub split: Option<SplitReason>,
}

impl Prompt {
    /// Begins the answer with this text.
    ///
    /// # Errors
    /// Fails if the tokenizer does.
    pub fn open_with(&mut self, opening: String, renderer: &dyn Renderer) -> Result<(), RenderError> {
        self.ids.extend(renderer.encode(&opening)?);
        self.rendered += &opening;
        self.opening = opening;
        Ok(())
    }
}

/// Returns the prompt of a request in an episode with these calls so far.
///
/// # Errors
/// Fails if the template or the tokenizer does.
pub fn prompt_for(calls: &[Call], request: Conversation, renderer: &dyn Renderer) -> Result<Prompt, RenderError> {
    let mut refused = None;
    for call in continued(calls, &request.messages) {
        match bridge(call, &request, renderer) {
            Ok(prompt) if covers_last_answer(call, &request.messages) => return Ok(prompt),
            Ok(prompt) => {
                return Ok(by_text(calls, &request, renderer)?
                    .filter(|b| b.1 > call.len())
                    .map_or(prompt, |b| b.0));
            }
            Err(reason) => _ = refused.get_or_insert(reason),
        }
    }
    if let Some((prompt, _)) = by_text(calls, &request, renderer)? {
        return Ok(prompt);
    }
    let rendered = renderer.render(&request, true)?;
    Ok(Prompt {
        ids: renderer.encode(&rendered)?,
        rendered,
        opening: String::new(),
        split: refused.or_else(|| why_not_continued(calls, &request.messages)),
        conversation: request,
    })
}

/// Returns the calls that the messages continue, the longest conversation first.
fn continued<'a>(calls: &'a [Call], messages: &[Value]) -> Vec<&'a Call> {
    let mut found: Vec<&Call> = calls.iter().filter(|call| continues(call, messages)).collect();
    found.sort_by_key(|call| Reverse(call.conversation.messages.len()));
    found
}

fn covers_last_answer(call: &Call, messages: &[Value]) -> bool {
    let after_answer = call.conversation.messages.len() + 1;
    messages[after_answer..]
        .iter()
        .all(|message| message["role"] != "assistant")
}

/// Continues `call`: `request` starts with its messages and its answer.
fn bridge(call: &Call, request: &Conversation, renderer: &dyn Renderer) -> Result<Prompt, SplitReason> {
    let asked = call.conversation.messages.len();
    let mut conversation = request.clone();
    conversation.messages[..asked].clone_from_slice(&call.conversation.messages);
    conversation.messages[asked] = call.answer.clone();
    let refuse = |_: RenderError| SplitReason::TemplateRewrites;
    let rendered = renderer.render(&conversation, true).map_err(refuse)?;

    let Some(turn) = rendered.strip_prefix(&call.rendered) else {
        return Err(if thinking_was_dropped(call, &rendered) {
            SplitReason::ThinkingDropped
        } else if call.conversation.tools != request.tools {
            SplitReason::ToolsChanged
        } else {
            SplitReason::TemplateRewrites
        });
    };
    let suffix = match after_text(turn, &call.sampled_text) {
        Some(suffix) => suffix,
        None => after_rewritten_answer(call, &conversation, turn, renderer)?,
    };
    let ids = continue_with(call, suffix, renderer).map_err(refuse)?;
    Ok(Prompt {
        conversation,
        rendered,
        ids,
        opening: String::new(),
        split: None,
    })
}

/// Continues the longest call whose text the rendered request starts with, even if messages are split differently. Also
/// returns the number of ids kept.
fn by_text(
    calls: &[Call],
    request: &Conversation,
    renderer: &dyn Renderer,
) -> Result<Option<(Prompt, usize)>, RenderError> {
    if calls.is_empty() {
        return Ok(None);
    }
    let rendered = renderer.render(request, true)?;
    let continuing = calls
        .iter()
        .filter(|call| call.end == TurnEnd::EndToken)
        .filter_map(|call| {
            let suffix = rendered
                .strip_prefix(&call.rendered)?
                .strip_prefix(&call.sampled_text)?;
            suffix.starts_with(&end_text(call, renderer)?).then_some((call, suffix))
        });
    let Some((call, suffix)) = continuing.min_by_key(|(_, suffix)| suffix.len()) else {
        return Ok(None);
    };
    let ids = continue_with(call, suffix, renderer)?;
    let prompt = Prompt {
        conversation: request.clone(),
        rendered: rendered.clone(),
        ids,
        opening: String::new(),
        split: None,
    };
    Ok(Some((prompt, call.len())))
}

/// Returns the call's ids and those of `suffix`: the template's text after the call's answer, including the end of
/// turn.
fn continue_with(call: &Call, suffix: &str, renderer: &dyn Renderer) -> Result<Vec<u32>, RenderError> {
    let mut ids = call.sequence();
    let end = end_text(call, renderer);
    let after_end = end.as_deref().and_then(|end| suffix.trim_start().strip_prefix(end));
    match (end.as_deref(), after_end) {
        // Encoded behind the end token, which is then taken off, because a tokenizer may treat the start of a text
        // specially.
        (Some(end), Some(after_end)) => {
            let with_end = renderer.encode(&[end, after_end].concat())?;
            match with_end.strip_prefix(&call.sampled[call.sampled.len() - 1..]) {
                Some(after_end) => ids.extend(after_end),
                None => ids.extend(renderer.encode(after_end)?),
            }
        }
        // No end token was sampled, or another than the template's: the template's is context.
        _ => ids.extend(renderer.encode(suffix)?),
    }
    Ok(ids)
}

/// Returns the text of the end token that the call sampled.
fn end_text(call: &Call, renderer: &dyn Renderer) -> Option<String> {
    let end = call.sampled.last().filter(|_| call.end == TurnEnd::EndToken)?;
    Some(renderer.decode(&[*end]))
}

/// Returns what follows `beginning` in a text that may contain it with other white space: templates strip contents and
/// format JSON in their own way.
pub fn after_text<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    if let Some(rest) = text.strip_prefix(beginning) {
        return Some(rest);
    }
    let mut rest = text;
    for c in beginning.chars().filter(|c| !c.is_whitespace()) {
        rest = rest.trim_start().strip_prefix(c)?;
    }
    Some(rest)
}

/// Returns what follows the answer if the template renders it differently from how it was sampled, such as a tool call
/// with its keys in another order. Fails if a part of the answer is missing.
fn after_rewritten_answer<'a>(
    call: &Call,
    conversation: &Conversation,
    turn: &'a str,
    renderer: &dyn Renderer,
) -> Result<&'a str, SplitReason> {
    let mut marked = conversation.clone();
    marked.messages[call.conversation.messages.len()] = json!({"role": "assistant", "content": MARK});
    let marked = renderer
        .render(&marked, true)
        .map_err(|_| SplitReason::AnswerRewritten)?;
    let (_, suffix) = marked.rsplit_once(MARK).ok_or(SplitReason::AnswerRewritten)?;
    let written = squeeze(turn.strip_suffix(suffix).ok_or(SplitReason::AnswerRewritten)?);

    let has = |part: &Value| written.contains(&squeeze(text(part)));
    if !has(&call.answer["reasoning_content"]) {
        return Err(SplitReason::ThinkingDropped);
    }
    let mut tool_calls = call.answer["tool_calls"].as_array().into_iter().flatten();
    if !has(&call.answer["content"]) || !tool_calls.all(|tool_call| has(&tool_call["function"]["name"])) {
        return Err(SplitReason::AnswerRewritten);
    }
    Ok(&turn[turn.len() - suffix.len()..])
}

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Returns whether the new rendering omits thinking that the model saw or sampled.
fn thinking_was_dropped(call: &Call, rendered: &str) -> bool {
    let messages = call.conversation.messages.iter().chain([&call.answer]);
    messages
        .map(|message| text(&message["reasoning_content"]).trim())
        .any(|thinking| {
            (call.rendered.contains(thinking) || call.sampled_text.contains(thinking)) && !rendered.contains(thinking)
        })
}

fn why_not_continued(calls: &[Call], messages: &[Value]) -> Option<SplitReason> {
    let asked_before = |call: &Call| {
        let asked = &call.conversation.messages;
        asked.len() == messages.len() && asked.iter().zip(messages).all(|(a, b)| same_message(a, b))
    };
    if calls.is_empty() || calls.iter().any(asked_before) {
        return None;
    }
    let without_system = |messages: &[Value]| -> Vec<Value> {
        messages
            .iter()
            .filter(|message| message["role"] != "system")
            .cloned()
            .collect()
    };
    let spoken = without_system(messages);
    let same_start = |call: &&Call| match (without_system(&call.conversation.messages).first(), spoken.first()) {
        (Some(ours), Some(theirs)) => same_message(ours, theirs),
        _ => false,
    };
    let only_system_changed = |call: &Call| {
        let mut ours = without_system(&call.conversation.messages);
        ours.push(call.answer.clone());
        ours.len() <= spoken.len() && ours.iter().zip(&spoken).all(|(a, b)| same_message(a, b))
    };
    let related: Vec<&Call> = calls.iter().filter(same_start).collect();
    Some(if related.is_empty() {
        SplitReason::NewConversation
    } else if related.into_iter().any(only_system_changed) {
        SplitReason::SystemChanged
    } else {
        SplitReason::HistoryEdited
    })
}
