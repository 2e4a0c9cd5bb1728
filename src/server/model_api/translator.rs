//! The engine's chat answer, byte by byte, into the bytes of another API's answer.

use serde::Serialize;
use serde_json::json;

use super::responses::Kept;
use super::{AnswerWriter, as_chunk};
use crate::protocol::openai::{ChatCompletion, ChatCompletionChunk, ErrorBody, ErrorObject};

/// What ends one of the engine's events.
pub const END_OF_EVENT: &[u8] = b"\n\n";

/// How an error begins, where a chunk has its id.
const ERROR: &[u8] = b"{\"error\":";

/// A server-sent event of an API that names its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvent {
    /// Such as `message_start`.
    pub name: String,
    /// JSON.
    pub data: String,
}

impl ServerEvent {
    /// An event whose name is the `type` of its data.
    pub fn new(event: &impl Serialize) -> Self {
        let data = json!(event); // wire types are objects with string keys, which JSON has
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

/// A chat answer on its way into another API.
pub struct Translator {
    writer: Box<dyn AnswerWriter>,
    streamed: bool,
    /// Of a stream, an event that is not whole yet; else all so far.
    held: Vec<u8>,
    done: bool,
}

impl Translator {
    /// Translates with `writer` an answer that is `streamed` or comes whole.
    pub fn new(writer: Box<dyn AnswerWriter>, streamed: bool) -> Self {
        Self {
            writer,
            streamed,
            held: Vec::new(),
            done: false,
        }
    }

    /// Takes more bytes; gives what they come to.
    ///
    /// # Errors
    /// They are not what engines answer.
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

    /// A stream was broken off; gives the event that tells so.
    pub fn fail(&mut self, error: ErrorObject) -> Vec<u8> {
        let mut out = Vec::new();
        self.writer.failed(error).iter().for_each(|event| event.write(&mut out));
        out
    }

    /// There are no more bytes; gives the rest.
    ///
    /// # Errors
    /// As [`Translator::push`].
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

    /// What later requests may refer to, once the answer is complete; before its last bytes are sent.
    pub fn kept(&self) -> Option<Kept> {
        if self.done { self.writer.kept() } else { None }
    }
}
