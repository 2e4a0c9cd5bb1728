//! Parser of thinking between `<think>` and `</think>` at the start of an answer.
//!
//! A tag without its partner is content, so text after a `<think>` of the model is held back until `</think>`. If the
//! chat template opened the thinking, it is emitted at once.

use super::Pieces;
use super::tag::{Found, could_become, find};

/// Opening tag.
pub const OPEN: &str = "<think>";
/// Closing tag.
pub const CLOSE: &str = "</think>";

/// Splits thinking from the rest of an answer.
pub struct Think {
    state: State,
    /// Text to decide on later.
    held: String,
}

enum State {
    /// Only white space so far.
    Start,
    /// The model opened thinking, which is held back.
    OpenedByModel,
    /// The template opened thinking; `true` once a part was emitted.
    OpenedByTemplate(bool),
    /// White space after the thinking is dropped.
    Closed,
    /// The rest is content.
    Answer,
}

impl Think {
    /// Creates a parser; `opened` if the prompt ends with the opening tag.
    pub fn new(opened: bool) -> Self {
        Self {
            state: if opened {
                State::OpenedByTemplate(false)
            } else {
                State::Start
            },
            held: String::new(),
        }
    }

    /// Adds text; returns the content after the thinking.
    pub fn push(&mut self, text: &str, out: &mut Pieces) -> String {
        self.held.push_str(text);
        loop {
            match self.state {
                State::Start => {
                    let begun = self.held.trim_start();
                    if begun.starts_with(OPEN) {
                        self.state = State::OpenedByModel;
                    } else if could_become(begun, OPEN) {
                        return String::new();
                    } else {
                        self.state = State::Answer;
                    }
                }
                State::OpenedByModel => {
                    let Some((thinking, rest)) = self.held.split_once(CLOSE) else {
                        return String::new();
                    };
                    out.reasoning(thinking.trim_start()[OPEN.len()..].trim());
                    self.held = rest.to_owned();
                    self.state = State::Closed;
                }
                State::OpenedByTemplate(begun) => {
                    if !self.stream_thinking(begun, out) {
                        return String::new();
                    }
                }
                State::Closed => {
                    let rest = self.held.trim_start();
                    if rest.is_empty() {
                        self.held.clear();
                        return String::new();
                    }
                    self.held = rest.to_owned();
                    self.state = State::Answer;
                }
                State::Answer => return std::mem::take(&mut self.held),
            }
        }
    }

    /// Emits final thinking without white space at its ends; returns true once it is closed.
    fn stream_thinking(&mut self, begun: bool, out: &mut Pieces) -> bool {
        let found = find(&self.held, CLOSE);
        let (Found::At(end) | Found::NotBefore(end)) = found;
        let thinking = &self.held[..end];
        let certain = thinking.trim_end().len();
        let shown = if begun {
            &thinking[..certain]
        } else {
            thinking[..certain].trim_start()
        };
        out.reasoning(shown);
        let begun = begun || !shown.is_empty();
        if found == Found::At(end) {
            self.held.drain(..end + CLOSE.len());
            self.state = State::Closed;
            return true;
        }
        self.held.drain(..certain);
        self.state = State::OpenedByTemplate(begun);
        false
    }

    /// Ends the answer; returns text that was held back and is content.
    pub fn finish(self) -> String {
        match self.state {
            // The template opened the tag: the rest is white space or a part of a closing tag.
            State::OpenedByTemplate(_) => String::new(),
            _ => self.held,
        }
    }
}
