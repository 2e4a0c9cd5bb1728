//! Llama 3: the whole answer is `{"name": …, "parameters": {…}}`, several separated by `;`, perhaps behind
//! `<|python_tag|>`. Anything else is text.

use super::json_call::{could_be_call, parse_one, split_value};
use super::tag::could_become;
use super::{ParsedCall, Pieces};

const TAG: &str = "<|python_tag|>";

/// The state between two pieces of text.
#[derive(Default)]
pub struct Llama3 {
    /// The answer so far, as long as it may be calls.
    held: String,
    is_text: bool,
}

impl Llama3 {
    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        if self.is_text {
            return out.content(text);
        }
        self.held.push_str(text);
        let begun = self.held.trim_start();
        let json = begun.strip_prefix(TAG).unwrap_or(begun);
        if !(could_become(begun, TAG) || json.trim_start().is_empty() || could_be_call(json)) {
            self.is_text = true;
            out.content(&std::mem::take(&mut self.held));
        }
    }

    pub fn finish(self, out: &mut Pieces) {
        let begun = self.held.trim();
        match parse_calls(begun.strip_prefix(TAG).unwrap_or(begun)) {
            Some(calls) => calls.into_iter().for_each(|call| out.call(call)),
            None => out.content(&self.held),
        }
    }
}

fn parse_calls(text: &str) -> Option<Vec<ParsedCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    loop {
        let (written, behind) = split_value(rest).ok()?;
        calls.push(parse_one(written)?);
        rest = behind.trim_start();
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix(';')?;
        if rest.trim().is_empty() {
            return Some(calls);
        }
    }
}
