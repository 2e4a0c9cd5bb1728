//! Parser of `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times, with text in between. A pair of
//! tags may also contain a list of calls.
//!
//! A closing tag may be missing if the JSON is complete and another call or the end of the answer follows. A block
//! without a call, or with an incomplete one, is text. White space between calls is dropped unless there is text on
//! both sides.

use super::json_call::{parse, split_value};
use super::tag::{Found, could_become, find};
use super::{ParsedCall, Pieces};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// State of the parser between two pieces of text.
#[derive(Default)]
pub struct Hermes {
    /// Text to decide on later: white space, the beginning of a tag, or an open block.
    held: String,
    /// White space since the last text, which is text only if more text follows.
    around_calls: String,
    last: Last,
    /// Whether the last block that became text was truncated by the end of the answer.
    cut: bool,
}

/// Kind of the last piece.
#[derive(Default, PartialEq)]
enum Last {
    #[default]
    Nothing,
    Text,
    /// A call after text, and one without text before it.
    CallAfterText,
    CallAtStart,
}

/// Content of a block after its opening tag.
enum Block {
    /// Not complete yet.
    Open,
    /// Calls, and the byte at which the block ends.
    Calls(Vec<ParsedCall>, usize),
    /// Not a call.
    Text,
    /// Truncated by the end of the answer.
    Cut,
}

impl Hermes {
    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        self.held.push_str(text);
        self.take(false, out);
    }

    /// Ends the answer. An open block is text, but may contain complete blocks after its tag. Returns whether the last
    /// block was truncated.
    pub fn finish(mut self, out: &mut Pieces) -> bool {
        self.take(true, out);
        if matches!(self.last, Last::Nothing | Last::Text) || !self.held.trim().is_empty() {
            self.release(self.held.len(), out);
        }
        self.cut
    }

    fn take(&mut self, ended: bool, out: &mut Pieces) {
        loop {
            let (Found::At(tag) | Found::NotBefore(tag)) = find(&self.held, OPEN);
            // White space is kept until it is known what follows.
            let tag = tag - self.release(self.held[..tag].trim_end().len(), out);
            if !self.held[tag..].starts_with(OPEN) {
                return;
            }
            match read_block(&self.held[tag + OPEN.len()..], ended) {
                Block::Open => return,
                Block::Calls(calls, end) => {
                    self.around_calls.push_str(&self.held[..tag]);
                    self.held.drain(..tag + OPEN.len() + end);
                    self.last = match self.last {
                        Last::Text | Last::CallAfterText => Last::CallAfterText,
                        Last::Nothing | Last::CallAtStart => Last::CallAtStart,
                    };
                    calls.into_iter().for_each(|call| out.call(call));
                    self.cut = false;
                }
                text => {
                    self.cut = matches!(text, Block::Cut);
                    self.release(tag + OPEN.len(), out);
                }
            }
        }
    }

    /// Emits the first `len` bytes as text; returns `len`.
    fn release(&mut self, len: usize, out: &mut Pieces) -> usize {
        if len == 0 {
            return 0;
        }
        let text: String = self.held.drain(..len).collect();
        let around_calls = std::mem::take(&mut self.around_calls);
        match self.last {
            Last::CallAtStart => out.content(text.trim_start()),
            _ => out.content(&(around_calls + &text)),
        }
        self.last = Last::Text;
        len
    }
}

fn read_block(text: &str, ended: bool) -> Block {
    let begun = text.trim_start();
    if !begun.is_empty() && !begun.starts_with(['{', '[']) {
        return Block::Text;
    }
    if begun.is_empty() && ended {
        return Block::Cut;
    }
    // JSON is parsed only once it may be complete, not after every token.
    if !(ended || text.contains(CLOSE) || text.contains(OPEN)) {
        return Block::Open;
    }
    let (written, rest) = match split_value(text) {
        Ok(parts) => parts,
        // The tag is inside a JSON string.
        Err(error) if error.is_eof() && !ended => return Block::Open,
        Err(error) if error.is_eof() => return Block::Cut,
        Err(_) => return Block::Text,
    };
    let rest = rest.trim_start();
    let end = match rest.strip_prefix(CLOSE) {
        Some(behind) => text.len() - behind.len(),
        None if rest.starts_with(OPEN) => text.len() - rest.len(),
        None if !(could_become(rest, CLOSE) || could_become(rest, OPEN)) => return Block::Text,
        None if ended && !could_become(rest, CLOSE) => text.len() - rest.len(),
        None if ended => text.len(),
        None => return Block::Open,
    };
    match parse(written) {
        Some(calls) => Block::Calls(calls.into_iter().map(|json| json.call).collect(), end),
        None => Block::Text,
    }
}
