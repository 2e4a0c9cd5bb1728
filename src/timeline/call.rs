//! A recorded LLM call, and the interface to a model's tokenizer and chat template.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Input of a chat template. Messages have OpenAI's format, with contents as strings (null if an assistant only calls
/// tools) and tool-call arguments as JSON text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Value>,
    /// Tools, as in the request.
    pub tools: Vec<Value>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
}

impl Conversation {
    /// Returns the names of the tools.
    pub fn offered_functions(&self) -> Vec<String> {
        let names = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
        names.map(str::to_owned).collect()
    }
}

/// How the model's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// An end token was sampled last.
    EndToken,
    /// A stop string was found; no end token was sampled.
    StopString,
    /// A token limit was reached; no end token was sampled.
    Length,
}

/// One LLM call of an episode, with the exact tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Normalised request; earlier answers in it are as the model gave them.
    pub conversation: Conversation,
    /// `conversation` as the chat template renders it, with the generation prompt.
    pub rendered: String,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Sampled token ids.
    pub sampled: Vec<u32>,
    /// Log-probabilities of the sampled tokens at the sampling temperature.
    pub logprobs: Vec<f32>,
    /// Grammar that constrained the sampled tokens.
    pub grammar: Option<Arc<str>>,
    /// Indices of sampled tokens that were the only ones the grammar allowed, ascending.
    pub determined: Vec<usize>,
    /// Text of `sampled`, with special tokens but without the end token.
    pub sampled_text: String,
    /// How the model's turn ended.
    pub end: TurnEnd,
    /// Assistant message that was returned.
    pub answer: Value,
    /// `model` of the request, by which the agents of one episode can be distinguished.
    pub agent: String,
    /// Version of the weights that sampled.
    pub weight_version: u64,
    /// Time of the request in Unix seconds.
    pub begun: f64,
    /// Time at which the answer was complete in Unix seconds.
    pub ended: f64,
}

impl Call {
    /// Returns the ids of the prompt followed by the sampled ones.
    pub fn sequence(&self) -> Vec<u32> {
        [self.prompt.as_slice(), self.sampled.as_slice()].concat()
    }

    /// Returns the length of [`Call::sequence`].
    pub fn len(&self) -> usize {
        self.prompt.len() + self.sampled.len()
    }

    /// Returns whether the call has no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether `ids` start with the call's prompt and sampled ids.
    pub fn is_prefix_of(&self, ids: &[u32]) -> bool {
        ids.len() >= self.len() && ids.starts_with(&self.prompt) && ids[self.prompt.len()..].starts_with(&self.sampled)
    }
}

/// Error of the chat template or the tokenizer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// Chat template and tokenizer of a model.
pub trait Renderer {
    /// Renders a conversation, with the generation prompt if `add_generation_prompt`.
    ///
    /// # Errors
    /// Fails if the template does.
    fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String, RenderError>;

    /// Encodes a text. Special tokens in it are recognised, none are added.
    ///
    /// # Errors
    /// Fails if the tokenizer does.
    fn encode(&self, text: &str) -> Result<Vec<u32>, RenderError>;

    /// Decodes token ids, including special tokens.
    fn decode(&self, ids: &[u32]) -> String;
}
