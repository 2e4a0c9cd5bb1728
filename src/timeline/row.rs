//! Training rows.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A token sequence of prompts and answers. The three lists have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Token ids of prompts and answers, exactly as computed.
    pub token_ids: Vec<u32>,
    /// Token mask: true for tokens to train, which this version of the weights chose and no other row trains.
    pub loss_mask: Vec<bool>,
    /// Log-probability of each token in the mask at the sampling temperature; 0 for the others.
    pub logprobs: Vec<f32>,
    /// Whether the row's last turn ended at a token limit.
    pub truncated: bool,
    /// Tokens that a grammar constrained, in order, without overlap. The log-probabilities of those in the mask are over
    /// the tokens that the grammar allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constrained: Vec<Constrained>,
}

/// Tokens of a row that a grammar constrained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constrained {
    /// Index of the first token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// The grammar, as a text.
    #[serde(with = "shared_text")]
    pub grammar: Arc<str>,
}

mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

impl Constrained {
    /// Returns whether a token of the row is one of these.
    pub fn contains(&self, index: usize) -> bool {
        (self.start..self.start + self.len).contains(&index)
    }
}

impl Row {
    /// Returns the number of tokens in the mask.
    pub fn response_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }
}
