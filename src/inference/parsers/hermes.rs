//! `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times, with text between.
//!
//! A block that is cut or holds no call is text. White space around a call is layout and left out.

use super::json_call::{parse_one, split_value};
use super::tag::{Found, find};
use super::{ParsedCall, Pieces};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// The state between two pieces of text.
#[derive(Default)]
pub struct Hermes {
    /// Undecided text: white space, the beginning of a tag, or a block that is not closed.
    held: String,
    /// Whether a call came last, behind which white space is left out.
    after_call: bool,
}

/// What a block is, from behind its opening tag.
enum Block {
    /// It may still become one.
    Open,
    /// A call; the closing tag ends at this byte.
    Call(ParsedCall, usize),
    /// No call.
    Text,
}

impl Hermes {
    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        self.held.push_str(text);
        loop {
            let (Found::At(tag) | Found::NotBefore(tag)) = find(&self.held, OPEN);
            // White space may be a call's layout: it waits for what follows.
            let tag = tag - self.release(self.held[..tag].trim_end().len(), out);
            if !self.held[tag..].starts_with(OPEN) {
                return;
            }
            match read_block(&self.held[tag + OPEN.len()..]) {
                Block::Open => return,
                Block::Call(call, end) => {
                    self.held.drain(..tag + OPEN.len() + end);
                    self.after_call = true;
                    out.call(call);
                }
                Block::Text => _ = self.release(tag + OPEN.len(), out),
            }
        }
    }

    /// Gives out the first `len` bytes as text; returns `len`.
    fn release(&mut self, len: usize, out: &mut Pieces) -> usize {
        let text: String = self.held.drain(..len).collect();
        let text = if self.after_call { text.trim_start() } else { &text };
        self.after_call &= text.is_empty();
        out.content(text);
        len
    }

    pub fn finish(mut self, out: &mut Pieces) {
        // An open block is text now, what follows its tag may hold a good one.
        while let Found::At(tag) = find(&self.held, OPEN) {
            self.release(tag + OPEN.len(), out);
            self.push("", out);
        }
        self.release(self.held.len(), out);
    }
}

fn read_block(text: &str) -> Block {
    if !text.contains(CLOSE) {
        return Block::Open;
    }
    let (written, rest) = match split_value(text) {
        Ok(parts) => parts,
        // The closing tag so far is inside of a JSON string.
        Err(error) if error.is_eof() => return Block::Open,
        Err(_) => return Block::Text,
    };
    match (parse_one(written), rest.trim_start().strip_prefix(CLOSE)) {
        (Some(call), Some(behind)) => Block::Call(call, text.len() - behind.len()),
        _ if rest.contains(CLOSE) => Block::Text,
        // As above, and the value is whole: its own closing tag is still to come.
        _ => Block::Open,
    }
}
