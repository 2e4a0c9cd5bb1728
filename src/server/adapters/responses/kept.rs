//! Answers that later requests of an episode may go on from by `previous_response_id`.

use std::collections::HashMap;

use crate::protocol::openai::ChatMessage;

/// An answer and what it was given since the one before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// `resp_…`.
    pub id: String,
    /// The one before.
    pub previous: Option<String>,
    /// The request's own messages and the answer.
    pub messages: Vec<ChatMessage>,
}

/// The kept answers of one episode.
#[derive(Clone, Debug, Default)]
pub struct KeptResponses(HashMap<String, Kept>);

impl KeptResponses {
    /// Keeps an answer.
    pub fn keep(&mut self, response: Kept) {
        self.0.insert(response.id.clone(), response);
    }

    /// The conversation up to and with this answer; `None` where it is not known.
    pub fn conversation(&self, id: &str) -> Option<Vec<ChatMessage>> {
        let mut turns = vec![self.0.get(id)?];
        // Ids are the engine's: were two the same, the way back could be a circle.
        while turns.len() < self.0.len()
            && let Some(previous) = turns.last().and_then(|turn| turn.previous.as_ref())
        {
            turns.push(self.0.get(previous)?);
        }
        Some(turns.iter().rev().flat_map(|turn| turn.messages.clone()).collect())
    }
}
