//! The conversation of `chat`: what a line of input means, and the messages so far.

use crate::protocol::openai::ChatMessage;

/// Commands, as the prompt's help lists them.
pub const HELP: &str = "\
/reset            begin a new conversation
/system [TEXT]    begin a new conversation with this system message, or without one
/exit             end; so does Ctrl-D
Ctrl-C ends an answer.";

/// Meaning of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A message to the model.
    Message(String),
    /// Begin a new conversation.
    Reset,
    /// Begin a new conversation with this system message; without one if empty.
    System(String),
    /// Show the commands.
    Help,
    /// End.
    Exit,
    /// An unknown command.
    Unknown(String),
    /// Nothing.
    Nothing,
}

impl Input {
    /// Reads a line. A message that begins with a slash is written with two.
    pub fn read(line: &str) -> Self {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return match line {
                "" => Self::Nothing,
                line => Self::Message(line.to_owned()),
            };
        };
        if command.starts_with('/') {
            return Self::Message(command.to_owned());
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "reset" => Self::Reset,
            "system" => Self::System(rest.trim().to_owned()),
            "help" | "?" => Self::Help,
            "exit" | "quit" => Self::Exit,
            name => Self::Unknown(format!("/{name}")),
        }
    }
}

/// Messages so far.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<ChatMessage>,
}

impl Conversation {
    /// Begins a conversation, with a system message where there is one.
    pub fn new(system: Option<String>) -> Self {
        Self {
            system: system.filter(|text| !text.is_empty()),
            turns: Vec::new(),
        }
    }

    /// Begins again with the same system message.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Adds the user's message.
    pub fn ask(&mut self, text: String) {
        self.turns.push(ChatMessage::new("user", text));
    }

    /// Adds the model's answer; without one, the question is taken back.
    pub fn answered(&mut self, text: String) {
        match text.is_empty() {
            true => drop(self.turns.pop()),
            false => self.turns.push(ChatMessage::new("assistant", text)),
        }
    }

    /// Returns the messages of a request.
    pub fn messages(&self) -> Vec<ChatMessage> {
        let system = self.system.iter().map(|text| ChatMessage::new("system", text.clone()));
        system.chain(self.turns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        for (line, input) in [
            (" 1 + 1?\n", Input::Message("1 + 1?".into())),
            ("", Input::Nothing),
            ("  ", Input::Nothing),
            ("/reset", Input::Reset),
            ("/system be brief ", Input::System("be brief".into())),
            ("/system", Input::System(String::new())),
            ("/help", Input::Help),
            ("/quit", Input::Exit),
            ("/x y", Input::Unknown("/x".into())),
            ("//reset is a command", Input::Message("/reset is a command".into())),
        ] {
            assert_eq!(Input::read(line), input, "{line:?}");
        }
    }

    #[test]
    fn a_conversation_keeps_questions_that_were_answered() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        let texts = |conversation: &Conversation| -> Vec<String> {
            let messages = conversation.messages();
            messages
                .iter()
                .map(|message| format!("{}: {}", message.role, message.content.as_str().unwrap()))
                .collect()
        };
        conversation.ask("1 + 1?".into());
        conversation.answered("2".into());
        conversation.ask("2 + 2?".into());
        conversation.answered(String::new());
        assert_eq!(
            texts(&conversation),
            ["system: be brief", "user: 1 + 1?", "assistant: 2"]
        );
        conversation.reset();
        assert_eq!(texts(&conversation), ["system: be brief"]);
        assert_eq!(texts(&Conversation::new(Some(String::new()))), Vec::<String>::new());
    }
}
