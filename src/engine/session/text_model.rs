//! Tokenizer and chat template of a loaded model, as sessions use them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::backend::ChatModel;
use crate::grammar::Grammars;
use crate::model::{ChatTemplate, LoadedModel, ModelError, Tokenizer, Trial};
use crate::timeline::{Conversation, RenderError, Renderer};

/// Placeholder of an answer, to find out what the template writes after one.
const MARK: &str = "\u{fffc}answer\u{fffc}";

/// Text side of a model.
#[derive(Clone)]
pub struct TextModel {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    template_source: String,
    stop_token_ids: Vec<u32>,
    grammars: Arc<Grammars>,
}

impl TextModel {
    /// Creates it from a loaded model.
    pub fn new(model: &LoadedModel) -> Self {
        let (tokenizer, template) = (model.tokenizer.clone(), model.chat_template.clone());
        Self::from_parts(tokenizer, template, &model.generation.eos_token_ids)
    }

    /// Creates it with these tokens that end an answer. The special token with which the template ends a turn is added,
    /// since base models do not name it.
    pub fn from_parts(tokenizer: Tokenizer, template: ChatTemplate, eos_token_ids: &[u32]) -> Self {
        let mut model = Self {
            template_source: template.source().to_owned(),
            grammars: Arc::new(Grammars::new(tokenizer.clone(), &[])),
            tokenizer,
            template,
            stop_token_ids: eos_token_ids.to_vec(),
        };
        let end = model.end_of_turn().filter(|id| !eos_token_ids.contains(id));
        model.stop_token_ids.extend(end);
        model.grammars = Arc::new(Grammars::new(model.tokenizer.clone(), &model.stop_token_ids));
        model
    }

    /// Renders trial conversations, see [`ChatTemplate::trial`].
    ///
    /// # Errors
    /// Fails if the chat template rejects every conversation.
    pub fn trial(&self) -> Result<Trial, ModelError> {
        self.template.trial()
    }

    fn end_of_turn(&self) -> Option<u32> {
        let conversation = Conversation {
            messages: vec![
                json!({"role": "user", "content": "question"}),
                json!({"role": "assistant", "content": MARK}),
            ],
            ..Conversation::default()
        };
        let rendered = self.render(&conversation, false).ok()?;
        let (_, end) = rendered.rsplit_once(MARK)?;
        let first = *self.tokenizer.encode(end.trim_start()).ok()?.first()?;
        self.tokenizer.is_special(first).then_some(first)
    }
}

impl Renderer for TextModel {
    fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String, RenderError> {
        let mut messages: Vec<Value> = conversation.messages.iter().map(with_parsed_arguments).collect();
        messages
            .iter_mut()
            .for_each(|message| self.template.adapt_content(message));
        let tools = (!conversation.tools.is_empty()).then_some(conversation.tools.as_slice());
        self.template
            .render(&messages, tools, add_generation_prompt, &conversation.template_kwargs)
            .map_err(sentence)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, RenderError> {
        self.tokenizer.encode(text).map_err(sentence)
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false)
    }
}

impl ChatModel for TextModel {
    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id).to_vec()
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    fn stop_token_ids(&self) -> &[u32] {
        &self.stop_token_ids
    }

    fn chat_template(&self) -> &str {
        &self.template_source
    }

    fn grammars(&self) -> &Arc<Grammars> {
        &self.grammars
    }
}

fn sentence(error: ModelError) -> RenderError {
    RenderError(error.to_string())
}

/// Parses tool-call arguments: OpenAI has them as JSON text, but templates serialise values themselves.
fn with_parsed_arguments(message: &Value) -> Value {
    let mut message = message.clone();
    for call in message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let arguments = &mut call["function"]["arguments"];
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(Value::Object(parsed)) = parsed {
            *arguments = Value::Object(parsed);
        }
    }
    message
}
