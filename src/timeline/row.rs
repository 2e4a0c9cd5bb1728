//! The training row.

use serde::{Deserialize, Serialize};

/// One token sequence that the model saw and partly sampled. The three lists have one entry a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Exactly what the model was fed and sampled, in order.
    pub token_ids: Vec<u32>,
    /// True where the model sampled the token (this turn, this weight version) and no other row trains it.
    pub loss_mask: Vec<bool>,
    /// Log-probability at the sampling temperature with which a masked-in token was sampled; 0 elsewhere.
    pub logprobs: Vec<f32>,
    /// Whether the row's last turn was cut by a token limit.
    pub truncated: bool,
}

impl Row {
    /// Masked-in tokens.
    pub fn response_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }
}
