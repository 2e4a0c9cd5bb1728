//! Answers that later requests of an episode may refer to: by `previous_response_id`, or item by item.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::protocol::openai::ChatMessage;

/// Most bytes, about, that are kept for one episode. Beyond, the oldest conversations are forgotten first, then the
/// oldest items.
const EPISODE_BYTES: usize = 16 * 1024 * 1024;

/// An answer and what it was given since the one before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// `resp_…`.
    pub id: String,
    /// The one before.
    pub previous: Option<String>,
    /// The request's own messages and the answer.
    pub messages: Vec<ChatMessage>,
    /// The answer as it was given, without its items.
    pub response: Value,
    /// The answer's items.
    pub output: Vec<Value>,
}

/// The kept answers of one episode.
#[derive(Clone, Debug, Default)]
pub struct KeptResponses {
    by_id: HashMap<String, Entry>,
    /// Ids, the oldest first; of those whose conversation is kept, and of all.
    conversations: VecDeque<String>,
    answers: VecDeque<String>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    output: Vec<Value>,
    output_bytes: usize,
    conversation: Option<Conversation>,
}

#[derive(Clone, Debug)]
struct Conversation {
    previous: Option<String>,
    messages: Vec<ChatMessage>,
    response: Value,
    bytes: usize,
}

impl KeptResponses {
    /// Keeps an answer, and forgets old ones where there are too many.
    pub fn keep(&mut self, kept: Kept) {
        let output_bytes = kept.output.iter().map(size).sum();
        let conversation = Conversation {
            bytes: size(&kept.response) + kept.messages.iter().map(message_size).sum::<usize>(),
            previous: kept.previous,
            messages: kept.messages,
            response: kept.response,
        };
        self.bytes += output_bytes + conversation.bytes;
        self.conversations.push_back(kept.id.clone());
        self.answers.push_back(kept.id.clone());
        let entry = Entry {
            output: kept.output,
            output_bytes,
            conversation: Some(conversation),
        };
        self.by_id.insert(kept.id, entry);
        while self.bytes > EPISODE_BYTES && self.forget_oldest() {}
    }

    /// About the bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets something; false where nothing is left.
    pub fn forget_oldest(&mut self) -> bool {
        if let Some(id) = self.conversations.pop_front() {
            let conversation = self.by_id.get_mut(&id).and_then(|entry| entry.conversation.take());
            self.bytes -= conversation.map_or(0, |conversation| conversation.bytes);
            return true;
        }
        let Some(id) = self.answers.pop_front() else {
            return false;
        };
        self.bytes -= self.by_id.remove(&id).map_or(0, |entry| entry.output_bytes);
        true
    }

    /// The conversation up to and with this answer; `None` where it is not known.
    pub fn conversation(&self, id: &str) -> Option<Vec<ChatMessage>> {
        let turn = |id: &str| self.by_id.get(id)?.conversation.as_ref();
        let mut turns = vec![turn(id)?];
        // Ids are the engine's: were two the same, the way back could be a circle.
        while turns.len() < self.by_id.len()
            && let Some(previous) = turns.last().and_then(|turn| turn.previous.as_ref())
        {
            turns.push(turn(previous)?);
        }
        Some(turns.iter().rev().flat_map(|turn| turn.messages.clone()).collect())
    }

    /// An item of an answer. Its id says where it is: `fc_TAIL_2` is the third of `resp_TAIL`.
    pub fn item(&self, id: &str) -> Option<&Value> {
        let (rest, number) = id.rsplit_once('_')?;
        let (_, tail) = rest.split_once('_')?;
        let output = &self.by_id.get(&format!("resp_{tail}"))?.output;
        output
            .get(number.parse::<usize>().ok()?)
            .filter(|item| item["id"] == id)
    }

    /// An answer as it was given.
    pub fn response(&self, id: &str) -> Option<Value> {
        let entry = self.by_id.get(id)?;
        let mut response = entry.conversation.as_ref()?.response.clone();
        response["output"] = entry.output.clone().into();
        Some(response)
    }
}

/// About the bytes that a value takes.
fn size(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}

fn message_size(message: &ChatMessage) -> usize {
    let calls = message.tool_calls.iter().flatten();
    let calls = calls.map(|call| call.function.name.len() + call.function.arguments.len() + call.id.len());
    let reasoning = message.reasoning_content.as_ref().map_or(0, String::len);
    size_of::<ChatMessage>() + size(&message.content) + reasoning + calls.sum::<usize>()
}
