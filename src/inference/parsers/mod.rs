//! Parsing of the model's output into an assistant message: reasoning, content and tool calls.
//!
//! Small state machines, one file per format. They receive text as it is sampled and return pieces as soon as these are
//! final. The result does not depend on how the text is split, so a streamed answer equals a complete one.

mod hermes;
mod json_call;
mod tag;
#[cfg(test)]
mod tests;
mod think;
mod whole_json;

use crate::grammar::{CallSyntax, Reasoning};
use hermes::Hermes;
use think::Think;
use whole_json::WholeJson;

/// Piece of an assistant message.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// More reasoning.
    Reasoning(String),
    /// More text.
    Content(String),
    /// A complete tool call.
    ToolCall(ParsedCall),
}

/// Rest of an answer at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Remaining pieces.
    pub pieces: Vec<Piece>,
    /// Whether the last piece is text only because the answer ended within a call.
    pub cut_call: bool,
}

/// A function call as the model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedCall {
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text, exactly as the model wrote it; `{}` if it wrote none.
    pub arguments: String,
}

/// Format of a model's tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": …}`, several separated by `;`: Llama 3.
    Llama3Json,
    /// The same with `arguments`; also a list of calls.
    Json,
    /// No tool calls.
    None,
}

impl ToolFormat {
    /// Returns the configured format (`ajet.rollout.tool_parser`), or the one detected from the chat template.
    ///
    /// # Errors
    /// Returns a message with the value and the known ones.
    pub fn choose(configured: Option<&str>, chat_template: &str) -> Result<Self, String> {
        match configured {
            Some("hermes") => Ok(Self::Hermes),
            Some("llama3_json") => Ok(Self::Llama3Json),
            Some("json") => Ok(Self::Json),
            Some("none") => Ok(Self::None),
            Some(other) => Err(format!(
                "ajet.rollout.tool_parser must be hermes, llama3_json, json or none, got `{other}`"
            )),
            None if chat_template.contains("<tool_call>") => Ok(Self::Hermes),
            None if chat_template.contains("<|python_tag|>") || chat_template.contains("\"parameters\":") => {
                Ok(Self::Llama3Json)
            }
            None if chat_template.contains("tools") => Ok(Self::Json),
            None => Ok(Self::None),
        }
    }
}

impl ToolFormat {
    /// Returns how the model writes calls; `None` if it has no call format.
    pub fn syntax(self) -> Option<CallSyntax> {
        let bare = |key| CallSyntax {
            before: "",
            key,
            after: "",
            between: "; ",
        };
        match self {
            Self::Hermes => Some(CallSyntax {
                before: "<tool_call>\n",
                key: "arguments",
                after: "\n</tool_call>",
                between: "\n",
            }),
            Self::Llama3Json => Some(bare("parameters")),
            Self::Json => Some(bare("arguments")),
            Self::None => None,
        }
    }
}

/// Format of a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>` before the answer.
    Think,
    /// No reasoning.
    None,
}

impl ReasoningFormat {
    /// Returns the configured format (`ajet.rollout.reasoning_parser`), or the one detected from the chat template.
    ///
    /// # Errors
    /// Returns a message with the value and the known ones.
    pub fn choose(configured: Option<&str>, chat_template: &str) -> Result<Self, String> {
        match configured {
            Some("think") => Ok(Self::Think),
            Some("none") => Ok(Self::None),
            Some(other) => Err(format!(
                "ajet.rollout.reasoning_parser must be think or none, got `{other}`"
            )),
            None if chat_template.contains("</think>") => Ok(Self::Think),
            None => Ok(Self::None),
        }
    }

    /// Returns the text that ends the reasoning opened by the template at the end of the prompt; empty if there is
    /// none.
    pub fn closing(self, prompt: &str) -> &'static str {
        if self.is_open_after(prompt) {
            "\n</think>\n\n"
        } else {
            ""
        }
    }

    /// Returns the reasoning that may come before the answer to this prompt.
    pub fn of_answer(self, prompt: &str) -> Reasoning {
        match self {
            Self::Think if self.is_open_after(prompt) => Reasoning::Open,
            Self::Think if !prompt.trim_end().ends_with(think::CLOSE) => Reasoning::Allowed,
            Self::Think | Self::None => Reasoning::None,
        }
    }

    /// Returns whether the prompt ends within reasoning opened by the template.
    fn is_open_after(self, prompt: &str) -> bool {
        self == Self::Think && prompt.trim_end().ends_with(think::OPEN)
    }
}

/// Parser of one answer.
pub struct AnswerParser {
    thinking: Option<Think>,
    tools: ToolParser,
}

impl AnswerParser {
    /// Creates the parser of an answer to `prompt`, of which only the end matters, with the names of the `offered`
    /// functions.
    pub fn new(reasoning: ReasoningFormat, tools: ToolFormat, prompt: &str, offered: &[String]) -> Self {
        Self {
            thinking: (reasoning == ReasoningFormat::Think).then(|| Think::new(reasoning.is_open_after(prompt))),
            tools: ToolParser::new(tools, offered),
        }
    }

    /// Adds a part of the answer; returns the pieces that are final.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Pieces::default();
        match &mut self.thinking {
            Some(thinking) => {
                let rest = thinking.push(text, &mut out);
                self.tools.push(&rest, &mut out);
            }
            None => self.tools.push(text, &mut out),
        }
        out.0
    }

    /// Ends the answer; returns the remaining pieces. An open block is text.
    pub fn finish(mut self) -> Ending {
        let mut out = Pieces::default();
        if let Some(thinking) = self.thinking {
            let rest = thinking.finish();
            self.tools.push(&rest, &mut out);
        }
        let cut_call = self.tools.finish(&mut out);
        Ending {
            pieces: out.0,
            cut_call,
        }
    }
}

enum ToolParser {
    Hermes(Hermes),
    WholeJson(WholeJson),
    None,
}

impl ToolParser {
    fn new(format: ToolFormat, offered: &[String]) -> Self {
        match format {
            ToolFormat::Hermes => Self::Hermes(Hermes::default()),
            ToolFormat::Llama3Json | ToolFormat::Json => Self::WholeJson(WholeJson::new(offered)),
            ToolFormat::None => Self::None,
        }
    }

    fn push(&mut self, text: &str, out: &mut Pieces) {
        match self {
            Self::Hermes(parser) => parser.push(text, out),
            Self::WholeJson(parser) => parser.push(text, out),
            Self::None => out.content(text),
        }
    }

    /// Emits the rest; returns whether a call was truncated.
    fn finish(self, out: &mut Pieces) -> bool {
        match self {
            Self::Hermes(parser) => parser.finish(out),
            Self::WholeJson(parser) => parser.finish(out),
            Self::None => false,
        }
    }
}

/// Collects pieces; joins adjacent ones of the same kind and drops empty ones.
#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(last)) => last.push_str(text),
            _ => self.0.push(Piece::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(Piece::Reasoning(text.to_owned())),
        }
    }

    fn call(&mut self, call: ParsedCall) {
        self.0.push(Piece::ToolCall(call));
    }
}
