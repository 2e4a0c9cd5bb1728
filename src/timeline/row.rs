//! Training rows.

use serde::{Deserialize, Serialize};

/// A token sequence of prompts and answers. The three lists have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Token ids of prompts and answers, exactly as computed.
    pub token_ids: Vec<u32>,
    /// Token mask: true for tokens to train, which this version of the weights sampled and no other row trains.
    pub loss_mask: Vec<bool>,
    /// Log-probability of each token in the mask at the sampling temperature; 0 for the others.
    pub logprobs: Vec<f32>,
    /// Whether the row's last turn ended at a token limit.
    pub truncated: bool,
}

impl Row {
    /// Returns the number of tokens in the mask.
    pub fn response_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }
}
