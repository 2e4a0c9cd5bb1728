//! Tokens of prompts, counted without an engine where a model's tokenizer is on this machine.

use serde_json::{Map, json};

use crate::engine::session::TextModel;
use crate::model::load::load_text;
use crate::protocol::openai::ChatMessage;
use crate::timeline::{Conversation, Renderer};

/// Returns a function that counts the tokens of a prompt as the engine would; `None` if the model is not on this machine.
///
/// # Errors
/// Fails if the model's files cannot be used.
pub(super) fn counter(model: &str) -> anyhow::Result<Option<impl Fn(&[ChatMessage]) -> Result<u64, String>>> {
    let Some(text) = load_text(model)? else {
        return Ok(None);
    };
    let model = TextModel::from_parts(text.tokenizer, text.chat_template, &text.generation.eos_token_ids);
    Ok(Some(move |messages: &[ChatMessage]| count(&model, messages)))
}

fn count(model: &TextModel, messages: &[ChatMessage]) -> Result<u64, String> {
    let conversation = Conversation {
        messages: messages.iter().map(|message| json!(message)).collect(),
        tools: vec![],
        template_kwargs: Map::new(),
    };
    let rendered = model.render(&conversation, true).map_err(|error| error.to_string())?;
    let ids = model.encode(&rendered).map_err(|error| error.to_string())?;
    Ok(ids.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_has_more_tokens() {
        let count = counter("builtin:tiny").unwrap().unwrap();
        let prompt = |text: &str| {
            let message = ChatMessage {
                role: "user".into(),
                content: text.into(),
                ..ChatMessage::default()
            };
            count(&[message]).unwrap()
        };
        // The built-in model's tokens are characters.
        assert_eq!(prompt("abcdef") - prompt("abc"), 3);
        assert!(counter("no/such-model-here").unwrap().is_none());
    }
}
