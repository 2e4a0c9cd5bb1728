//! Tokens of prompts, counted without an engine where a model's tokenizer is on this machine.

use serde_json::{Map, json};

use crate::engine::session::TextModel;
use crate::model::load::load_text;
use crate::protocol::openai::ChatMessage;
use crate::timeline::{Conversation, Renderer};

/// Counts the tokens of prompts as the engine would.
pub struct PromptCounter(TextModel);

impl PromptCounter {
    /// Reads the tokenizer and the chat template of a model; the inner error says why prompts are not counted.
    ///
    /// # Errors
    /// Fails if the model's files cannot be used.
    pub fn load(model: &str) -> anyhow::Result<Result<Self, String>> {
        let Some(text) = load_text(model)? else {
            return Ok(Err(format!("the tokenizer of {model} is not on this machine")));
        };
        let model = TextModel::from_parts(text.tokenizer, text.chat_template, &text.generation.eos_token_ids);
        Ok(Ok(Self(model)))
    }

    /// Returns the number of tokens of a prompt.
    ///
    /// # Errors
    /// A sentence: the chat template does not render the messages.
    pub fn count(&self, messages: &[ChatMessage]) -> Result<u64, String> {
        let conversation = Conversation {
            messages: messages.iter().map(|message| json!(message)).collect(),
            tools: vec![],
            template_kwargs: Map::new(),
        };
        let rendered = self.0.render(&conversation, true).map_err(|error| error.to_string())?;
        let ids = self.0.encode(&rendered).map_err(|error| error.to_string())?;
        Ok(ids.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_has_more_tokens() {
        let counter = PromptCounter::load("builtin:tiny").unwrap().unwrap();
        let prompt = |text: &str| counter.count(&[ChatMessage::new("user", text)]).unwrap();
        // The built-in model's tokens are characters.
        assert_eq!(prompt("abcdef") - prompt("abc"), 3);
        let missing = PromptCounter::load("no/such-model-here").unwrap().err();
        assert_eq!(
            missing.unwrap(),
            "the tokenizer of no/such-model-here is not on this machine"
        );
    }
}
