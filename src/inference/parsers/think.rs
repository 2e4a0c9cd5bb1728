//! Thinking between `<think>` and `</think>` at the start of an answer.
//!
//! A tag without its partner is content, so what follows a `<think>` of the model's is held back until the `</think>`
//! comes. Where the chat template itself opened the thinking, it is given out as it comes.

use super::Pieces;
use super::tag::{Found, could_become, find};

/// Begins thinking.
pub const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Splits thinking from the rest of an answer.
pub struct Think {
    state: State,
    /// Text that is not decided yet.
    held: String,
}

enum State {
    /// Nothing but white space so far.
    Start,
    /// The model opened thinking; all of it is held.
    OpenedByModel,
    /// The template opened thinking; `true` once some was given out.
    OpenedByTemplate(bool),
    /// White space behind the thinking is left out.
    Closed,
    /// Everything is passed on.
    Answer,
}

impl Think {
    /// `opened`: the prompt ends with the opening tag.
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

    /// Takes more text; gives what follows the thinking.
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

    /// Gives out thinking that is certain, without white space at its ends; true once it is closed.
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

    /// The answer has ended; gives what was held back and is content after all.
    pub fn finish(self) -> String {
        match self.state {
            // The tag was the template's: what is left is white space or a part of a closing tag.
            State::OpenedByTemplate(_) => String::new(),
            _ => self.held,
        }
    }
}
