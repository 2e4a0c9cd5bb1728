//! Conversations as lines, coloured by author.

use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use serde_json::Value;

use crate::overwatch::theme::Theme;
use crate::overwatch::wrap::wrap;
use crate::protocol::status::{EpisodeDetail, TranscriptConversation};

/// Columns by which what is said is indented.
const INDENT: u16 = 2;

/// Returns all conversations.
pub(super) fn lines(detail: &EpisodeDetail, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let count = detail.conversations.len();
    if count == 0 {
        let reason = match detail.running || detail.summary.has_transcript {
            true => "no LLM call was answered",
            false => "no transcript is kept of this episode",
        };
        return vec![Line::styled(reason, theme.faint())];
    }
    let mut lines = vec![];
    for (place, conversation) in detail.conversations.iter().enumerate() {
        if count > 1 {
            let title = format!(
                "══ conversation {} of {count}, model {} ══",
                place + 1,
                conversation.model
            );
            lines.push(Line::styled(title, theme.strong(Color::Cyan)));
        }
        lines.extend(conversation_lines(conversation, width, theme));
    }
    lines
}

fn conversation_lines(conversation: &TranscriptConversation, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![];
    let names: Vec<_> = conversation
        .tools
        .iter()
        .filter_map(|tool| tool["function"]["name"].as_str())
        .collect();
    if !names.is_empty() {
        lines.extend(said(&format!("tools: {}", names.join(", ")), width, theme.faint()));
    }
    for message in &conversation.messages {
        lines.extend(message_lines(message, width, theme));
    }
    lines
}

fn message_lines(message: &Value, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let role = message["role"].as_str().unwrap_or("unknown");
    let mut lines = vec![author(role, message, width, theme)];
    if let Some(thinking) = message["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
        lines.extend(said(&format!("(thinking) {thinking}"), width, theme.faint()));
    }
    let text = content(&message["content"]);
    if !text.is_empty() {
        lines.extend(said(&text, width, Style::new()));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(arguments) => arguments.clone(),
            other => other.to_string(),
        };
        let text = format!("→ {}({arguments})", function["name"].as_str().unwrap_or("unknown"));
        lines.extend(said(&text, width, theme.colored(Color::Yellow)));
    }
    lines
}

/// Returns the line above a message, as wide as the panel.
fn author(role: &str, message: &Value, width: u16, theme: Theme) -> Line<'static> {
    let id = message["tool_call_id"]
        .as_str()
        .or_else(|| message["name"].as_str())
        .unwrap_or_default();
    let name = format!("{role} {id}").trim_end().to_owned();
    let rule = usize::from(width).saturating_sub(name.chars().count() + 4);
    Line::from(vec![
        Span::styled("── ", theme.faint()),
        Span::styled(name, theme.author(role)),
        Span::styled(format!(" {}", "─".repeat(rule)), theme.faint()),
    ])
}

/// Returns the text of a message's content, a string or a list of parts.
fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |part: &Value| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("({})", part["type"].as_str().unwrap_or("unknown part")),
            };
            parts.iter().map(text).collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn said(text: &str, width: u16, style: Style) -> Vec<Line<'static>> {
    let lines = wrap(text, width.saturating_sub(INDENT)).into_iter();
    lines
        .map(|line| Line::styled(format!("{:1$}{line}", "", usize::from(INDENT)), style))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_part_of_a_conversation_is_shown() {
        let detail = EpisodeDetail {
            conversations: vec![TranscriptConversation {
                model: "m".into(),
                tools: vec![json!({"function": {"name": "calc"}})],
                messages: vec![
                    json!({"role": "system", "content": "Be brief."}),
                    json!({"role": "user", "content": [{"type": "text", "text": "2 + 2?"}, {"type": "image_url"}]}),
                    json!({"role": "assistant", "reasoning_content": "A sum.", "content": null,
                        "tool_calls": [{"function": {"name": "calc", "arguments": "{\"a\":2}"}}]}),
                    json!({"role": "tool", "tool_call_id": "c1", "content": "4"}),
                    json!({"role": "assistant", "content": "The answer\nis 4."}),
                ],
            }],
            ..EpisodeDetail::default()
        };
        let told: Vec<String> = lines(&detail, 20, Theme { color: true })
            .iter()
            .map(ToString::to_string)
            .collect();
        let want = [
            "  tools: calc",
            "── system ──────────",
            "  Be brief.",
            "── user ────────────",
            "  2 + 2?",
            "  (image_url)",
            "── assistant ───────",
            "  (thinking) A sum.",
            "  → calc({\"a\":2})",
            "── tool c1 ─────────",
            "  4",
            "── assistant ───────",
            "  The answer",
            "  is 4.",
        ];
        assert_eq!(told, want);
    }
}
