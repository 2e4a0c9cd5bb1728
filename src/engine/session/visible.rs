//! The text of an answer as the agent sees it: without special tokens.

use std::sync::Arc;

use super::backend::ChatModel;
use crate::inference::detokenizer::Detokenizer;

/// Marks that the parsers look for; some models have them as special tokens.
const MARKS: [&str; 5] = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"];

/// Makes text of sampled tokens as they come.
pub struct VisibleText {
    model: Arc<dyn ChatModel>,
    detokenizer: Detokenizer,
}

impl VisibleText {
    pub fn new(model: Arc<dyn ChatModel>) -> Self {
        Self {
            model,
            detokenizer: Detokenizer::default(),
        }
    }

    /// Takes the next token; gives the text that is certain by now.
    pub fn push(&mut self, id: u32) -> String {
        let bytes = self.model.token_bytes(id);
        let hidden = self.model.is_special(id) && !MARKS.iter().any(|mark| mark.as_bytes() == bytes);
        if hidden || self.model.stop_token_ids().contains(&id) {
            return String::new();
        }
        self.detokenizer.push(&bytes)
    }

    /// The answer has ended; gives the rest.
    pub fn finish(self) -> String {
        self.detokenizer.finish()
    }
}
