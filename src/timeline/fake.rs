//! A fake tokenizer, chat template and model, for fast tests.
//!
//! The vocabulary has single characters and a few longer pieces, and encoding takes the longest piece. So most random
//! token sequences change when they are decoded and encoded, as with real models.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::call::{Call, Conversation, RenderError, Renderer, TurnEnd};
use super::matching::text;

const SPECIAL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
const PIECES: [&str; 26] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "assistant",
    "system",
    "user",
    "tool",
    "\n\n",
    "\n",
    " ",
    "ab",
    "abc",
    " abc",
    "bc",
    "a",
    "b",
    "c",
    "é",
    "日",
    "本",
    "日本",
    "\"",
    ": ",
    "{\"",
    " {",
];

/// Token id of `<|im_end|>` in [`Fake`].
pub const IM_END: u32 = 1;
/// Token id of `<|endoftext|>` in [`Fake`].
pub const END_OF_TEXT: u32 = 2;

/// A call with these messages and this answer that ended with an end token; it has no tokens.
pub fn call(messages: Vec<Value>, answer: Value) -> Call {
    Call {
        conversation: Conversation {
            messages,
            ..Conversation::default()
        },
        rendered: String::new(),
        prompt: vec![],
        sampled: vec![],
        logprobs: vec![],
        grammar: None,
        determined: vec![],
        sampled_text: String::new(),
        end: TurnEnd::EndToken,
        answer,
        agent: String::new(),
        weight_version: 0,
        begun: 0.0,
        ended: 0.0,
    }
}

/// Chat template of [`Fake`], a variant of ChatML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// As Qwen2.5: all messages are rendered unchanged.
    Keep,
    /// As Qwen3: thinking before the last user message is omitted, contents are stripped.
    DropThinking,
}

/// A tokenizer and a chat template.
#[derive(Clone, Debug)]
pub struct Fake {
    template: Template,
    vocabulary: Vec<String>,
}

impl Fake {
    /// Creates one with this template.
    pub fn new(template: Template) -> Self {
        let ascii = (0x20..0x7f_u8).map(|c| char::from(c).to_string());
        let mut vocabulary: Vec<String> = SPECIAL.iter().chain(&PIECES).map(|piece| piece.to_string()).collect();
        vocabulary.extend(ascii.filter(|c| !PIECES.contains(&c.as_str())));
        Self { template, vocabulary }
    }

    /// Returns a random answer of the model, with an end token unless `cut`.
    pub fn sample(&self, rng: &mut ChaCha8Rng, cut: bool) -> Vec<u32> {
        let first = SPECIAL.len() as u32 + 8;
        let last = (SPECIAL.len() + PIECES.len()) as u32;
        let mut ids: Vec<u32> = (0..rng.random_range(u32::from(cut)..8))
            .map(|_| rng.random_range(first..last))
            .collect();
        if !cut {
            ids.push(if rng.random_bool(0.05) { END_OF_TEXT } else { IM_END });
        }
        ids
    }

    fn drops_thinking(&self) -> bool {
        self.template == Template::DropThinking
    }
}

impl Renderer for Fake {
    fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String, RenderError> {
        let mut out = String::new();
        if !conversation.tools.is_empty() {
            let tools = Value::from(conversation.tools.clone());
            out += &format!("<|im_start|>system\n{tools}<|im_end|>\n");
        }
        let last_user = conversation
            .messages
            .iter()
            .rposition(|message| message["role"] == "user")
            .unwrap_or(0);
        for (at, message) in conversation.messages.iter().enumerate() {
            let content = text(&message["content"]);
            let content = if self.drops_thinking() { content.trim() } else { content };
            out += &format!("<|im_start|>{}\n", text(&message["role"]));
            let thinking = text(&message["reasoning_content"]);
            if !thinking.is_empty() && (!self.drops_thinking() || at > last_user) {
                out += &format!("<think>\n{thinking}\n</think>\n\n");
            }
            out += content;
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let arguments: Value = serde_json::from_str(text(&call["function"]["arguments"])).unwrap_or_default();
                let name = &call["function"]["name"];
                out += &format!("\n<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
            }
            out += "<|im_end|>\n";
        }
        if add_generation_prompt {
            out += "<|im_start|>assistant\n";
        }
        Ok(out)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, RenderError> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let pieces = self
                .vocabulary
                .iter()
                .enumerate()
                .filter(|(_, piece)| rest.starts_with(piece.as_str()));
            let (id, piece) = pieces
                .max_by_key(|(_, piece)| piece.len())
                .ok_or_else(|| RenderError(format!("no token for {rest:?}")))?;
            ids.push(id as u32);
            rest = &rest[piece.len()..];
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| self.vocabulary[*id as usize].as_str()).collect()
    }
}
