//! Text of an answer as the agent sees it: without special tokens.

use std::sync::Arc;

use super::backend::ChatModel;
use crate::inference::detokenizer::Detokenizer;

/// Markers needed by the parsers; some models have them as special tokens.
const MARKS: [&str; 5] = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"];

/// Decodes sampled tokens incrementally.
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

    /// Adds the next token; returns the text that is certain by now.
    pub fn push(&mut self, id: u32) -> String {
        let bytes = self.model.token_bytes(id);
        let hidden = self.model.is_special(id) && !MARKS.iter().any(|mark| mark.as_bytes() == bytes);
        if hidden || self.model.stop_token_ids().contains(&id) {
            return String::new();
        }
        self.detokenizer.push(&bytes)
    }

    /// Ends the answer; returns the remaining text.
    pub fn finish(self) -> String {
        self.detokenizer.finish()
    }
}
