//! Converts the bytes of the engine's chat answer to those of another API's answer.

use serde::Serialize;
use serde_json::json;

use super::responses::Kept;
use super::{AnswerWriter, as_chunk};
use crate::protocol::openai::{ChatCompletion, ChatCompletionChunk, ErrorBody, ErrorObject};

/// End of an event.
pub const END_OF_EVENT: &[u8] = b"\n\n";

/// Beginning of an error, where a chunk has its id.
const ERROR: &[u8] = b"{\"error\":";

/// A named server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvent {
    /// Name, such as `message_start`.
    pub name: String,
    /// Data, as JSON.
    pub data: String,
}

impl ServerEvent {
    /// Creates an event named by the `type` of its data.
    pub fn new(event: &impl Serialize) -> Self {
        let data = json!(event); // infallible: wire types are objects with string keys
        Self {
            name: data["type"].as_str().unwrap_or_default().to_owned(),
            data: data.to_string(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let Self { name, data } = self;
        out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
    }
}

/// Converter of one answer.
pub struct Translator {
    writer: Box<dyn AnswerWriter>,
    streamed: bool,
    /// Incomplete event of a stream, or everything received of a whole answer.
    held: Vec<u8>,
    done: bool,
}

impl Translator {
    /// Creates a converter of a `streamed` or whole answer.
    pub fn new(writer: Box<dyn AnswerWriter>, streamed: bool) -> Self {
        Self {
            writer,
            streamed,
            held: Vec::new(),
            done: false,
        }
    }

    /// Adds bytes; returns the converted ones.
    ///
    /// # Errors
    /// Fails if the bytes are not an engine's answer.
    pub fn push(&mut self, bytes: &[u8]) -> serde_json::Result<Vec<u8>> {
        self.held.extend_from_slice(bytes);
        let mut out = Vec::new();
        while self.streamed
            && let Some(end) = self.held.windows(2).position(|pair| pair == END_OF_EVENT)
        {
            let event: Vec<u8> = self.held.drain(..end + END_OF_EVENT.len()).collect();
            let data = match event.strip_prefix(b":") {
                // A heartbeat.
                Some(_) => {
                    match self.writer.heartbeat() {
                        Some(event) => event.write(&mut out),
                        None => out.extend_from_slice(&event),
                    }
                    continue;
                }
                None => event[..end].strip_prefix(b"data: ").unwrap_or_default(),
            };
            let events = match data {
                b"" => continue,
                b"[DONE]" => {
                    self.done = true;
                    self.writer.end()
                }
                data if data.starts_with(ERROR) => self.writer.failed(serde_json::from_slice::<ErrorBody>(data)?.error),
                data => self.writer.chunk(serde_json::from_slice::<ChatCompletionChunk>(data)?),
            };
            events.iter().for_each(|event| event.write(&mut out));
        }
        Ok(out)
    }

    /// Ends an interrupted stream; returns its error event.
    pub fn fail(&mut self, error: ErrorObject) -> Vec<u8> {
        let mut out = Vec::new();
        self.writer.failed(error).iter().for_each(|event| event.write(&mut out));
        out
    }

    /// Ends a complete answer; returns its last bytes.
    ///
    /// # Errors
    /// Fails as [`Translator::push`] does.
    pub fn finish(&mut self) -> serde_json::Result<Vec<u8>> {
        if self.streamed {
            return Ok(Vec::new());
        }
        let completion: ChatCompletion = serde_json::from_slice(&self.held)?;
        self.writer.chunk(as_chunk(completion));
        self.writer.end();
        self.done = true;
        serde_json::to_vec(&self.writer.answer())
    }

    /// Returns what later requests may refer to, once the answer is complete and before its last bytes are sent.
    pub fn kept(&self) -> Option<Kept> {
        if self.done { self.writer.kept() } else { None }
    }
}
