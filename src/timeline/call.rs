//! A recorded LLM call, and what the timeline asks of a model's tokenizer and chat template.

use serde_json::{Map, Value};

/// What a chat template is given. Messages are OpenAI's, with contents as strings (null where an assistant only calls
/// tools) and tool-call arguments as JSON text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Value>,
    /// The functions on offer, as the request lists them.
    pub tools: Vec<Value>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
}

impl Conversation {
    /// Names of the functions on offer.
    pub fn offered_functions(&self) -> Vec<String> {
        let names = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
        names.map(str::to_owned).collect()
    }
}

/// How a turn of the model ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// With an end token, the last one sampled.
    EndToken,
    /// With a stop string; no end token was sampled.
    StopString,
    /// At a token limit; no end token was sampled.
    Length,
}

/// One LLM call of an episode, as it really happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The request, normalised; messages that repeat earlier answers are the answers as we gave them.
    pub conversation: Conversation,
    /// What the chat template makes of `conversation`, up to where the model continues.
    pub rendered: String,
    /// The token ids fed to the model.
    pub prompt: Vec<u32>,
    /// The token ids the model sampled.
    pub sampled: Vec<u32>,
    /// Their log-probabilities at the sampling temperature.
    pub logprobs: Vec<f32>,
    /// `sampled` as text, special tokens included, the end token left out.
    pub sampled_text: String,
    /// How the turn ended.
    pub end: TurnEnd,
    /// The assistant message we returned.
    pub answer: Value,
    /// Who asked: the request's `model`, by which agents of one episode tell themselves apart.
    pub agent: String,
    /// The weights that sampled.
    pub weight_version: u64,
    /// When the request came, in Unix seconds.
    pub begun: f64,
    /// When its answer was complete, in Unix seconds.
    pub ended: f64,
}

impl Call {
    /// Prompt and sampled ids in one.
    pub fn sequence(&self) -> Vec<u32> {
        [self.prompt.as_slice(), self.sampled.as_slice()].concat()
    }

    /// Length of [`Call::sequence`].
    pub fn len(&self) -> usize {
        self.prompt.len() + self.sampled.len()
    }

    /// Whether the call has no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `ids` start with all that this call fed and sampled.
    pub fn is_prefix_of(&self, ids: &[u32]) -> bool {
        ids.len() >= self.len() && ids.starts_with(&self.prompt) && ids[self.prompt.len()..].starts_with(&self.sampled)
    }
}

/// The chat template or the tokenizer refused a conversation: a sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// A model's chat template and tokenizer.
pub trait Renderer {
    /// The conversation as text; with `add_generation_prompt` up to where the model continues.
    fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String, RenderError>;

    /// Token ids of a text. Special tokens written in it are recognised, none are added.
    fn encode(&self, text: &str) -> Result<Vec<u32>, RenderError>;

    /// Text of token ids, special tokens included.
    fn decode(&self, ids: &[u32]) -> String;
}
