//! Stored answers that later requests of an episode may refer to, by `previous_response_id` or by item.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::protocol::openai::ChatMessage;

/// Approximate maximum of bytes stored per episode. Beyond it, the oldest conversations are dropped first, then the
/// oldest items.
const EPISODE_BYTES: usize = 16 * 1024 * 1024;

/// An answer and its input since the previous answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// `resp_…`.
    pub id: String,
    /// Id of the previous answer.
    pub previous: Option<String>,
    /// New messages of the request, and the answer.
    pub messages: Vec<ChatMessage>,
    /// The response object without its items.
    pub response: Value,
    /// The answer's items.
    pub output: Vec<Value>,
}

/// Stored answers of one episode.
#[derive(Clone, Debug, Default)]
pub struct KeptResponses {
    by_id: HashMap<String, Entry>,
    /// Ids, oldest first: those with a stored conversation, and all.
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
    /// Stores an answer, and drops old ones beyond the limit.
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

    /// Returns the approximate number of bytes stored.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the oldest entry; returns `false` if none is left.
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

    /// Returns the conversation up to and including this answer; `None` if unknown.
    pub fn conversation(&self, id: &str) -> Option<Vec<ChatMessage>> {
        let turn = |id: &str| self.by_id.get(id)?.conversation.as_ref();
        let mut turns = vec![turn(id)?];
        // Duplicate ids from the engine could make the chain circular.
        while turns.len() < self.by_id.len()
            && let Some(previous) = turns.last().and_then(|turn| turn.previous.as_ref())
        {
            turns.push(turn(previous)?);
        }
        Some(turns.iter().rev().flat_map(|turn| turn.messages.clone()).collect())
    }

    /// Returns an item of an answer. Its id contains its position: `fc_TAIL_2` is the third item of `resp_TAIL`.
    pub fn item(&self, id: &str) -> Option<&Value> {
        let (rest, number) = id.rsplit_once('_')?;
        let (_, tail) = rest.split_once('_')?;
        let output = &self.by_id.get(&format!("resp_{tail}"))?.output;
        output
            .get(number.parse::<usize>().ok()?)
            .filter(|item| item["id"] == id)
    }

    /// Returns an answer as it was sent.
    pub fn response(&self, id: &str) -> Option<Value> {
        let entry = self.by_id.get(id)?;
        let mut response = entry.conversation.as_ref()?.response.clone();
        response["output"] = entry.output.clone().into();
        Some(response)
    }
}

/// Returns the approximate size of a value in bytes.
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
