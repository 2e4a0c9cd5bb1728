//! `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times, with text between; a list of calls in one
//! pair of tags too.
//!
//! A closing tag may be missing where JSON is whole and another call or the answer's end follows. A block that holds no
//! call, or is cut inside of it, is text. White space around calls is text where text stands on both sides, else layout
//! that is left out.

use super::json_call::{parse, split_value};
use super::tag::{Found, could_become, find};
use super::{ParsedCall, Pieces};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// The state between two pieces of text.
#[derive(Default)]
pub struct Hermes {
    /// Undecided text: white space, the beginning of a tag, or a block that is not closed.
    held: String,
    /// White space around calls since the last text, which is text if more follows.
    around_calls: String,
    last: Last,
    /// Whether the block that became text last was cut by the answer's end.
    cut: bool,
}

/// What came last.
#[derive(Default, PartialEq)]
enum Last {
    #[default]
    Nothing,
    Text,
    /// A call that text went before, and one that none did.
    CallAfterText,
    CallAtStart,
}

/// What a block is, from behind its opening tag.
enum Block {
    /// It may still become one.
    Open,
    /// Calls; the block ends at this byte.
    Calls(Vec<ParsedCall>, usize),
    /// No call.
    Text,
    /// The answer ended inside of it.
    Cut,
}

impl Hermes {
    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        self.held.push_str(text);
        self.take(false, out);
    }

    /// The answer has ended. A block that is open now is text, what follows its tag may hold a good one. Whether the last
    /// block was cut.
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
            // White space may be a call's layout: it waits for what follows.
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

    /// Gives out the first `len` bytes as text; returns `len`.
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
    // JSON is read once it may be whole, not after each of its tokens.
    if !(ended || text.contains(CLOSE) || text.contains(OPEN)) {
        return Block::Open;
    }
    let (written, rest) = match split_value(text) {
        Ok(parts) => parts,
        // The tag so far is inside of a JSON string.
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
