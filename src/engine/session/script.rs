//! Scripted answers: the "samples" of the model `builtin:scripted:FILE`.
//!
//! For tests of agents and clients, which need predictable answers. Everything but the choice of tokens is real:
//! prompts are rendered and computed, each token gets its log-probability from the model, and parsers, timelines and
//! training see no difference.
//!
//! FILE contains one JSON object per line. The first line whose conditions all hold is the answer, so that it depends
//! only on the conversation, not on the order of requests:
//!
//! - `text`: the model's output, with tool calls and thinking in the template's format;
//! - `turn`: the number of assistant messages in the conversation so far;
//! - `tool`: the name of an offered tool;
//! - `contains`: a substring of any message.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::config::small_file::{TABLE_BYTES, read_text};
use crate::timeline::Conversation;

/// Prefix of `ajet.model.path` for scripted models.
const PREFIX: &str = "builtin:scripted:";

/// A script of answers.
#[derive(Clone, Debug)]
pub struct Script(Vec<Line>);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: String,
    turn: Option<usize>,
    tool: Option<String>,
    contains: Option<String>,
}

impl Script {
    /// Loads the script named by a model path; returns `None` for other models.
    ///
    /// # Errors
    /// Returns a message if the file cannot be read or a line is invalid.
    pub fn of_model(path: &str) -> Result<Option<Self>, String> {
        let Some(file) = path.strip_prefix(PREFIX) else {
            return Ok(None);
        };
        let text = read_text(Path::new(file), TABLE_BYTES)
            .map_err(|error| format!("cannot read the script of ajet.model.path from {file:?}: {error}"))?;
        Self::parse(&text).map(Some).map_err(|why| format!("{file}: {why}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let lines = lines.map(|(at, line)| {
            serde_json::from_str(line).map_err(|error| format!("line {} is not a valid answer: {error}", at + 1))
        });
        lines.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the text of the answer to a conversation.
    pub fn answer(&self, conversation: &Conversation) -> Option<&str> {
        let line = self.0.iter().find(|line| line.matches(conversation))?;
        Some(&line.text)
    }
}

impl Line {
    fn matches(&self, conversation: &Conversation) -> bool {
        let messages = &conversation.messages;
        let turn = messages.iter().filter(|message| message["role"] == "assistant").count();
        let offered = |name: &String| conversation.tools.iter().any(|tool| tool["function"]["name"] == **name);
        let said = |part: &String| {
            let contents = messages.iter().filter_map(|message| message["content"].as_str());
            contents.into_iter().any(|content| content.contains(part.as_str()))
        };
        self.turn.is_none_or(|wanted| wanted == turn)
            && self.tool.as_ref().is_none_or(offered)
            && self.contains.as_ref().is_none_or(said)
    }
}

/// Returns the error message when no script line matches a conversation.
pub fn no_match_message(conversation: &Conversation) -> String {
    let turns = conversation
        .messages
        .iter()
        .filter(|message| message["role"] == "assistant")
        .count();
    let tools: Vec<&Value> = conversation
        .tools
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    format!(
        "no script line matches this conversation with {turns} assistant messages and the tools {}",
        Value::from_iter(tools.into_iter().cloned())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conversation(turns: usize, tools: &[&str], said: &str) -> Conversation {
        let mut messages = vec![json!({"role": "user", "content": said})];
        messages.extend(vec![json!({"role": "assistant", "content": "a"}); turns]);
        Conversation {
            messages,
            tools: tools
                .iter()
                .map(|name| json!({"type": "function", "function": {"name": name}}))
                .collect(),
            ..Conversation::default()
        }
    }

    #[test]
    fn the_first_line_that_fits_is_the_answer() {
        let script = Script::parse(
            "{\"text\": \"title\", \"contains\": \"name this\"}\n\n\
             {\"text\": \"write\", \"turn\": 0, \"tool\": \"write\"}\n\
             {\"text\": \"done\", \"turn\": 1}\n",
        )
        .unwrap();
        let answer = |turns, tools: &[&str], said| script.answer(&conversation(turns, tools, said)).map(str::to_owned);
        assert_eq!(answer(0, &["write"], "please name this chat").as_deref(), Some("title"));
        assert_eq!(answer(0, &["read", "write"], "go").as_deref(), Some("write"));
        assert_eq!(answer(1, &["write"], "go").as_deref(), Some("done"));
        assert_eq!(answer(0, &["read"], "go"), None);
        let why = no_match_message(&conversation(2, &["read"], "go"));
        assert!(
            why.contains("2 assistant messages") && why.contains("[\"read\"]"),
            "{why}"
        );
    }

    #[test]
    fn what_is_no_script_is_told() {
        assert!(Script::of_model("builtin:tiny").unwrap().is_none());
        let missing = Script::of_model("builtin:scripted:/nowhere/answers.jsonl").unwrap_err();
        assert!(missing.contains("/nowhere/answers.jsonl"), "{missing}");
        let wrong = Script::parse("{\"text\": \"a\"}\n{\"answer\": \"b\"}").unwrap_err();
        assert!(wrong.starts_with("line 2") && wrong.contains("answer"), "{wrong}");
    }
}
