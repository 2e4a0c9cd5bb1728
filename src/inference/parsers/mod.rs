//! From what the model writes to an assistant's message: reasoning, content and tool calls.
//!
//! Small state machines over text, one file a format. Text goes in as it is sampled, pieces come out as soon as they
//! are certain; the pieces do not depend on how the text was split, so a streamed answer equals a whole one.

mod hermes;
mod json_call;
mod tag;
#[cfg(test)]
mod tests;
mod think;
mod whole_json;

use hermes::Hermes;
use think::Think;
use whole_json::WholeJson;

/// A part of an assistant's message.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// More thinking.
    Reasoning(String),
    /// More text.
    Content(String),
    /// One whole call.
    ToolCall(ParsedCall),
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// What was undecided.
    pub pieces: Vec<Piece>,
    /// Whether the last of it is text only because the answer ended in the middle of a call.
    pub cut_call: bool,
}

/// A function call as the model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedCall {
    /// The function.
    pub name: String,
    /// A JSON object as text, exactly as the model wrote it; `{}` where it wrote none.
    pub arguments: String,
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": …}`, several separated by `;`: Llama 3.
    Llama3Json,
    /// The same with `arguments`; a list of calls too.
    Json,
    /// Not at all.
    None,
}

impl ToolFormat {
    /// The configured format (`ajet.rollout.tool_parser`), or the one that the chat template shows.
    ///
    /// # Errors
    /// A sentence that names the value and what is known.
    pub fn choose(configured: Option<&str>, chat_template: &str) -> Result<Self, String> {
        match configured {
            Some("hermes") => Ok(Self::Hermes),
            Some("llama3_json") => Ok(Self::Llama3Json),
            Some("json") => Ok(Self::Json),
            Some("none") => Ok(Self::None),
            Some(other) => Err(format!(
                "ajet.rollout.tool_parser is `{other}`; known are hermes, llama3_json, json and none"
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
    /// How a call begins, up to where the model would go on: with the arguments where the function is `named`, else with
    /// its name. `None` where the model does not write calls.
    pub fn opening(self, named: Option<&str>) -> Option<String> {
        let (before, arguments) = match self {
            Self::Hermes => ("<tool_call>\n", "arguments"),
            Self::Llama3Json => ("", "parameters"),
            Self::Json => ("", "arguments"),
            Self::None => return None,
        };
        Some(match named {
            Some(name) => format!(
                "{before}{{\"name\": {}, \"{arguments}\": ",
                serde_json::Value::from(name)
            ),
            None => format!("{before}{{\"name\": \""),
        })
    }
}

/// How a model writes its thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>` before the answer.
    Think,
    /// Not at all.
    None,
}

impl ReasoningFormat {
    /// The configured format (`ajet.rollout.reasoning_parser`), or the one that the chat template shows.
    ///
    /// # Errors
    /// A sentence that names the value and what is known.
    pub fn choose(configured: Option<&str>, chat_template: &str) -> Result<Self, String> {
        match configured {
            Some("think") => Ok(Self::Think),
            Some("none") => Ok(Self::None),
            Some(other) => Err(format!(
                "ajet.rollout.reasoning_parser is `{other}`; known are think and none"
            )),
            None if chat_template.contains("</think>") => Ok(Self::Think),
            None => Ok(Self::None),
        }
    }

    /// What ends the thinking that the template opened at the end of the prompt; nothing where it opened none.
    pub fn closing(self, prompt: &str) -> &'static str {
        if self.is_open_after(prompt) {
            "\n</think>\n\n"
        } else {
            ""
        }
    }

    /// Whether the prompt ends inside of thinking that the template opened.
    fn is_open_after(self, prompt: &str) -> bool {
        self == Self::Think && prompt.trim_end().ends_with(think::OPEN)
    }
}

/// Parses one answer.
pub struct AnswerParser {
    thinking: Option<Think>,
    tools: ToolParser,
}

impl AnswerParser {
    /// For an answer to `prompt`, a text of which only the end matters, by a model to which functions of these names
    /// are `offered`.
    pub fn new(reasoning: ReasoningFormat, tools: ToolFormat, prompt: &str, offered: &[String]) -> Self {
        Self {
            thinking: (reasoning == ReasoningFormat::Think).then(|| Think::new(reasoning.is_open_after(prompt))),
            tools: ToolParser::new(tools, offered),
        }
    }

    /// Takes more of the answer; gives what is certain by now.
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

    /// The answer has ended; gives the rest. What is open now is text.
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

    /// Gives out the rest; whether a call was cut.
    fn finish(self, out: &mut Pieces) -> bool {
        match self {
            Self::Hermes(parser) => parser.finish(out),
            Self::WholeJson(parser) => parser.finish(out),
            Self::None => false,
        }
    }
}

/// Pieces in the making; neighbours of one kind are joined, empty ones left out.
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
