//! Given answers: what the model `builtin:scripted:FILE` "samples".
//!
//! For checks of agents and clients, which need answers that are known beforehand. Everything but the choice of the
//! tokens is real: prompts are rendered and fed, each token gets the log-probability that the model gives it, and
//! parsers, timelines and training see no difference.
//!
//! FILE has a JSON object a line. The first whose conditions all hold is the answer, so that it depends on the
//! conversation alone, not on the order in which agents ask:
//!
//! - `text`: what the model writes, tool calls and thinking as the template would;
//! - `turn`: how many messages of the assistant the conversation has so far;
//! - `tool`: the name of a tool on offer;
//! - `contains`: a part of some message.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::config::small_file::{TABLE_BYTES, read_text};
use crate::timeline::Conversation;

/// How `ajet.model.path` begins where answers are given.
const PREFIX: &str = "builtin:scripted:";

/// Given answers.
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
    /// The script that a model path names; `None` where it names none.
    ///
    /// # Errors
    /// A sentence: the file cannot be read, or a line is not as above.
    pub fn of_model(path: &str) -> Result<Option<Self>, String> {
        let Some(file) = path.strip_prefix(PREFIX) else {
            return Ok(None);
        };
        let text = read_text(Path::new(file), TABLE_BYTES)
            .map_err(|error| format!("the answers of ajet.model.path cannot be read from {file:?}: {error}"))?;
        Self::parse(&text).map(Some).map_err(|why| format!("{file}: {why}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let lines = lines.map(|(at, line)| {
            serde_json::from_str(line).map_err(|error| format!("line {} is not an answer: {error}", at + 1))
        });
        lines.collect::<Result<_, _>>().map(Self)
    }

    /// The text of the answer to a conversation.
    pub fn answer(&self, conversation: &Conversation) -> Option<&str> {
        let line = self.0.iter().find(|line| line.fits(conversation))?;
        Some(&line.text)
    }
}

impl Line {
    fn fits(&self, conversation: &Conversation) -> bool {
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

/// Whom a conversation without an answer is told to.
pub fn no_answer(conversation: &Conversation) -> String {
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
        "no line of the script fits this conversation, which has {turns} messages of the assistant so far and the tools {}",
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
        let why = no_answer(&conversation(2, &["read"], "go"));
        assert!(why.contains("2 messages") && why.contains("[\"read\"]"), "{why}");
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
